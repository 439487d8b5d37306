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

int main(void)
{
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
