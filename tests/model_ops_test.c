/* Every operation against its definition in double precision, and its backward against central
 * differences of that definition: norm-wise relative error of each tensor ≤ 1e-5. Outputs are
 * poisoned, or where the operation adds, start from known numbers.
 * ctest: timeout=60
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/ops_host.h"
#include "model/vector_math.h"
#include "tests/harness/harness.h"
#include "tests/harness/reference.h"

#define TOLERANCE 1e-5
#define START     0.25f /* what tensors that are added to hold before */

static void check_close(const float *found, const double *expected, size_t count, const char *what)
{
    double error = relative_error(found, expected, count);
    CHECK_MSG(error <= TOLERANCE, "%s: relative error %.3g, %zu elements", what, error, count);
}

static float *filled(size_t count, float value)
{
    float *x = malloc(count * sizeof *x);
    if (x == NULL) abort();
    for (size_t i = 0; i < count; i++) x[i] = value;
    return x;
}

/* Frees found, which started at START, after comparing what was added to it. */
static void check_added(float *found, const struct tensor *expected, const char *what)
{
    for (size_t i = 0; i < expected->count; i++) found[i] -= START;
    check_close(found, expected->grad, expected->count, what);
    free(found);
}

static void check_written(float *found, const struct tensor *expected, const char *what)
{
    check_close(found, expected->grad, expected->count, what);
    free(found);
}

/* An operation under test: out = f(in, weight, bias), and the objective Σ seed · out. */
struct operation {
    struct tensor in, weight, bias, seed;
    double *out;
    size_t rows, in_cols, out_cols;
    struct attention_size size;
    int32_t *targets;
    void (*forward)(struct operation *operation);
};

static double objective(void *context);

/* Where one derivative after another would take too long: the slope along random directions. */
static void check_slopes(const float *found, struct operation *o, const char *what)
{
    const double step = 1e-5;
    struct tensor *x = &o->in, start = tensor_make(x->count, 0, 0.0);
    memcpy(start.d, x->d, x->count * sizeof *x->d);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        double slope = 0.0, norm = 0.0, ends[2];
        for (int end = 0; end < 2; end++) {
            for (size_t i = 0; i < x->count; i++)
                x->d[i] =
                    start.d[i] + ((reference_word(seed, i) & 1) == (uint64_t)end ? step : -step);
            ends[end] = objective(o);
        }
        for (size_t i = 0; i < x->count; i++) {
            slope += (reference_word(seed, i) & 1) == 0 ? (double)found[i] : -(double)found[i];
            norm += (double)found[i] * (double)found[i];
        }
        double expected = (ends[0] - ends[1]) / (2.0 * step);
        CHECK_MSG(fabs(slope - expected) <= TOLERANCE * sqrt(norm), "%s: slope %.9g, expected %.9g",
            what, slope, expected);
    }
    memcpy(x->d, start.d, x->count * sizeof *x->d);
    tensor_free(&start);
}

static double objective(void *context)
{
    struct operation *operation = context;
    operation->forward(operation);
    double sum = 0.0;
    for (size_t i = 0; i < operation->seed.count; i++)
        sum += operation->seed.d[i] * operation->out[i];
    return sum;
}

static void operation_free(struct operation *operation)
{
    tensor_free(&operation->in);
    tensor_free(&operation->weight);
    tensor_free(&operation->bias);
    tensor_free(&operation->seed);
    free(operation->out);
}

static void operation_outputs(struct operation *operation, size_t count)
{
    operation->seed = tensor_make(count, 99, 1.0);
    operation->out = calloc(count, sizeof(double));
    if (operation->out == NULL) abort();
}

static void linear(struct operation *o)
{
    reference_linear(o->out, o->in.d, o->weight.d, o->bias.d, o->rows, o->in_cols, o->out_cols);
}

