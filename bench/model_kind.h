/* model_kind: in which format weights are that a user names by a path.
 *
 *   checkpoint   a directory of `ringzero train`, of any split     shard/checkpoint_weights.h
 *   safetensors  *.safetensors, or a folder of Hugging Face's      model/weights.h
 *   llmc         llm.c's *.bin, or what begins as one              model/weights.h
 */
#ifndef BENCH_MODEL_KIND_H
#define BENCH_MODEL_KIND_H

#include <limits.h>

#include "model/weights.h"

struct model_kind {
    const char *name, *ending; /* ending: NULL of a directory */
    const struct weights_format *format;
};

extern const struct model_kind model_kind_checkpoint, model_kind_safetensors, model_kind_llmc;

/* NULL: none is called so. */
const struct model_kind *model_kind_named(const char *name);
/* NULL: the path's ending tells nothing. */
const struct model_kind *model_kind_of_ending(const char *path);
/* What is there: by its being a directory, its ending, what it begins with; NULL: none of these tells.
 * path: where the weights are, which is in `given` where that is a folder of Hugging Face's. */
const struct model_kind *model_kind_found(char path[PATH_MAX], const char *given);

#endif
