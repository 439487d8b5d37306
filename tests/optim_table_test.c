/* The host's table of AdamW: whatever the dtypes, an element has the bits of adam_step() on the
 * widened gradient, and lent weights those of one rounding; sums and squares likewise. Ranges about
 * the sizes that are cut, with guards.
 *
 * ctest: timeout=60
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optim/adam.h"
#include "optim/norm.h"
#include "optim/numbers.h"
#include "tests/harness/harness.h"
#include "tests/harness/reference.h"

enum { MOST = 2 * 4096 + 5, GUARD = 4 };

static const struct adam_context host = {.ops = &adam_ops_host};

struct numbers {
    float w[MOST], m[MOST], v[MOST], wide[MOST];
    uint16_t g[MOST], lent[MOST + GUARD], sum[MOST + GUARD];
};

static void fill(struct numbers *n, enum dtype dtype)
{
    for (size_t i = 0; i < MOST; i++) {
        float x = (float)((double)(int64_t)reference_word(1, i) * 0x1p-63);
        n->w[i] = x;
        n->m[i] = 0.25f * x;
        n->v[i] = x * x;
        n->wide[i] = (float)((double)(int64_t)reference_word(2, i) * 0x1p-63);
    }
    if (dtype == DTYPE_FLOAT32) return;
    numbers_narrow(n->g, n->wide, dtype, MOST);
    numbers_widen(n->wide, n->g, dtype, MOST);
    memset(n->lent, 0x5a, sizeof n->lent);
    memset(n->sum, 0x5a, sizeof n->sum);
    memcpy(n->sum, n->g, MOST * sizeof *n->sum);
}

static void test_step(size_t count, enum dtype gradients, enum dtype lent)
{
    struct numbers *found = malloc(sizeof *found), *expected = malloc(sizeof *expected);
    if (found == NULL || expected == NULL) abort();
    fill(found, gradients != DTYPE_FLOAT32 ? gradients : DTYPE_BFLOAT16);
    memcpy(expected, found, sizeof *found);
    const struct adam_update update = {.lr = 0.01f,
        .gradient_scale = 0.7f,
        .decay = 0.1f,
        .t = 3,
        .config = adam_config_default()};
    const struct adam_range range = {found->w, found->m, found->v,
        gradients == DTYPE_FLOAT32 ? (void *)found->wide : found->g, gradients,
        lent == DTYPE_FLOAT32 ? NULL : found->lent, lent, count};
    host.ops->step(&range, &update, &host);
    for (size_t i = 0; i < count; i++) {
        adam_step(&expected->w[i], &expected->m[i], &expected->v[i], &expected->wide[i], 1,
            update.lr, update.gradient_scale, update.decay, update.t, &update.config);
        if (lent != DTYPE_FLOAT32) numbers_narrow(&expected->lent[i], &expected->w[i], lent, 1);
    }
    CHECK_MSG(memcmp(found, expected, sizeof *found) == 0, "%zu of %s, lent %s", count,
        dtype_name(gradients), dtype_name(lent));
    free(found), free(expected);
}

static float *floats(size_t count, uint64_t seed)
{
    float *made = calloc(count, sizeof *made);
    if (made == NULL) abort();
    for (size_t i = 0; i < count; i++)
        made[i] = (float)((double)(int64_t)reference_word(seed, i) * 0x1p-63);
    return made;
}

/* So many bfloat16 weights that they are streamed past the caches, from an odd place on: the bits of
 * float32's step, rounded. */
