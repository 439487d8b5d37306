/* numbers: ranges of float32, bfloat16 or float16, converted and added on the host. Rounding is to
 * nearest, ties to even (dtype.h). No overlap; not collective; any thread.
 */
#ifndef OPTIM_NUMBERS_H
#define OPTIM_NUMBERS_H

#include <stddef.h>

#include "verbs/dtype.h"

/* to (count) float32 = from (count) of dtype, exactly; and back, rounded. */
void numbers_widen(float *to, const void *from, enum dtype dtype, size_t count);
void numbers_narrow(void *to, const float *from, enum dtype dtype, size_t count);

/* to (count) = round(float32(to) + float32(from)), both of dtype. */
void numbers_add(void *to, const void *from, enum dtype dtype, size_t count);

#endif
