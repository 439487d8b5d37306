/* safetensors: the container that Hugging Face keeps tensors in.
 *
 *   8 bytes   n, little-endian
 *   n bytes   JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …,
 *                    "__metadata__": {"KEY": "TEXT"}}
 *   the rest  data; offsets count from its begin
 *
 * Invariant: whatever is in the file, a tensor that is found lies within it, and has the bytes that its
 * shape and dtype say.
 */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "verbs/dtype.h"
#include "verbs/status.h"

#define SAFETENSORS_DIMS 4

struct safetensors_tensor {
    const char *name;
    enum dtype dtype; /* DTYPE_COUNT: one that this program does not know; data is NULL then */
    int dims;
    uint64_t shape[SAFETENSORS_DIMS];
    const void *data; /* in the mapped file; not aligned */
    size_t bytes;
};

struct safetensors;

/* Maps a file. errors: DATA naming file, tensor, field, found and expected; SYSTEM. */
MUST_CHECK enum status safetensors_open(struct safetensors **file, const char *path);
void safetensors_close(struct safetensors *file);

int safetensors_count(const struct safetensors *file);
const struct safetensors_tensor *safetensors_at(int index, const struct safetensors *file);
/* NULL: there is none of this name. */
const struct safetensors_tensor *safetensors_find(const char *name, const struct safetensors *file);
/* NULL: no such key. */
const char *safetensors_metadata(const char *key, const struct safetensors *file);

/* Writes length and JSON for tensors whose data will follow in this order; data and bytes are not
 * looked at. metadata: key, text, key, text, …, NULL. *data_begin: where in the file the data begin; a
 * multiple of 8. errors: SYSTEM. */
MUST_CHECK enum status safetensors_write_header(uint64_t *data_begin, FILE *file,
    const struct safetensors_tensor *tensors, int count, const char *const *metadata);

#endif
