/* model_file: a model that the user names by a path, in whichever of the formats of model_kind.h it is, and the options
 * that say how a program holds and computes it. An argp child, as options_common is.
 *
 *     case ARGP_KEY_INIT: state->child_inputs[1] = &program->file; return 0;
 *     …
 *     program.file = model_file_default(&program.common);
 *     options_parse(&argp, argc, argv, &program.common, &program);
 *     model_file_finish(&program.file);
 */
#ifndef BENCH_MODEL_FILE_H
#define BENCH_MODEL_FILE_H

#include "bench/options.h"
#include "model/resident.h"
#include "model/weights.h"

struct model_file {
    const struct options *common; /* until model_file_finish() */
    const char *path;             /* --checkpoint */
    int heads, threads;           /* 0: as the file says; one a core */
    enum dtype dtype;             /* that weights are held in */
};

extern const struct argp model_file_argp;
struct model_file model_file_default(const struct options *common);
/* After parsing: refuses a missing path, and more ranks than one; sets the threads of products. */
void model_file_finish(struct model_file *file);

/* errors: those of weights_open(). */
MUST_CHECK enum status model_file_open(struct weights **weights, const struct model_file *file);

/* "weights.bin: 0.84 M parameters, L4 …, held in float32" */
#define MODEL_FILE_BYTES 512
void model_file_describe(
    char text[MODEL_FILE_BYTES], const struct model_file *file, const struct resident *resident);

#endif