static void test_linear(size_t rows, size_t in_cols, size_t out_cols)
{
    struct operation o = {
        .rows = rows, .in_cols = in_cols, .out_cols = out_cols, .forward = linear};
    o.in = tensor_make(rows * in_cols, 1, 1.0);
    o.weight = tensor_make(out_cols * in_cols, 2, 1.0);
    o.bias = tensor_make(out_cols, 3, 1.0);
    operation_outputs(&o, rows * out_cols);
    float *out = filled(rows * out_cols, NAN);
    linear_forward(out, o.in.f, o.weight.f, o.bias.f, rows, in_cols, out_cols);
    linear(&o);
    check_close(out, o.out, rows * out_cols, "linear");
    free(out);
    differentiate(&o.in, objective, &o);
    differentiate(&o.weight, objective, &o);
    differentiate(&o.bias, objective, &o);
    float *d_in = filled(o.in.count, NAN), *d_weight = filled(o.weight.count, START);
    float *d_bias = filled(out_cols, START);
    linear_backward(d_in, d_weight, NULL, o.seed.f, o.in.f, o.weight.f, rows, in_cols, out_cols);
    check_written(d_in, &o.in, "linear d_in without bias");
    d_in = filled(o.in.count, NAN);
    for (size_t i = 0; i < o.weight.count; i++) d_weight[i] = START;
    linear_backward(d_in, d_weight, d_bias, o.seed.f, o.in.f, o.weight.f, rows, in_cols, out_cols);
    check_written(d_in, &o.in, "linear d_in");
    check_added(d_weight, &o.weight, "linear d_weight");
    check_added(d_bias, &o.bias, "linear d_bias");
    operation_free(&o);
}

static void layernorm(struct operation *o)
{
    reference_layernorm(o->out, o->in.d, o->weight.d, o->bias.d, o->rows, o->in_cols);
}

static void test_layernorm(size_t rows, size_t cols)
{
    struct operation o = {.rows = rows, .in_cols = cols, .forward = layernorm};
    o.in = tensor_make(rows * cols, 4, 2.0);
    o.weight = tensor_make(cols, 5, 1.0);
    o.bias = tensor_make(cols, 6, 1.0);
    operation_outputs(&o, rows * cols);
    float *out = filled(rows * cols, NAN), *mean = filled(rows, NAN), *rstd = filled(rows, NAN);
    layernorm_forward(out, mean, rstd, o.in.f, o.weight.f, o.bias.f, rows, cols);
    layernorm(&o);
    check_close(out, o.out, rows * cols, "layernorm");
    differentiate(&o.in, objective, &o);
    differentiate(&o.weight, objective, &o);
    differentiate(&o.bias, objective, &o);
    float *d_in = filled(o.in.count, START), *d_weight = filled(cols, START),
          *d_bias = filled(cols, START);
    layernorm_backward(
        d_in, d_weight, d_bias, o.seed.f, o.in.f, mean, rstd, o.weight.f, rows, cols);
    check_added(d_in, &o.in, "layernorm d_in");
    check_added(d_weight, &o.weight, "layernorm d_weight");
    check_added(d_bias, &o.bias, "layernorm d_bias");
    free(out), free(mean), free(rstd);
    operation_free(&o);
}

static void gelu(struct operation *o)
{
    for (size_t i = 0; i < o->in.count; i++) o->out[i] = reference_gelu(o->in.d[i]);
}

static void test_gelu(size_t count)
{
    struct operation o = {.forward = gelu, .in = tensor_make(count, 7, 5.0)};
    operation_outputs(&o, count);
    float *out = filled(count, NAN), *d = filled(count, 0.0f);
    memcpy(d, o.seed.f, count * sizeof *d);
    gelu_forward(out, o.in.f, count);
    gelu(&o);
    check_close(out, o.out, count, "gelu");
    differentiate(&o.in, objective, &o);
    gelu_backward(d, o.in.f, out, count);
    check_written(d, &o.in, "gelu d_in");
    free(out);
    operation_free(&o);
}

