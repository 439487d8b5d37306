/* layout: see layout.h. */
#include "shard/layout.h"

#include <assert.h>
#include <stdlib.h>

/* The least number that both divide. */
static size_t common_multiple(size_t a, size_t b)
{
    size_t multiple = a;
    while (multiple % b != 0) multiple += a;
    return multiple;
}

enum status layout_make(struct layout *layout, const struct params *params, int nranks)
{
    assert(nranks >= 1);
    *layout = (struct layout){.nranks = nranks, .unit_count = params->unit_count};
    layout->unit = calloc((size_t)params->unit_count, sizeof *layout->unit);
    if (layout->unit == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for a layout of %d units", params->unit_count);
    size_t n = (size_t)nranks, step = common_multiple(n, LAYOUT_ALIGNMENT);
    for (int u = 0; u < params->unit_count; u++) {
        size_t elements = params->unit_elements[u];
        layout->unit[u] = (struct layout_unit){elements, (elements + n - 1) / n, layout->elements};
        layout->elements += (layout_padded(layout, u) + step - 1) / step * step;
    }
    return STATUS_OK;
}

void layout_free(struct layout *layout)
{
    free(layout->unit);
    *layout = (struct layout){0};
}

size_t layout_padded(const struct layout *layout, int unit)
{
    return (size_t)layout->nranks * layout->unit[unit].shard;
}

struct layout_range layout_owned(const struct layout *layout, int unit, int rank)
{
    assert(rank >= 0 && rank < layout->nranks);
    size_t elements = layout->unit[unit].elements, shard = layout->unit[unit].shard;
    size_t begin = (size_t)rank * shard, end = begin + shard;
    if (begin > elements) begin = elements;
    if (end > elements) end = elements;
    return (struct layout_range){begin, end - begin};
}
