/* The bound that vector_math.h states for exp, over a dense sample of all floats; its edges; and
 * the fixed order of its sums.
 * ctest: timeout=60
 */
#include <math.h>
#include <string.h>

#include "model/vector_math.h"
#include "tests/harness/harness.h"
#include "tests/harness/reference.h"

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void test_exp_bound(void)
{
    double worst = 0.0, worst_at = 0.0;
    for (uint64_t bits = 0; bits < 0x100000000; bits += 1009) {
        float x = float_of((uint32_t)bits);
        double exact = exp((double)x);
        if (!(exact >= 0x1p-126 && exact < 0x1p128)) continue;
        float found = vector_exp(x);
        int exponent;
        frexp(exact, &exponent);
        double ulps = fabs((double)found - exact) / ldexp(1.0, exponent - 24);
        if (ulps > worst) worst = ulps, worst_at = (double)x;
    }
    CHECK_MSG(worst <= 1.1, "exp(%.9g) is off by %.3f ulp", worst_at, worst);
    CHECK_MSG(worst > 0.4, "the sample saw no more than %.3f ulp: it is not one", worst);
}

static void test_exp_edges(void)
{
    CHECK(vector_exp(0.0f) == 1.0f);
    CHECK(vector_exp(-INFINITY) == 0.0f);
    CHECK(vector_exp(-1e30f) == 0.0f);
    CHECK(vector_exp(-87.4f) == 0.0f);
    CHECK(vector_exp(-87.3f) > 0.0f);
    CHECK(vector_exp(88.7f) < INFINITY);
    CHECK(vector_exp(88.8f) == INFINITY);
    CHECK(vector_exp(INFINITY) == INFINITY);
    CHECK(isnan(vector_exp(NAN)));
}

/* Lane i mod 16, folded in halves: written out naively. */
static float lanes_by_definition(const float *x, size_t count)
{
    float lane[16] = {0};
    for (size_t i = 0; i < count; i++) lane[i % 16] += x[i];
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

static void test_sums(void)
{
    struct tensor x = tensor_make(1000, 1, 1.0), ones = tensor_make(1000, 1, 0.0);
    for (size_t i = 0; i < 1000; i++) ones.f[i] = 1.0f;
    const size_t counts[] = {0, 1, 15, 16, 17, 100, 1000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        size_t count = counts[i];
        CHECK(vector_sum(x.f, count) == lanes_by_definition(x.f, count));
        CHECK(vector_dot(x.f, ones.f, count) == lanes_by_definition(x.f, count));
        if (count == 0) continue;
        float max = x.f[0], largest = vector_max(x.f, count), exps[1000];
        for (size_t j = 0; j < count; j++) max = x.f[j] > max ? x.f[j] : max;
        CHECK(largest == max);
        memcpy(exps, x.f, count * sizeof *exps);
        float sum = vector_exp_sum(exps, count, max);
        CHECK(sum == lanes_by_definition(exps, count));
        for (size_t j = 0; j < count; j++) CHECK(exps[j] == vector_exp(x.f[j] - max));
    }
    tensor_free(&x), tensor_free(&ones);
}

int main(void)
{
    test_exp_bound();
    test_exp_edges();
    test_sums();
    return test_result();
}