/* Far from 0 the gate saturates: no NaN, and nothing lost to cancellation on the negative side. */
static void test_gelu_far(void)
{
    float in[6] = {-1e4f, -100.0f, -6.0f, 6.0f, 100.0f, 1e4f}, out[6], d[6] = {1, 1, 1, 1, 1, 1};
    gelu_forward(out, in, 6);
    gelu_backward(d, in, out, 6);
    for (int i = 0; i < 6; i++) {
        double x = (double)in[i], minus_2u = -1.5957691216057308 * (x + 0.044715 * x * x * x);
        double expected = x < 0 ? x / (1.0 + exp(minus_2u)) : x;
        CHECK_MSG(fabs((double)out[i] - expected) <= 1e-5 * fabs(expected), "gelu(%g) = %g", x,
            (double)out[i]);
        CHECK_MSG(fabs((double)d[i] - (x > 0)) < 1e-6, "gelu'(%g) = %g", x, (double)d[i]);
    }
}

/* At 0 and where numbers lose digits gelu is x/2. */
static void test_gelu_near(void)
{
    float in[6] = {0.0f, -0.0f, 1e-45f, -1e-38f, 1e-30f, -2e-30f}, out[6],
          d[6] = {1, 1, 1, 1, 1, 1};
    gelu_forward(out, in, 6);
    gelu_backward(d, in, out, 6);
    for (int i = 0; i < 6; i++)
        CHECK_MSG(fabs((double)d[i] - 0.5) < 1e-6, "gelu'(%g) = %g", (double)in[i], (double)d[i]);
}

static void rmsnorm(struct operation *o)
{
    reference_rmsnorm(o->out, o->in.d, o->weight.d, o->rows, o->in_cols);
}

static void test_rmsnorm(size_t rows, size_t cols)
{
    struct operation o = {.rows = rows, .in_cols = cols, .forward = rmsnorm};
    o.in = tensor_make(rows * cols, 4, 2.0);
    o.weight = tensor_make(cols, 5, 1.0);
    operation_outputs(&o, rows * cols);
    float *out = filled(rows * cols, NAN), *rstd = filled(rows, NAN);
    rmsnorm_forward(out, rstd, o.in.f, o.weight.f, rows, cols);
    rmsnorm(&o);
    check_close(out, o.out, rows * cols, "rmsnorm");
    differentiate(&o.in, objective, &o);
    differentiate(&o.weight, objective, &o);
    float *d_in = filled(o.in.count, START), *d_weight = filled(cols, START);
    rmsnorm_backward(d_in, d_weight, o.seed.f, o.in.f, rstd, o.weight.f, rows, cols);
    check_added(d_in, &o.in, "rmsnorm d_in");
    check_added(d_weight, &o.weight, "rmsnorm d_weight");
    free(out), free(rstd);
    operation_free(&o);
}

static void swiglu(struct operation *o)
{
    for (size_t i = 0; i < o->rows * o->out_cols; i++) {
        const double *gate = o->in.d + i / o->out_cols * 2 * o->out_cols + i % o->out_cols;
        o->out[i] = reference_silu(gate[0]) * gate[o->out_cols];
    }
}

static void test_swiglu(size_t rows, size_t cols)
{
    struct operation o = {.rows = rows, .out_cols = cols, .forward = swiglu};
    o.in = tensor_make(rows * 2 * cols, 7, 5.0);
    operation_outputs(&o, rows * cols);
    float *out = filled(rows * cols, NAN), *d_in = filled(o.in.count, NAN);
    swiglu_forward(out, o.in.f, rows, cols);
    swiglu(&o);
    check_close(out, o.out, rows * cols, "swiglu");
    differentiate(&o.in, objective, &o);
    swiglu_backward(d_in, o.seed.f, o.in.f, rows, cols);
    check_written(d_in, &o.in, "swiglu d_in");
    free(out);
    operation_free(&o);
}

/* Far from 0 the gate saturates: no NaN, no loss of digits. */
static void test_swiglu_far(void)
{
    const float gates[4] = {-1e4f, -30.0f, 30.0f, 1e4f};
    for (int i = 0; i < 4; i++) {
        float in[2] = {gates[i], 3.0f}, out, d_in[2], d_out = 1.0f;
        swiglu_forward(&out, in, 1, 1);
        swiglu_backward(d_in, &d_out, in, 1, 1);
        double expected = 3.0 * reference_silu((double)gates[i]);
        CHECK_MSG(fabs((double)out - expected) <= 1e-6 * fabs(expected), "swiglu(%g) = %g",
            (double)gates[i], (double)out);
        CHECK_MSG(fabs((double)d_in[0] - (gates[i] > 0.0f ? 3.0 : 0.0)) < 1e-6,
            "silu'(%g) = %g / 3", (double)gates[i], (double)d_in[0]);
    }
}

