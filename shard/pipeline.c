/* pipeline: see pipeline.h. */
#include "shard/pipeline.h"

#include <assert.h>

int pipeline_slots(const struct pipeline_place *place)
{
    assert(place->stage >= 0 && place->stage < place->stage_count && place->micro_count >= 1);
    int after = place->stage_count - place->stage; /* this stage and those behind it */
    return after < place->micro_count ? after : place->micro_count;
}

static struct pipeline_step step_of(
    enum pipeline_work work, int micro, const struct pipeline_place *place)
{
    return (struct pipeline_step){work, micro, micro % pipeline_slots(place)};
}

struct pipeline_step pipeline_step_at(const struct pipeline_place *place, int index)
{
    int micros = place->micro_count, first = place->stage_count - 1 - place->stage;
    assert(index >= 0 && index < pipeline_steps(place));
    if (first > micros) first = micros;
    if (index < first) return step_of(PIPELINE_FORWARD, index, place);
    if (index >= 2 * micros - first) return step_of(PIPELINE_BACKWARD, index - micros, place);
    int turn = index - first;
    if (turn % 2 == 0) return step_of(PIPELINE_FORWARD, first + turn / 2, place);
    return step_of(PIPELINE_BACKWARD, turn / 2, place);
}

double pipeline_bubble(const struct pipeline_place *place)
{
    double others = place->stage_count - 1;
    return others / (place->micro_count + others);
}
