/* portable_math.h against libm, and the angles of rotary positions that are made of it: near enough
 * that a float is the nearest or its neighbour, for long sequences and any base.
 * ctest: timeout=60
 */
#include <math.h>
#include <stdlib.h>

#include "model/architecture.h"
#include "model/portable_math.h"
#include "tests/harness/harness.h"

static void test_functions(void)
{
    for (int i = 1; i <= 4000; i++) {
        double x = ldexp(1.0 + i * 0.123456789, i % 60 - 30), y = (i - 2000) * 0.034567;
        CHECK_MSG(fabs(portable_log(x) - log(x)) <= 1e-14 * (1.0 + fabs(log(x))), "log(%.17g)", x);
        double error = fabs(portable_exp(y) / exp(y) - 1.0);
        CHECK_MSG(error <= 1e-15 * (2.0 + fabs(y)), "exp(%.17g): %.3g", y, error);
        double cosine, sine, u = i / 4000.0;
        portable_turn(&cosine, &sine, u);
        CHECK(fabs(cosine - cos(6.283185307179586 * u)) < 2e-15);
        CHECK(fabs(sine - sin(6.283185307179586 * u)) < 2e-15);
    }
    CHECK(portable_exp(0.0) == 1.0 && portable_log(1.0) == 0.0);
}

static void test_angles(int heads, int channels, int rotary_base)
{
    enum { T = 4096 };
    const struct model_config config = {ARCHITECTURE_LLAMA, .max_t = T, .vocab = 1, .layers = 1,
        .heads = heads, .channels = channels, .rotary_base = rotary_base};
    size_t cols = (size_t)(channels / heads), half = cols / 2;
    float *turns = malloc(T * cols * sizeof *turns);
    if (turns == NULL) abort();
    architecture_turns(turns, T, &config);
    double base = rotary_base > 0 ? rotary_base : 10000.0, error = 0.0;
    for (size_t i = 0; i < T * half; i++) {
        double angle = (double)(i / half) * pow(base, -2.0 * (double)(i % half) / (double)cols);
        const float *turn = turns + i / half * cols + i % half;
        error = fmax(error, fabs((double)turn[0] - cos(angle)));
        error = fmax(error, fabs((double)turn[half] - sin(angle)));
    }
    CHECK_MSG(
        error < 6.1e-8, "base %d, heads of %zu columns: off by %.3g", rotary_base, cols, error);
    /* These bits are everybody's: ranks on different machines must turn alike. */
    if (rotary_base == 0 && cols == 16)
        CHECK_MSG(turns[100 * cols + 1] == 0x1.f515e6p-1f &&
                      turns[100 * cols + half + 1] == 0x1.a49d4cp-3f,
            "%a %a", (double)turns[100 * cols + 1], (double)turns[100 * cols + half + 1]);
    free(turns);
}

int main(void)
{
    test_functions();
    test_angles(8, 128, 0);
    test_angles(2, 128, 500000);
    test_angles(3, 18, 1);
    return test_result();
}