static void test_streamed_step(void)
{
    enum { COUNT = (1 << 20) + 77, SHIFT = 3 };
    float *w = floats(COUNT, 1), *m = floats(COUNT, 2), *v = floats(COUNT, 3);
    float *w_expected = floats(COUNT, 1), *m_expected = floats(COUNT, 2);
    float *g = floats(COUNT, 4), *v_expected = floats(COUNT, 3);
    uint16_t *narrow = calloc(COUNT, sizeof *narrow), *expected = calloc(COUNT, sizeof *expected);
    uint16_t *lent = calloc(COUNT + 2 * SHIFT, sizeof *lent);
    if (narrow == NULL || expected == NULL || lent == NULL) abort();
    for (size_t i = 0; i < COUNT; i++) v[i] = v_expected[i] = v[i] * v[i];
    numbers_narrow(narrow, g, DTYPE_BFLOAT16, COUNT);
    numbers_widen(g, narrow, DTYPE_BFLOAT16, COUNT);
    const struct adam_update update = {.lr = 0.01f,
        .gradient_scale = 0.7f,
        .decay = 0.1f,
        .t = 3,
        .config = adam_config_default()};
    const struct adam_range range = {
        w, m, v, narrow, DTYPE_BFLOAT16, lent + SHIFT, DTYPE_BFLOAT16, COUNT};
    host.ops->step(&range, &update, &host);
    adam_step(w_expected, m_expected, v_expected, g, COUNT, update.lr, update.gradient_scale,
        update.decay, update.t, &update.config);
    numbers_narrow(expected, w_expected, DTYPE_BFLOAT16, COUNT);
    CHECK(memcmp(w, w_expected, COUNT * sizeof *w) == 0);
    CHECK(memcmp(m, m_expected, COUNT * sizeof *m) == 0);
    CHECK(memcmp(v, v_expected, COUNT * sizeof *v) == 0);
    CHECK(memcmp(lent + SHIFT, expected, COUNT * sizeof *lent) == 0);
    for (size_t i = 0; i < SHIFT; i++) CHECK(lent[i] == 0 && lent[SHIFT + COUNT + i] == 0);
    free(w), free(m), free(v), free(w_expected), free(m_expected), free(v_expected), free(g);
    free(narrow), free(expected), free(lent);
}

static void test_sums(size_t count, enum dtype dtype)
{
    struct numbers *n = malloc(sizeof *n);
    if (n == NULL) abort();
    fill(n, dtype);
    double squares = NAN, expected = 0.0;
    host.ops->squares(&squares, n->g, dtype, count, &host);
    host.ops->add(n->sum, n->g, dtype, count, &host);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t twice;
        float sum = n->wide[i] + n->wide[i];
        numbers_narrow(&twice, &sum, dtype, 1);
        wrong += n->sum[i] != twice;
        expected += (double)n->wide[i] * (double)n->wide[i];
    }
    CHECK_MSG(wrong == 0, "%zu of %zu sums of %s", wrong, count, dtype_name(dtype));
    CHECK(count == MOST || n->sum[count] == n->g[count]);
    CHECK(n->sum[MOST] == 0x5a5a);
    CHECK_MSG(
        fabs(squares - expected) <= 1e-12 * expected, "%.17g, expected %.17g", squares, expected);
    free(n);
}

/* Without float32 weights: lent itself is widened, updated, rounded. */
static void test_lent_alone(size_t count, enum dtype lent)
{
    struct numbers *found = malloc(sizeof *found), *expected = malloc(sizeof *expected);
    if (found == NULL || expected == NULL) abort();
    fill(found, lent);
    numbers_narrow(found->lent, found->w, lent, MOST);
    memcpy(expected, found, sizeof *found);
    numbers_widen(expected->w, expected->lent, lent, MOST);
    const struct adam_update update = {
        .lr = 0.01f, .gradient_scale = 0.7f, .t = 3, .config = adam_config_default()};
    const struct adam_range range = {
        NULL, found->m, found->v, found->wide, DTYPE_FLOAT32, found->lent, lent, count};
    host.ops->step(&range, &update, &host);
    adam_step(expected->w, expected->m, expected->v, expected->wide, count, update.lr,
        update.gradient_scale, 0.0f, update.t, &update.config);
    numbers_narrow(expected->lent, expected->w, lent, count);
    memcpy(found->w, expected->w, sizeof found->w); /* which the table has not seen */
    CHECK_MSG(
        memcmp(found, expected, sizeof *found) == 0, "%zu of %s alone", count, dtype_name(lent));
    free(found), free(expected);
}

/* What a step by chance makes of weights that it does not move: the two neighbours in bfloat16, the
 * upper one as often as is near, and the same for the same seed, step and index, however cut. */
