/* resident: see resident.h.
 *
 *   | unit 0 | unit 1 | …   each as params.h lays it out, at a multiple of 64 bytes
 *
 * Invariant: nothing is written after loading, so any number of users may be lent the same unit.
 */
#include "model/resident.h"

#include <assert.h>
#include <stdlib.h>

#include "model/ops_host.h"

#define LINE ((size_t)64)

struct resident {
    struct params params;
    enum dtype dtype;
    struct device *device;
    struct span memory;
    size_t *begin; /* [unit_count], bytes */
};

static enum status place(struct resident *resident)
{
    const struct params *params = &resident->params;
    size_t bytes = 0;
    resident->begin = calloc((size_t)params->unit_count, sizeof *resident->begin);
    if (resident->begin == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for a table of %d units", params->unit_count);
    for (int u = 0; u < params->unit_count; u++) {
        resident->begin[u] = bytes;
        bytes += (params->unit_elements[u] * dtype_bytes(resident->dtype) + LINE - 1) / LINE * LINE;
    }
    return memory_alloc(&resident->memory, bytes, MEMORY_WEIGHTS, resident->device);
}

static enum status read_param(
    float *room, const struct param *param, struct weights *from, struct resident *resident)
{
    char *to = (char *)resident->memory.ptr + resident->begin[param->unit] +
               param->offset * dtype_bytes(resident->dtype);
    if (room == NULL) return weights_read((float *)(void *)to, param, from);
    TRY(weights_read(room, param, from));
    narrow(to, room, resident->dtype, param->rows * param->cols);
    return STATUS_OK;
}

/* Values of another dtype are read into room for the largest tensor first. */
static enum status read_all(struct weights *from, struct resident *resident)
{
    const struct params *params = &resident->params;
    size_t most = 0;
    float *room = NULL;
    for (int p = 0; p < params->param_count; p++) {
        size_t elements = params->param[p].rows * params->param[p].cols;
        if (elements > most) most = elements;
    }
    if (resident->dtype != DTYPE_FLOAT32) {
        room = malloc(most * sizeof *room);
        if (room == NULL)
            return FAIL(STATUS_SYSTEM, "no memory for a tensor of %zu elements", most);
    }
    enum status status = STATUS_OK;
    for (int p = 0; p < params->param_count && status == STATUS_OK; p++)
        status = read_param(room, &params->param[p], from, resident);
    free(room);
    return status;
}

enum status resident_load(
    struct resident **out, struct weights *from, enum dtype dtype, struct device *device)
{
    assert(device_kind(device) == MEMORY_HOST);
    enum status status = STATUS_OK;
    *out = NULL;
    struct resident *resident = calloc(1, sizeof *resident);
    if (resident == NULL) return FAIL(STATUS_SYSTEM, "no memory for a model's record");
    resident->dtype = dtype;
    resident->device = device;
    TRY_GOTO(params_make(&resident->params, &from->config));
    TRY_GOTO(place(resident));
    TRY_GOTO(read_all(from, resident));
    *out = resident;
    return STATUS_OK;
fail:
    resident_close(resident);
    return status;
}

void resident_close(struct resident *resident)
{
    if (resident == NULL) return;
    memory_free(&resident->memory, MEMORY_WEIGHTS, resident->device);
    params_free(&resident->params);
    free(resident->begin);
    free(resident);
}

const struct params *resident_params(const struct resident *resident)
{
    return &resident->params;
}

enum dtype resident_dtype(const struct resident *resident)
{
    return resident->dtype;
}

static enum status lend(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    const struct resident *resident = context;
    assert(use == UNIT_FORWARD);
    (void)use;
    size_t bytes = resident->params.unit_elements[unit] * dtype_bytes(resident->dtype);
    view->weights = span_part(resident->memory, resident->begin[unit], bytes);
    return STATUS_OK;
}

struct model_hooks resident_hooks(struct resident *resident)
{
    return (struct model_hooks){.context = resident, .enter = lend};
}
