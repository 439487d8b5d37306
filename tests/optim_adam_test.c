/* AdamW against the same formulas in double precision over several steps; and any cut of a range gives the same bits.
 *
 * ctest: timeout=60
 */
#include <math.h>
#include <string.h>

#include "optim/adam.h"
#include "tests/harness/harness.h"
#include "tests/harness/reference.h"

enum { COUNT = 1003, STEPS = 7 };

static void reference_step(double *w, double *m, double *v, const double *g, double lr, double scale,
    double decay, int t, const struct adam_config *config)
{
    double beta1 = (double)config->beta1, beta2 = (double)config->beta2;
    for (size_t i = 0; i < COUNT; i++) {
        double gradient = g[i] * scale;
        m[i] = beta1 * m[i] + (1.0 - beta1) * gradient;
        v[i] = beta2 * v[i] + (1.0 - beta2) * gradient * gradient;
        double m_hat = m[i] / (1.0 - pow(beta1, t)), v_hat = v[i] / (1.0 - pow(beta2, t));
        w[i] -= lr * (m_hat / (sqrt(v_hat) + (double)config->epsilon) + decay * w[i]);
    }
}

static void test_against_double(float decay, float scale)
{
    struct adam_config config = adam_config_default();
    struct tensor w = tensor_make(COUNT, 1, 1.0), start = tensor_make(COUNT, 1, 1.0);
    struct tensor m = tensor_make(COUNT, 2, 0.0), v = tensor_make(COUNT, 3, 0.0);
    for (int t = 1; t <= STEPS; t++) {
        struct tensor g = tensor_make(COUNT, (uint64_t)(10 + t), 2.0);
        float lr = 0.01f / (float)t;
        adam_step(w.f, m.f, v.f, g.f, COUNT, lr, scale, decay, (uint64_t)t, &config);
        reference_step(w.d, m.d, v.d, g.d, (double)lr, (double)scale, (double)decay, t, &config);
        tensor_free(&g);
    }
    /* What was learnt, not the weights themselves, so that the tolerance means something. */
    for (size_t i = 0; i < COUNT; i++) w.f[i] -= start.f[i], w.d[i] -= start.d[i];
    double error = relative_error(w.f, w.d, COUNT);
    CHECK_MSG(error < 1e-5, "updates: relative error %.3g (decay %g, scale %g)", error, (double)decay, (double)scale);
    CHECK(relative_error(m.f, m.d, COUNT) < 1e-6);
    CHECK(relative_error(v.f, v.d, COUNT) < 1e-6);
    tensor_free(&w), tensor_free(&start), tensor_free(&m), tensor_free(&v);
}

/* One call over everything, and calls over pieces of `piece`, some of them empty. */
static void test_cuts(size_t piece)
{
    struct adam_config config = adam_config_default();
    struct tensor a[3], b[3], g = tensor_make(COUNT, 9, 1.0);
    for (int i = 0; i < 3; i++) {
        a[i] = tensor_make(COUNT, (uint64_t)i, i == 0 ? 1.0 : 0.0);
        b[i] = tensor_make(COUNT, (uint64_t)i, i == 0 ? 1.0 : 0.0);
    }
    for (uint64_t t = 1; t <= 3; t++) {
        adam_step(a[0].f, a[1].f, a[2].f, g.f, COUNT, 0.01f, 0.7f, 0.1f, t, &config);
        for (size_t i = 0; i < COUNT; i += piece) {
            size_t n = COUNT - i < piece ? COUNT - i : piece;
            adam_step(b[0].f + i, b[1].f + i, b[2].f + i, g.f + i, n, 0.01f, 0.7f, 0.1f, t, &config);
            adam_step(b[0].f + i, b[1].f + i, b[2].f + i, g.f + i, 0, 0.01f, 0.7f, 0.1f, t, &config);
        }
    }
    for (int i = 0; i < 3; i++) {
        CHECK_MSG(memcmp(a[i].f, b[i].f, COUNT * sizeof(float)) == 0, "pieces of %zu, array %d", piece, i);
        tensor_free(&a[i]), tensor_free(&b[i]);
    }
    tensor_free(&g);
}

/* Zero gradients move nothing but what decays, also at the first step. */
static void test_zero_gradient(void)
{
    struct adam_config config = adam_config_default();
    float w[2] = {1.0f, 2.0f}, m[2] = {0}, v[2] = {0}, g[2] = {0};
    adam_step(w, m, v, g, 2, 0.5f, 1.0f, 0.0f, 1, &config);
    CHECK(w[0] == 1.0f && w[1] == 2.0f && m[0] == 0.0f && v[0] == 0.0f);
    adam_step(w, m, v, g, 2, 0.5f, 1.0f, 0.25f, 2, &config);
    CHECK(w[0] == 0.875f && w[1] == 1.75f);
}

int main(void)
{
    struct adam_config config = adam_config_default();
    CHECK(config.beta1 == 0.9f && config.beta2 == 0.95f && config.epsilon == 1e-8f && config.weight_decay == 0.1f);
    test_against_double(0.0f, 1.0f);
    test_against_double(0.1f, 1.0f);
    test_against_double(0.1f, 0.03125f);
    test_cuts(1);
    test_cuts(7);
    test_cuts(64);
    test_cuts(1000);
    test_zero_gradient();
    return test_result();
}