#define ROTARY_BASE 100.0

/* Angles as the model makes them, from plain formulas. */
static float *turns_of(size_t t, size_t head_cols)
{
    size_t half = head_cols / 2;
    float *turns = filled(t * head_cols, NAN);
    for (size_t i = 0; i < t * half; i++) {
        double angle =
            (double)(i / half) * pow(ROTARY_BASE, -2.0 * (double)(i % half) / (double)head_cols);
        turns[i / half * head_cols + i % half] = (float)cos(angle);
        turns[i / half * head_cols + half + i % half] = (float)sin(angle);
    }
    return turns;
}

static void rotary(struct operation *o)
{
    memcpy(o->out, o->in.d, o->in.count * sizeof *o->out);
    reference_rotary(o->out, ROTARY_BASE, o->size);
}

static void test_rotary(struct attention_size size)
{
    struct operation o = {.size = size, .forward = rotary};
    size_t count = size.batch * size.t * (size.heads + 2 * size.kv_heads) * size.head_cols;
    o.in = tensor_make(count, 8, 2.0);
    operation_outputs(&o, count);
    float *turns = turns_of(size.t, size.head_cols), *x = filled(count, NAN),
          *d = filled(count, NAN);
    memcpy(x, o.in.f, count * sizeof *x);
    memcpy(d, o.seed.f, count * sizeof *d);
    rotary_forward(x, turns, size);
    rotary(&o);
    check_close(x, o.out, count, "rotary");
    rotary_backward(d, turns, size);
    differentiate(&o.in, objective, &o);
    check_written(d, &o.in, "rotary d_qkv");
    free(turns), free(x);
    operation_free(&o);
}

static void attention(struct operation *o)
{
    reference_attention(o->out, o->in.d, o->size);
}

static void test_attention(struct attention_size size)
{
    struct operation o = {.size = size, .forward = attention};
    size_t count = size.batch * size.t * size.heads * size.head_cols;
    size_t rows = size.batch * size.t,
           qkv_count = rows * (size.heads + 2 * size.kv_heads) * size.head_cols;
    o.in = tensor_make(qkv_count, 9, 2.0);
    operation_outputs(&o, count);
    float *out = filled(count, NAN), *lse = filled(rows * size.heads, NAN),
          *d_in = filled(qkv_count, NAN);
    float *scratch = filled(attention_scratch_elements(size.t), NAN);
    attention_forward(out, lse, scratch, o.in.f, size);
    attention(&o);
    check_close(out, o.out, count, "attention");
    attention_backward(d_in, scratch, o.seed.f, o.in.f, out, lse, size);
    check_slopes(d_in, &o, "attention d_qkv");
    if (size.t <= 150) {
        differentiate(&o.in, objective, &o);
        check_close(d_in, o.in.grad, o.in.count, "attention d_qkv");
    }
    free(out), free(lse), free(d_in), free(scratch);
    operation_free(&o);
}

static void head(struct operation *o)
{
    o->out[0] = reference_loss(o->in.d, o->weight.d, o->targets, o->rows, o->in_cols, o->out_cols);
}

