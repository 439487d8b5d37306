/* checkpoint_manifest_cover: whether the files have every element of the model: see
 * checkpoint_manifest.h.
 *
 * Invariant: where it passes, the runs of all ranges, sorted by where they begin, lie end to end in
 * each unit of the whole model. Numbers that are merely as many as expected would not tell a gap
 * beside an overlap of the same size.
 *
 *   unit of the whole model   |■■■■|■■|■■■■|■■|     tensor ranks 0 and 1 have columns of each row
 *   shards[0].ranges[4]        ■■■■    ■■■■          its runs
 *   shards[1].ranges[4]             ■■      ■■
 *
 * One unit's runs are held at a time.
 */
#include <stdlib.h>

#include "shard/checkpoint_manifest.h"

/* A range of the manifest: shards[shard].ranges[range]. */
struct place {
    int unit, shard, range;
};

/* Elements [begin, end) of a unit of the whole model, and which range has them. */
struct claim {
    size_t begin, end;
    struct place by;
};

struct claims {
    struct claim *claim;
    size_t count, room;
};

static int by_unit(const void *left, const void *right)
{
    const struct place *a = left, *b = right;
    if (a->unit != b->unit) return a->unit < b->unit ? -1 : 1;
    if (a->shard != b->shard) return a->shard < b->shard ? -1 : 1;
    return (a->range > b->range) - (a->range < b->range);
}

static int by_begin(const void *left, const void *right)
{
    const struct claim *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return by_unit(&a->by, &b->by);
}

/* All ranges, those of one unit beside each other. */
static enum status list_places(struct place **places, size_t *count, const struct manifest *manifest)
{
    size_t all = 0, at = 0;
    for (int s = 0; s < manifest->shard_count; s++) all += (size_t)manifest->shard[s].range_count;
    *count = all;
    *places = calloc(all + 1, sizeof **places);
    if (*places == NULL) return FAIL(STATUS_SYSTEM, "no memory for a list of %zu ranges", all);
    for (int s = 0; s < manifest->shard_count; s++)
        for (int r = 0; r < manifest->shard[s].range_count; r++)
            (*places)[at++] = (struct place){manifest->shard[s].range[r].unit, s, r};
    qsort(*places, all, sizeof **places, by_unit);
    return STATUS_OK;
}

static enum status append(struct claims *claims, const struct claim *claim)
{
    if (claims->count == claims->room) {
        size_t room = 2 * claims->room + 64;
        struct claim *more = realloc(claims->claim, room * sizeof *more);
        if (more == NULL) return FAIL(STATUS_SYSTEM, "no memory for %zu runs of a unit", room);
        claims->claim = more;
        claims->room = room;
    }
    claims->claim[claims->count++] = *claim;
    return STATUS_OK;
}

/* The runs of these ranges of one unit: of all, or of so many that they have more than `elements`
 * between them, which is enough to find two that overlap. */
static enum status list_claims(struct claims *claims, const struct place *places, size_t count,
    size_t elements, const struct manifest *manifest)
{
    size_t claimed = 0;
    claims->count = 0;
    for (size_t i = 0; i < count; i++) {
        const struct manifest_shard *shard = &manifest->shard[places[i].shard];
        const struct manifest_range *range = &shard->range[places[i].range];
        struct params_walk walk = params_walk(&manifest->part[shard->part], range->unit,
            range->begin, range->begin + range->count);
        for (struct params_run run; claimed <= elements && params_next_run(&run, &walk);) {
            struct claim claim = {run.whole_begin, run.whole_begin + run.count, places[i]};
            TRY(append(claims, &claim));
            claimed += run.count;
        }
    }
    return STATUS_OK;
}

static enum status fail_overlap(const struct claim *a, const struct claim *b, const char *path,
    const struct manifest *manifest)
{
    size_t end = a->end < b->end ? a->end : b->end;
    return FAIL(STATUS_DATA,
        "%s: elements %zu to %zu of unit %d are in shards[%d].ranges[%d] (%s) and in "
        "shards[%d].ranges[%d] (%s), expected in one of them: it is damaged",
        path, b->begin, end - 1, a->by.unit, a->by.shard, a->by.range,
        manifest->shard[a->by.shard].name, b->by.shard, b->by.range,
        manifest->shard[b->by.shard].name);
}

static enum status fail_gap(size_t begin, size_t end, int unit, const char *path)
{
    return FAIL(STATUS_DATA,
        "%s: elements %zu to %zu of unit %d are in none of its files, expected each in one: it is "
        "damaged", path, begin, end - 1, unit);
}

/* Whether the claims lie end to end, from the unit's begin to its end. */
static enum status check_unit(struct claims *claims, int unit, size_t elements, const char *path,
    const struct manifest *manifest)
{
    size_t at = 0;
    if (claims->count > 0) qsort(claims->claim, claims->count, sizeof *claims->claim, by_begin);
    for (size_t i = 0; i < claims->count; i++) {
        const struct claim *claim = &claims->claim[i];
        if (claim->begin > at) return fail_gap(at, claim->begin, unit, path);
        if (claim->begin < at) return fail_overlap(claim - 1, claim, path, manifest);
        at = claim->end;
    }
    return at == elements ? STATUS_OK : fail_gap(at, elements, unit, path);
}

static enum status check_units(struct claims *claims, const struct place *places, size_t count,
    const char *path, const struct manifest *manifest)
{
    struct params whole;
    size_t begin = 0;
    TRY(params_make(&whole, &manifest->model));
    enum status status = STATUS_OK;
    for (int unit = 0; unit < whole.unit_count && status == STATUS_OK; unit++) {
        size_t end = begin, elements = whole.unit_elements[unit];
        while (end < count && places[end].unit == unit) end++;
        status = list_claims(claims, places + begin, end - begin, elements, manifest);
        if (status == STATUS_OK) status = check_unit(claims, unit, elements, path, manifest);
        begin = end;
    }
    params_free(&whole);
    return status;
}

enum status manifest_check_cover(const struct manifest *manifest, const char *directory)
{
    char path[CHECKPOINT_PATH_BYTES];
    struct place *places;
    struct claims claims = {0};
    size_t count;
    TRY(path_join(path, directory, MANIFEST_NAME));
    TRY(list_places(&places, &count, manifest));
    enum status status = check_units(&claims, places, count, path, manifest);
    free(claims.claim);
    free(places);
    return status;
}
