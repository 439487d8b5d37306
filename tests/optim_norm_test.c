/* The order of the sum of squares is the one that norm.c states, for every count; and the clip factor's cases.
 *
 * ctest: timeout=60
 */
#include <math.h>

#include "optim/norm.h"
#include "tests/harness/harness.h"
#include "tests/harness/reference.h"

static double by_definition(const float *x, size_t count)
{
    double lane[8] = {0};
    for (size_t i = 0; i < count; i++) lane[i % 8] += (double)x[i] * (double)x[i];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static void test_order(void)
{
    struct tensor x = tensor_make(4096, 1, 1.0);
    const size_t counts[] = {0, 1, 7, 8, 9, 63, 64, 65, 1003, 4096};
    bool order_shows = false;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        double in_order = 0.0, found = norm_sum_of_squares(x.f, counts[i]);
        CHECK_MSG(found == by_definition(x.f, counts[i]), "count %zu", counts[i]);
        for (size_t j = 0; j < counts[i]; j++) in_order += x.d[j] * x.d[j];
        CHECK(fabs(found - in_order) <= 1e-12 * in_order);
        order_shows |= found != in_order;
    }
    CHECK(order_shows); /* else the inputs could not tell one order from another */
    /* The place in memory does not matter. */
    float shifted[65];
    for (size_t i = 0; i < 64; i++) shifted[i + 1] = x.f[i];
    CHECK(norm_sum_of_squares(shifted + 1, 64) == norm_sum_of_squares(x.f, 64));
    tensor_free(&x);
}

int main(void)
{
    test_order();
    const float large[2] = {3e38f, 3e38f}, broken[3] = {1.0f, NAN, 1.0f}, infinite[1] = {INFINITY};
    CHECK(isfinite(norm_sum_of_squares(large, 2)));
    CHECK(isnan(norm_sum_of_squares(broken, 3)));
    CHECK(isinf(norm_sum_of_squares(infinite, 1)));

    CHECK(norm_clip_scale(0.5, 1.0) == 1.0f);
    CHECK(norm_clip_scale(1.0, 1.0) == 1.0f);
    CHECK(norm_clip_scale(4.0, 1.0) == 0.25f);
    CHECK(norm_clip_scale(4.0, 0.0) == 1.0f);
    CHECK(norm_clip_scale(4.0, -1.0) == 1.0f);
    CHECK(norm_clip_scale(0.0, 1.0) == 1.0f);
    CHECK(isnan(norm_clip_scale(NAN, 1.0)));
    CHECK(isnan(norm_clip_scale(INFINITY, 1.0)));
    CHECK(isnan(norm_clip_scale(NAN, 0.0)));
    return test_result();
}
