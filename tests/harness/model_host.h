/* model_host: the simplest host of a model: all parameters and gradients of one rank in flat arrays, lent in place.
 */
#ifndef TESTS_MODEL_HOST_H
#define TESTS_MODEL_HOST_H

#include "model/model.h"
#include "model/hooks.h"
#include "model/params.h"

struct model_host {
    struct params params;
    float *weights, *gradients; /* params.elements each, unit after unit */
    size_t *unit_begin;         /* [unit_count] */
};

/* Weights from params_initialize(seed), gradients 0. Ends the test program on an error. */
struct model_host model_host_make(const struct model_config *config, uint64_t seed);
void model_host_free(struct model_host *host);

/* float32 throughout, nothing computed again. */
struct model_run model_host_run(int batch, int t);

/* Only enter(), lending in place. */
struct model_hooks model_host_hooks(struct model_host *host);

#endif
