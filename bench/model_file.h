/* model_file: a model that the user names by a path, in whichever of the formats it is.
 *
 *   *.safetensors   Hugging Face's GPT-2
 *   *.bin           llm.c's
 *   another name    by what the file begins with
 */
#ifndef BENCH_MODEL_FILE_H
#define BENCH_MODEL_FILE_H

#include "model/resident.h"
#include "model/weights.h"

/* heads: weights_open()'s. errors: those of weights_open(). */
MUST_CHECK enum status model_file_open(struct weights **weights, const char *path, int heads);

/* "weights.bin: 0.84 M parameters, L4 …, held in float32" */
#define MODEL_FILE_BYTES 512
void model_file_describe(
    char text[MODEL_FILE_BYTES], const char *path, const struct resident *resident);

#endif