/* The vocabulary in blocks of `block` rows, forward and backward. */
static void test_head(size_t rows, size_t cols, size_t vocab, size_t block)
{
    struct operation o = {.rows = rows, .in_cols = cols, .out_cols = vocab, .forward = head};
    o.in = tensor_make(rows * cols, 10, 2.0);
    o.weight = tensor_make(vocab * cols, 11, 2.0);
    operation_outputs(&o, 1);
    float scale = o.seed.f[0];
    o.targets = malloc(rows * sizeof *o.targets);
    if (o.targets == NULL) abort();
    for (size_t r = 0; r < rows; r++)
        o.targets[r] = r % 4 == 3 ? -1 : (int32_t)(reference_word(12, r) % vocab);

    float *max = filled(rows, NAN), *sum = filled(2 * rows, NAN), *lse = filled(rows, NAN);
    float *scratch = filled(head_scratch_elements(block, rows), NAN);
    float *d_in = filled(o.in.count, START), *d_weight = filled(o.weight.count, START);
    head_begin(max, sum, sum + rows, rows);
    for (size_t first = 0; first < vocab; first += block) {
        struct head_rows part = {
            first, first + block < vocab ? block : vocab - first, o.weight.f + first * cols};
        head_forward(max, sum, sum + rows, scratch, o.in.f, o.targets, part, rows, cols);
    }
    double loss = 0.0;
    for (size_t r = 0; r < rows; r++) {
        if (o.targets[r] < 0) continue;
        lse[r] = max[r] + logf(sum[r]);
        loss += (double)lse[r] - (double)sum[rows + r];
    }
    head(&o);
    CHECK_MSG(fabs(loss - o.out[0]) <= 1e-6 * o.out[0], "loss %.9g, expected %.9g", loss, o.out[0]);
    differentiate(&o.in, objective, &o);
    differentiate(&o.weight, objective, &o);
    for (size_t first = 0; first < vocab; first += block) {
        struct head_rows part = {
            first, first + block < vocab ? block : vocab - first, o.weight.f + first * cols};
        head_backward(d_in, d_weight + first * cols, scratch, o.in.f, lse, o.targets, scale, part,
            rows, cols);
    }
    check_added(d_in, &o.in, "head d_x");
    check_added(d_weight, &o.weight, "head d_weight");
    free(max), free(sum), free(lse), free(scratch), free(o.targets);
    operation_free(&o);
}

/* Loss and its derivatives in double for one token: dlogit = softmax − [target]. */
static double head_token(double *d_x, double *d_weight, const double *x, const double *weight,
    int32_t target, size_t cols, size_t vocab)
{
    double sum = 0.0, target_logit = 0.0, *p = calloc(vocab, sizeof *p);
    if (p == NULL) abort();
    for (size_t v = 0; v < vocab; v++) {
        for (size_t c = 0; c < cols; c++) p[v] += x[c] * weight[v * cols + c];
        if (v == (size_t)target) target_logit = p[v];
        sum += p[v] = exp(p[v]);
    }
    for (size_t v = 0; v < vocab; v++) {
        double d = p[v] / sum - (v == (size_t)target ? 1.0 : 0.0);
        for (size_t c = 0; c < cols; c++) {
            d_x[c] += d * weight[v * cols + c];
            d_weight[v * cols + c] += d * x[c];
        }
    }
    free(p);
    return log(sum) - target_logit;
}

/* A block so wide that the tokens are cut into tiles, the last one short. */
static void test_head_tiles(void)
{
    size_t rows = 101, cols = 3, vocab = 60000, elements = head_scratch_elements(vocab, rows);
    CHECK_MSG(
        elements < rows * vocab, "the scratch of %zu elements holds all logits at once", elements);
    struct tensor x = tensor_make(rows * cols, 17, 1.0),
                  weight = tensor_make(vocab * cols, 18, 1.0);
    float *max = filled(rows, NAN), *sum = filled(rows, NAN), *target = filled(rows, NAN),
          *lse = filled(rows, NAN);
    float *d_x = filled(x.count, 0.0f), *d_weight = filled(weight.count, 0.0f),
          *scratch = filled(elements, NAN);
    int32_t *targets = calloc(rows, sizeof *targets);
    if (targets == NULL) abort();
    for (size_t r = 0; r < rows; r++) targets[r] = (int32_t)(r * 399);
    struct head_rows block = {0, vocab, weight.f};
    head_begin(max, sum, target, rows);
    head_forward(max, sum, target, scratch, x.f, targets, block, rows, cols);
    for (size_t r = 0; r < rows; r++) {
        lse[r] = max[r] + logf(sum[r]);
        double loss = head_token(
            x.grad + r * cols, weight.grad, x.d + r * cols, weight.d, targets[r], cols, vocab);
        CHECK(fabs((double)(lse[r] - target[r]) - loss) < 1e-5);
    }
    head_backward(d_x, d_weight, scratch, x.f, lse, targets, 1.0f, block, rows, cols);
    check_close(d_x, x.grad, x.count, "head d_x, in tiles");
    check_close(d_weight, weight.grad, weight.count, "head d_weight, in tiles");
    free(max), free(sum), free(target), free(lse), free(d_x), free(d_weight), free(scratch),
        free(targets);
    tensor_free(&x), tensor_free(&weight);
}

