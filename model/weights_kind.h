/* weights_kind: what the formats share: the kinds of GPT-2's tensors, and values of 16 bits. */
#ifndef MODEL_WEIGHTS_KIND_H
#define MODEL_WEIGHTS_KIND_H

#include <stdio.h>

#include "model/weights.h"

/* In llm.c's order. */
enum weights_kind {
    KIND_WTE, KIND_WPE, KIND_LN1W, KIND_LN1B, KIND_QKVW, KIND_QKVB, KIND_ATTPROJW, KIND_ATTPROJB,
    KIND_LN2W, KIND_LN2B, KIND_FCW, KIND_FCB, KIND_FCPROJW, KIND_FCPROJB, KIND_LNFW, KIND_LNFB,
    KIND_COUNT
};

/* Of a parameter of GPT-2. */
enum weights_kind weights_kind(const struct param *param);

/* INVALID where the model is none of GPT-2's. */
MUST_CHECK enum status weights_check_gpt2(const struct weights *weights);

/* to = float32(from); from need not be aligned. dtype: float32, float16, bfloat16 or float64. */
void weights_widen(float *to, const void *from, size_t count, enum dtype dtype);

/* The file ….part, open for writing; NULL and *status where it cannot be. */
FILE *weights_open_part(enum status *status, const struct weights *weights);
/* Values at a byte of it. */
MUST_CHECK enum status weights_put(
    FILE *file, uint64_t at, const float *values, size_t count, const struct weights *weights);

/* Closes it, on the disk; then it has its name. */
MUST_CHECK enum status weights_name_part(FILE *file, const struct weights *weights);

/* Removes it, unless the file is whole or was only read. */
void weights_drop_part(const struct weights *weights);

#endif
