/* unit: see unit.h. */
#include "model/unit.h"

#include <assert.h>

#include "model/ops_profile.h"

/* Row by row where a call is a function call; a launch for each row would cost more than all rows. */
static bool goes_by_rows(const struct unit *unit, const struct unit_room *room)
{
    const struct unit_lookup *lookup = &unit->lookup;
    return lookup->tokens != NULL && lookup->token_count < lookup->rows && !room->context->ops->queued;
}

/* Where the row of token i begins in the unit; false: it is not of this unit. */
static bool row_of(size_t *element, size_t i, const struct unit_lookup *lookup)
{
    size_t row = (size_t)lookup->tokens[i] - lookup->first_row; /* wraps below first_row */
    *element = row * lookup->cols;
    return row < lookup->rows;
}

static void widen_weights(const struct unit *unit, const struct unit_room *room)
{
    const void *lent = unit->lent_weights;
    const struct ops_context *context = room->context;
    const struct unit_lookup *lookup = &unit->lookup;
    enum dtype dtype = room->weights_dtype;
    size_t at = 0;
    if (!goes_by_rows(unit, room))
        context->ops->widen(room->weights, lent, dtype, unit->elements, context);
    else
        for (size_t i = 0; i < lookup->token_count; i++)
            if (row_of(&at, i, lookup))
                context->ops->widen(ops_at(room->weights, at, context),
                    (const char *)lent + at * dtype_bytes(dtype), dtype, lookup->cols, context);
}

/* A row that tokens name twice is added the first time, and then is zeros. */
static void round_rows(const struct unit *unit, const struct unit_room *room)
{
    const struct ops_context *context = room->context;
    const struct unit_lookup *lookup = &unit->lookup;
    enum dtype dtype = room->gradients_dtype;
    char *sum = unit->lent_gradients.ptr;
    size_t at = 0;
    for (size_t i = 0; i < lookup->token_count; i++)
        if (row_of(&at, i, lookup))
            context->ops->narrow_add(sum + at * dtype_bytes(dtype), unit->gradients + at, dtype,
                lookup->cols, context);
}

static void clear_gradients(const struct unit *unit, const struct unit_room *room)
{
    room->context->ops->clear(unit->lent_gradients.ptr, unit->lent_gradients.bytes, room->context);
}

/* Own memory into elements [begin, begin + count). */
static void round_range(
    size_t begin, size_t count, const struct unit *unit, const struct unit_room *room)
{
    const struct ops_context *context = room->context;
    enum dtype dtype = room->gradients_dtype;
    void *sum = (char *)unit->lent_gradients.ptr + begin * dtype_bytes(dtype);
    if (unit->first) context->ops->narrow_first(sum, unit->gradients, dtype, count, context);
    else context->ops->narrow_add(sum, unit->gradients, dtype, count, context);
}

static void round_gradients(const struct unit *unit, const struct unit_room *room)
{
    if (!goes_by_rows(unit, room)) {
        round_range(0, unit->elements, unit, room);
        return;
    }
    if (unit->first) clear_gradients(unit, room);
    round_rows(unit, room);
}

/* lookup in *unit is set already. */
static enum status enter(
    struct unit *unit, int number, enum unit_use use, size_t elements, const struct unit_room *room)
{
    const struct ops_context *context = room->context;
    struct unit_view view = {0};
    unit->number = number;
    unit->use = use;
    unit->elements = elements;
    ops_profile_enter(number, use, context->profile);
    TRY(room->hooks->enter(room->hooks->context, &view, number, use));
    if (use != UNIT_BACKWARD_GRAD) {
        assert(view.weights.ptr != NULL);
        assert(view.weights.bytes == elements * dtype_bytes(room->weights_dtype));
        unit->lent_weights = unit->weights = view.weights.ptr;
        if (room->weights_dtype != context->compute) {
            if (!unit->weights_by_parts) widen_weights(unit, room);
            unit->weights = room->weights;
        }
    }
    ops_profile_weights(unit->weights, 0, context->profile);
    if (use != UNIT_FORWARD) {
        assert(view.gradients.ptr != NULL);
        assert(view.gradients.bytes == elements * dtype_bytes(room->gradients_dtype));
        unit->lent_gradients = view.gradients;
        unit->first = view.first;
        unit->gradients = view.gradients.ptr;
        if (room->gradients_dtype != DTYPE_FLOAT32) unit->gradients = room->gradients;
        else if (view.first) clear_gradients(unit, room);
    }
    return STATUS_OK;
}

enum status unit_enter(
    struct unit *unit, int number, enum unit_use use, size_t elements, const struct unit_room *room)
{
    *unit = (struct unit){0};
    return enter(unit, number, use, elements, room);
}

enum status unit_enter_parts(
    struct unit *unit, int number, enum unit_use use, size_t elements, const struct unit_room *room)
{
    bool called = !room->context->ops->queued;
    *unit = (struct unit){
        .weights_by_parts = called && room->weights_dtype != room->context->compute,
        .gradients_by_parts = called && room->gradients_dtype != DTYPE_FLOAT32,
    };
    return enter(unit, number, use, elements, room);
}

void unit_widen(size_t begin, size_t count, struct unit *unit, const struct unit_room *room)
{
    const struct ops_context *context = room->context;
    enum dtype dtype = room->weights_dtype;
    if (!unit->weights_by_parts) return;
    assert(unit->use != UNIT_BACKWARD_GRAD && begin + count <= unit->elements);
    context->ops->widen(room->weights, (const char *)unit->lent_weights + begin * dtype_bytes(dtype),
        dtype, count, context);
    ops_profile_weights(room->weights, begin, context->profile);
}

void unit_round(size_t begin, size_t count, struct unit *unit, const struct unit_room *room)
{
    if (!unit->gradients_by_parts) return;
    assert(unit->use != UNIT_FORWARD && begin + count <= unit->elements);
    round_range(begin, count, unit, room);
}

enum status unit_enter_lookup(struct unit *unit, int number, enum unit_use use,
    const struct unit_lookup *lookup, const struct unit_room *room)
{
    *unit = (struct unit){.lookup = *lookup};
    return enter(unit, number, use, lookup->rows * lookup->cols, room);
}

enum status unit_leave(struct unit *unit, const struct unit_room *room)
{
    const struct model_hooks *hooks = room->hooks;
    if (unit->use != UNIT_FORWARD) {
        bool rounds = room->gradients_dtype != DTYPE_FLOAT32 && !unit->gradients_by_parts;
        if (rounds) round_gradients(unit, room);
        if (hooks->grad_ready != NULL) TRY(hooks->grad_ready(hooks->context, unit->number));
    }
    unit->weights = NULL;
    unit->gradients = NULL;
    if (hooks->leave != NULL) TRY(hooks->leave(hooks->context, unit->number, unit->use));
    ops_profile_leave(room->context->profile);
    return STATUS_OK;
}
