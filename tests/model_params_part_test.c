/* Parts of a model: tensor rank r of M in stage s of P. All parts together are the whole model, bit for
 * bit, and those that stand for a tensor have every element exactly once.
 * ctest: timeout=60
 */
#include <stdlib.h>
#include <string.h>

#include "model/params.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

enum { SEED = 11 };

/* The whole model, and how often parts have brought each element. */
struct whole {
    struct model_host host;
    int *held, *counted; /* [elements], unit after unit */
};

static struct whole whole_make(const struct model_config *config)
{
    struct whole whole = {.host = model_host_make(config, SEED)};
    whole.held = calloc(whole.host.params.elements, sizeof *whole.held);
    whole.counted = calloc(whole.host.params.elements, sizeof *whole.counted);
    if (whole.held == NULL || whole.counted == NULL) abort();
    return whole;
}

static void whole_free(struct whole *whole)
{
    model_host_free(&whole->host);
    free(whole->held);
    free(whole->counted);
}

/* The part's unit, against the whole one's elements. */
static void check_unit(struct whole *whole, const struct params *params, int unit)
{
    size_t count = params->unit_elements[unit], at = 0, last_whole = 0;
    size_t begin = whole->host.unit_begin[unit];
    float *values = malloc(count * sizeof *values + 1);
    if (values == NULL) abort();
    params_initialize(values, params, unit, 0, count, SEED);
    struct params_walk walk = params_walk(params, unit, 0, count);
    for (struct params_run run; params_next_run(&run, &walk); at += run.count) {
        CHECK(run.begin == at && run.count > 0 && run.param->unit == unit);
        CHECK(run.whole_begin >= last_whole);
        last_whole = run.whole_begin + run.count;
        CHECK(last_whole <= whole->host.params.unit_elements[unit]);
        CHECK_MSG(memcmp(values + run.begin, whole->host.weights + begin + run.whole_begin,
                      run.count * sizeof *values) == 0,
            "%s, run at %zu", run.param->name, run.begin);
        for (size_t i = 0; i < run.count; i++) {
            whole->held[begin + run.whole_begin + i]++;
            whole->counted[begin + run.whole_begin + i] += params_stands_for(params, run.param);
        }
    }
    CHECK(at == count);
    free(values);
}

/* The table has the whole one's tensors, and says of each what the runs do. */
static void check_table(const struct params *whole, const struct params *part)
{
    size_t elements = 0;
    CHECK(part->unit_count == whole->unit_count && part->param_count == whole->param_count);
    CHECK(part->whole_elements == whole->elements && whole->whole_elements == whole->elements);
    for (int i = 0; i < part->param_count; i++) {
        const struct param *a = &whole->param[i], *b = &part->param[i];
        CHECK(strcmp(a->name, b->name) == 0 && a->unit == b->unit && a->decays == b->decays);
        CHECK(b->whole_rows == a->rows && b->whole_cols == a->cols && b->whole_offset == a->offset);
        CHECK(b->first_row == a->first_row && b->std == a->std);
    }
    for (int u = 0; u < part->unit_count; u++) {
        CHECK(part->whole_unit_elements[u] == whole->unit_elements[u]);
        elements += part->unit_elements[u];
    }
    CHECK(elements == part->elements);
}

static void check_parts(const struct model_config *config, int tensors, int stages)
{
    struct whole whole = whole_make(config);
    const struct params *all = &whole.host.params;
    for (int s = 0; s < stages; s++)
        for (int r = 0; r < tensors; r++) {
            struct params params;
            const struct params_part part = {r, tensors, s, stages};
            if (!CHECK_OK(params_make_part(&params, config, &part))) continue;
            check_table(all, &params);
            for (int u = 0; u < params.unit_count; u++) check_unit(&whole, &params, u);
            params_free(&params);
        }
    for (size_t i = 0; i < all->elements; i++)
        CHECK_MSG(whole.held[i] >= 1 && whole.counted[i] == 1,
            "M %d P %d: element %zu is held %d times, counted %d times", tensors, stages, i,
            whole.held[i], whole.counted[i]);
    whole_free(&whole);
}

static const struct param *find(const struct params *params, const char *name)
{
    for (int i = 0; i < params->param_count; i++)
        if (strcmp(params->param[i].name, name) == 0) return &params->param[i];
    abort();
}

/* Rank 1 of 2, stage 1 of 3, by hand. */
static void test_one_part(void)
{
    const struct model_config config = {
        .max_t = 8, .vocab = 101, .layers = 4, .heads = 4, .channels = 32};
    struct params params;
    if (!CHECK_OK(params_make_part(&params, &config, &(struct params_part){1, 2, 1, 3}))) return;
    CHECK(params.unit_elements[0] == 0 && params.unit_elements[1] == 0); /* rows, positions */
    CHECK(params.unit_elements[2] == 0 && params.unit_elements[3] > 0);  /* layer 1 of 4 */
    CHECK(params.unit_elements[4] == 0 && params.unit_elements[5] == 0);
    CHECK(params.unit_elements[6] == 0);
    const struct param *qkv = find(&params, "h.1.qkvw"), *proj = find(&params, "h.1.fcprojw");
    CHECK(qkv->rows == 48 && qkv->cols == 32 && qkv->band_count == 3 && qkv->cut == CUT_ROWS);
    CHECK(qkv->band[0].whole_row == 16 && qkv->band[1].whole_row == 48);
    CHECK(qkv->band[2].whole_row == 80 && qkv->band[2].rows == 16);
    CHECK(proj->rows == 32 && proj->cols == 64 && proj->whole_col == 64 && proj->cut == CUT_COLS);
    CHECK(find(&params, "h.1.ln1w")->cut == CUT_NONE && find(&params, "h.1.ln1w")->rows == 32);
    CHECK(!params_stands_for(&params, find(&params, "h.1.ln1w")));
    params_free(&params);
    if (!CHECK_OK(params_make_part(&params, &config, &(struct params_part){1, 2, 2, 3}))) return;
    CHECK(find(&params, "wte")->rows == 51 && find(&params, "wte")->band[0].whole_row == 50);
    CHECK(!params_stands_for(&params, find(&params, "wte"))); /* the first stage's do */
    params_free(&params);
}

int main(void)
{
    const struct model_config configs[] = {
        {.max_t = 8, .vocab = 101, .layers = 4, .heads = 12, .channels = 36},
        {.max_t = 8, .vocab = 101, .layers = 3, .heads = 4, .channels = 32, .vocab_block = 30},
        {.max_t = 8, .vocab = 2, .layers = 2, .heads = 3, .channels = 12}, /* empty parts */
        {.architecture = ARCHITECTURE_LLAMA,
            .max_t = 8,
            .vocab = 101,
            .layers = 3,
            .heads = 24,
            .channels = 48,
            .kv_heads = 12,
            .hidden = 84},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        for (int tensors = 1; tensors <= 4; tensors++)
            for (int stages = 1; stages <= 3; stages++) check_parts(&configs[i], tensors, stages);
    test_one_part();
    return test_result();
}
