/* uses: see uses.h. The order is that of the table at the head of gpt2.c; tests compare the two call by call. */
#include "model/uses.h"

static void put(
    struct model_use *uses, int *count, int unit, enum unit_use use, const struct params *params)
{
    if (params->unit_elements[unit] == 0) return;
    if (uses != NULL) uses[*count] = (struct model_use){unit, use};
    *count += 1;
}

int gpt2_uses(struct model_use *uses, const struct params *params, bool backward)
{
    int count = 0, rows = params->embedding_units, blocks = params->first_block_unit;
    for (int u = 0; u < rows; u++) put(uses, &count, u, UNIT_FORWARD, params);
    put(uses, &count, params->positions_unit, UNIT_FORWARD, params);
    for (int l = 0; l < params->config.layers; l++)
        put(uses, &count, blocks + l, UNIT_FORWARD, params);
    put(uses, &count, params->final_norm_unit, UNIT_FORWARD, params);
    for (int u = 0; u < rows; u++) put(uses, &count, u, UNIT_FORWARD, params);
    if (!backward) return count;
    for (int u = rows; u-- > 0;) put(uses, &count, u, UNIT_BACKWARD, params);
    put(uses, &count, params->final_norm_unit, UNIT_BACKWARD, params);
    for (int l = params->config.layers; l-- > 0;)
        put(uses, &count, blocks + l, UNIT_BACKWARD, params);
    put(uses, &count, params->positions_unit, UNIT_BACKWARD_GRAD, params);
    for (int u = rows; u-- > 0;) put(uses, &count, u, UNIT_BACKWARD_GRAD, params);
    return count;
}