/* Embedding in two blocks, positions, bias and residual: sums and copies, so exact. */
static void test_embedding(void)
{
    enum { ROWS = 6, COLS = 5, VOCAB = 7, CUT = 3, T = 3 };
    const int32_t tokens[ROWS] = {0, 6, 3, 2, 6, 0};
    struct tensor table = tensor_make(VOCAB * COLS, 13, 1.0),
                  d_x = tensor_make(ROWS * COLS, 14, 1.0);
    struct tensor positions = tensor_make(T * COLS, 15, 1.0), bias = tensor_make(COLS, 16, 1.0);
    float x[ROWS * COLS], d_table[VOCAB * COLS], d_positions[T * COLS];
    double d_table_expected[VOCAB * COLS] = {0}, d_positions_expected[T * COLS] = {0};
    memset(x, 0xff, sizeof x);
    embedding_forward(x, tokens, table.f, 0, CUT, ROWS, COLS);
    embedding_forward(x, tokens, table.f + CUT * COLS, CUT, VOCAB - CUT, ROWS, COLS);
    positions_forward(x, positions.f, ROWS / T, T, COLS);
    bias_residual_add(x, d_x.f, bias.f, ROWS, COLS);
    for (int i = 0; i < ROWS * COLS; i++) {
        int r = i / COLS, c = i % COLS;
        float expected = table.f[tokens[r] * COLS + c] + positions.f[r % T * COLS + c];
        expected += d_x.f[i] + bias.f[c];
        CHECK(x[i] == expected);
        float doubled = x[i];
        bias_residual_add(&doubled, &x[i], NULL, 1, 1);
        CHECK(doubled == 2.0f * expected);
        d_table_expected[tokens[r] * COLS + c] += d_x.d[i];
        d_positions_expected[r % T * COLS + c] += d_x.d[i];
    }
    memset(d_table, 0, sizeof d_table);
    memset(d_positions, 0, sizeof d_positions);
    embedding_backward(d_table, tokens, d_x.f, 0, CUT, ROWS, COLS);
    embedding_backward(d_table + CUT * COLS, tokens, d_x.f, CUT, VOCAB - CUT, ROWS, COLS);
    positions_backward(d_positions, d_x.f, ROWS / T, T, COLS);
    check_close(d_table, d_table_expected, VOCAB * COLS, "embedding d_table");
    check_close(d_positions, d_positions_expected, T * COLS, "positions d_table");
    tensor_free(&table), tensor_free(&d_x), tensor_free(&positions), tensor_free(&bias);
}

int main(void)
{
    test_linear(5, 7, 6);
    test_linear(19, 16, 33);
    test_layernorm(4, 7);
    test_layernorm(9, 37);
    test_gelu(165);
    test_gelu_far();
    test_gelu_near();
    test_rmsnorm(4, 7);
    test_rmsnorm(9, 37);
    test_swiglu(3, 7);
    test_swiglu(5, 33);
    test_swiglu_far();
    test_rotary((struct attention_size){2, 5, 3, 3, 4});
    test_rotary((struct attention_size){1, 7, 4, 2, 18});
    test_attention((struct attention_size){2, 5, 3, 3, 4});
    test_attention((struct attention_size){1, 64, 1, 1, 2});
    test_attention((struct attention_size){1, 150, 2, 2, 2}); /* three tiles, the last one short */
    test_attention((struct attention_size){1, 515, 2, 2, 4}); /* of taller ones */
    test_attention((struct attention_size){2, 5, 6, 2, 4}); /* three heads share keys and values */
    test_attention((struct attention_size){1, 150, 2, 1, 2});
    test_head(9, 5, 23, 23);
    test_head(9, 5, 23, 8);
    test_head(5, 4, 23, 1);
    test_head_tiles();
    test_embedding();
    return test_result();
}
