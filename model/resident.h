/* resident: a whole model's weights in the memory of one process, read from a file, for whoever
 * only computes forwards: text (decode.h), evaluation (model.h).
 *
 *     TRY(resident_load(&resident, weights, DTYPE_FLOAT32, device));
 *     struct model_hooks hooks = resident_hooks(resident);
 *     TRY(decoder_open(&decoder, resident_params(resident), &hooks, …));
 */
#ifndef MODEL_RESIDENT_H
#define MODEL_RESIDENT_H

#include "model/hooks.h"
#include "model/params.h"
#include "model/weights.h"
#include "verbs/device.h"
#include "verbs/dtype.h"

struct resident;

/* Reads every parameter of an opened file, and leaves that open. dtype: in which weights are held,
 * float32, bfloat16 or float16: rounded to nearest even where that is narrower. Holds elements ·
 * dtype_bytes (MEMORY_WEIGHTS). device: a host; outlives it. errors: the file's, SYSTEM. cost:
 * reads the file once; float32 values are put in place, others pass through one tensor's worth of
 * float32. */
MUST_CHECK enum status resident_load(
    struct resident **resident, struct weights *from, enum dtype dtype, struct device *device);
/* NULL is accepted. */
void resident_close(struct resident *resident);

const struct params *resident_params(const struct resident *resident);
enum dtype resident_dtype(const struct resident *resident);

/* Only enter(), for forwards: units are lent where they lie. resident outlives them. */
struct model_hooks resident_hooks(struct resident *resident);

#endif
