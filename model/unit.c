/* unit: see unit.h. */
#include "model/unit.h"

#include <assert.h>

#include "model/ops_profile.h"

enum status unit_enter(
    struct unit *unit, int number, enum unit_use use, size_t elements, const struct unit_room *room)
{
    const struct ops_context *context = room->context;
    struct unit_view view = {0};
    *unit = (struct unit){.number = number, .use = use, .elements = elements};
    ops_profile_enter(number, use, context->profile);
    TRY(room->hooks->enter(room->hooks->context, &view, number, use));
    if (use != UNIT_BACKWARD_GRAD) {
        assert(view.weights.ptr != NULL);
        assert(view.weights.bytes == elements * dtype_bytes(room->weights_dtype));
        unit->weights = view.weights.ptr;
        if (room->weights_dtype != context->compute) {
            context->ops->widen(
                room->weights, view.weights.ptr, room->weights_dtype, elements, context);
            unit->weights = room->weights;
        }
    }
    ops_profile_weights(unit->weights, context->profile);
    if (use != UNIT_FORWARD) {
        assert(view.gradients.ptr != NULL);
        assert(view.gradients.bytes == elements * dtype_bytes(room->gradients_dtype));
        unit->lent_gradients = view.gradients;
        unit->gradients = view.gradients.ptr;
        if (room->gradients_dtype != DTYPE_FLOAT32) {
            context->ops->clear(room->gradients, elements * sizeof(float), context);
            unit->gradients = room->gradients;
        }
    }
    return STATUS_OK;
}

enum status unit_leave(struct unit *unit, const struct unit_room *room)
{
    const struct model_hooks *hooks = room->hooks;
    const struct ops_context *context = room->context;
    if (unit->use != UNIT_FORWARD) {
        if (room->gradients_dtype != DTYPE_FLOAT32)
            context->ops->narrow_add(unit->lent_gradients.ptr, unit->gradients,
                room->gradients_dtype, unit->elements, context);
        if (hooks->grad_ready != NULL) TRY(hooks->grad_ready(hooks->context, unit->number));
    }
    unit->weights = NULL;
    unit->gradients = NULL;
    if (hooks->leave != NULL) TRY(hooks->leave(hooks->context, unit->number, unit->use));
    ops_profile_leave(context->profile);
    return STATUS_OK;
}
