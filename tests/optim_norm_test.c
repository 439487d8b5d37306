/* The order of the sum of squares is the one that norm.h states, for every count; and the clip factor's cases.
 *
 * ctest: timeout=60
 */
#include <math.h>

#include "optim/norm.h"
#include "tests/harness/harness.h"
#include "tests/harness/reference.h"

static double by_definition(const float *x, size_t count)
{
    double sum = 0.0;
    for (size_t begin = 0; begin < count; begin += NORM_PIECE) {
        double lane[NORM_LANES] = {0};
        for (size_t i = begin; i < count && i < begin + NORM_PIECE; i++)
            lane[(i - begin) % NORM_LANES] += (double)x[i] * (double)x[i];
        for (int half = NORM_LANES / 2; half > 0; half /= 2)
            for (int l = 0; l < half; l++) lane[l] += lane[l + half];
        sum += lane[0];
    }
    return sum;
}

static void test_order(void)
{
    struct tensor x = tensor_make(20000, 1, 1.0);
    const size_t counts[] = {0, 1, 7, 255, 256, 257, 1003, 8191, 8192, 8193, 20000};
    bool order_shows = false;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        double in_order = 0.0, found = norm_sum_of_squares(x.f, DTYPE_FLOAT32, counts[i]);
        CHECK_MSG(found == by_definition(x.f, counts[i]), "count %zu", counts[i]);
        for (size_t j = 0; j < counts[i]; j++) in_order += x.d[j] * x.d[j];
        CHECK(fabs(found - in_order) <= 1e-12 * in_order);
        order_shows |= found != in_order;
    }
    CHECK(order_shows); /* else the inputs could not tell one order from another */
    /* The place in memory does not matter. */
    float shifted[65];
    for (size_t i = 0; i < 64; i++) shifted[i + 1] = x.f[i];
    CHECK(norm_sum_of_squares(shifted + 1, DTYPE_FLOAT32, 64) ==
          norm_sum_of_squares(x.f, DTYPE_FLOAT32, 64));
    /* Nor does the dtype of numbers that both hold. */
    uint16_t narrow[1003];
    for (size_t i = 0; i < 1003; i++) {
        narrow[i] = float32_to_bfloat16(x.f[i]);
        x.f[i] = bfloat16_to_float32(narrow[i]);
    }
    CHECK(norm_sum_of_squares(narrow, DTYPE_BFLOAT16, 1003) ==
          norm_sum_of_squares(x.f, DTYPE_FLOAT32, 1003));
    tensor_free(&x);
}

int main(void)
{
    test_order();
    const float large[2] = {3e38f, 3e38f}, broken[3] = {1.0f, NAN, 1.0f}, infinite[1] = {INFINITY};
    CHECK(isfinite(norm_sum_of_squares(large, DTYPE_FLOAT32, 2)));
    CHECK(isnan(norm_sum_of_squares(broken, DTYPE_FLOAT32, 3)));
    CHECK(isinf(norm_sum_of_squares(infinite, DTYPE_FLOAT32, 1)));

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