static void test_chance(void)
{
    enum { COUNT = 8000, CUT = 4100 };
    struct numbers *n = calloc(1, sizeof *n), *cut = calloc(1, sizeof *cut);
    if (n == NULL || cut == NULL) abort();
    const float exact = 1.0f + 0.25f * 0x1p-7f; /* a quarter of the way from 1 to the next */
    for (size_t i = 0; i < COUNT; i++) n->w[i] = cut->w[i] = i % 5 == 4 ? -exact : exact;
    n->w[7] = cut->w[7] = INFINITY; /* the update makes no number of it, nor does chance */
    struct adam_update update = {.lr = 0.01f,
        .t = 3,
        .config = adam_config_default(),
        .stochastic = true,
        .seed = 5,
        .first = 100};
    struct adam_range range = {
        n->w, n->m, n->v, n->wide, DTYPE_FLOAT32, n->lent, DTYPE_BFLOAT16, COUNT};
    host.ops->step(&range, &update, &host);
    size_t away = 0, wrong = 0;
    for (size_t i = 0; i < COUNT; i++) {
        if (i == 7) continue;
        uint16_t bits = n->lent[i] & 0x7fff;
        away += bits == 0x3f81;
        wrong += bits != 0x3f80 && bits != 0x3f81;
        wrong += (n->lent[i] >> 15) != (i % 5 == 4);
    }
    CHECK_MSG(wrong == 0, "%zu are no neighbours", wrong);
    CHECK(isnan(bfloat16_to_float32(n->lent[7])));
    CHECK_MSG(fabs((double)away - COUNT / 4) < 5.0 * sqrt(COUNT * 3.0 / 16.0),
        "%zu of %d rounded away from zero, expected about a quarter", away, COUNT);

    range = (struct adam_range){
        cut->w, cut->m, cut->v, cut->wide, DTYPE_FLOAT32, cut->lent, DTYPE_BFLOAT16, CUT};
    host.ops->step(&range, &update, &host);
    range = (struct adam_range){cut->w + CUT, cut->m + CUT, cut->v + CUT, cut->wide + CUT,
        DTYPE_FLOAT32, cut->lent + CUT, DTYPE_BFLOAT16, COUNT - CUT};
    update.first += CUT;
    host.ops->step(&range, &update, &host);
    CHECK(memcmp(n->lent, cut->lent, COUNT * sizeof *n->lent) == 0);
    /* What the step has lent is made again of the weights that it left. */
    memset(cut->lent + CUT, 0, (COUNT - CUT) * sizeof *cut->lent);
    host.ops->narrow(cut->lent + CUT, cut->w + CUT, DTYPE_BFLOAT16, COUNT - CUT, &update, &host);
    CHECK(memcmp(n->lent, cut->lent, COUNT * sizeof *n->lent) == 0);
    update.t++;
    host.ops->step(&range, &update, &host);
    CHECK(memcmp(n->lent + CUT, cut->lent + CUT, (COUNT - CUT) * sizeof *n->lent) != 0);
    free(n), free(cut);
}

static void test_scale(void)
{
    struct numbers *n = malloc(sizeof *n);
    if (n == NULL) abort();
    const enum dtype dtypes[] = {DTYPE_BFLOAT16, DTYPE_FLOAT16};
    for (size_t d = 0; d < 2; d++) {
        fill(n, dtypes[d]);
        uint32_t not_finite = 0;
        host.ops->scale(n->g, &not_finite, dtypes[d], 0.25f, MOST, &host);
        numbers_widen(n->w, n->g, dtypes[d], MOST);
        size_t wrong = 0;
        for (size_t i = 0; i < MOST; i++) wrong += fabsf(n->w[i] - 0.25f * n->wide[i]) > 0x1p-24f;
        CHECK_MSG(wrong == 0 && not_finite == 0, "%zu wrong, not finite: %u", wrong, not_finite);
        host.ops->scale(n->g, &not_finite, dtypes[d], 3e38f, 10, &host);
        CHECK(not_finite == (dtypes[d] == DTYPE_FLOAT16)); /* which ends at 65504 */
    }
    float x[3] = {1.0f, NAN, 2.0f};
    uint32_t not_finite = 0;
    host.ops->scale(x, &not_finite, DTYPE_FLOAT32, 2.0f, 1, &host);
    CHECK(not_finite == 0 && x[0] == 2.0f);
    host.ops->scale(x, &not_finite, DTYPE_FLOAT32, 2.0f, 3, &host);
    CHECK(not_finite == 1 && x[2] == 4.0f);
    free(n);
}

int main(void)
{
    test_chance();
    test_scale();
    test_streamed_step();
    test_lent_alone(MOST, DTYPE_BFLOAT16);
    test_lent_alone(5, DTYPE_FLOAT16);
    const enum dtype dtypes[] = {DTYPE_BFLOAT16, DTYPE_FLOAT16, DTYPE_FLOAT32};
    const size_t counts[] = {0, 1, 2047, 2048, 2049, 4095, 4096, 4097, MOST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t g = 0; g < 3; g++) {
            for (size_t l = 0; l < 3; l++) test_step(counts[c], dtypes[g], dtypes[l]);
            if (g < 2) test_sums(counts[c], dtypes[g]);
        }
    CHECK(adam_ops_of(NULL) == &adam_ops_host);
    return test_result();
}
