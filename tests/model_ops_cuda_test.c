/* Every operation of the CUDA table against its host twin: the same numbers, rounded to the dtype,
 * go through both tables. In float32 the norm-wise relative error of every tensor is at most 1e-5;
 * in 16 bits what is stored in 16 bits may be off by its rounding, and gradients of weights, which
 * are float32 sums of the same products, stay within 1e-5 where nothing was rounded on the way.
 *
 * On the simulator everything runs in three thread orders, which must give the same bits (I2), and
 * on a device without tensor cores for bfloat16.
 *
 * RINGZERO_TEST_DEVICE=cuda runs it on a GPU.
 * ctest: timeout=120 labels=plain
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/ops_sides.h"

/* ---- operations: each is run on one side after the other ---- */

struct sizes {
    size_t rows, cols, out_cols; /* or batch, t, heads */
    size_t head_cols;
};

static void bytes_and_dtypes(struct side *side, struct sizes n)
{
    const struct model_ops *ops = side->context.ops;
    enum dtype lent = side->dtype;
    float *ones = filled(side, n.rows, 1.0, DTYPE_FLOAT32, 0);
    ops->clear(ones + 1, (n.rows - 1) * sizeof *ones, &side->context);
    record_exact(side, "clear", ones, n.rows);

    struct tensor x = tensor_make(n.rows, 1, 3.0), y = tensor_make(n.rows, 2, 3.0);
    void *sum = place(side, x.f, n.rows, lent, lent, side->shift);
    float *part = place(side, y.f, n.rows, DTYPE_FLOAT32, DTYPE_FLOAT32, 0);
    ops->narrow_add(sum, part, lent, n.rows, &side->context);
    record(side, "narrow_add", sum, n.rows, lent, 0.0);
    record_exact(side, "narrow_add's part", part, n.rows);
    void *first = place(side, x.f, n.rows, lent, lent, side->shift);
    part = place(side, y.f, n.rows, DTYPE_FLOAT32, DTYPE_FLOAT32, 0);
    ops->narrow_first(first, part, lent, n.rows, &side->context);
    record(side, "narrow_first", first, n.rows, lent, 0.0);
    record_exact(side, "narrow_first's part", part, n.rows);
    if (side->dtype == DTYPE_FLOAT32) { /* what is lent differs from it only there */
        void *narrow_x = place(side, x.f, n.rows, DTYPE_BFLOAT16, DTYPE_BFLOAT16, side->shift);
        float *wide = statistic(side, n.rows);
        ops->widen(wide, narrow_x, DTYPE_BFLOAT16, n.rows, &side->context);
        record(side, "widen", wide, n.rows, DTYPE_FLOAT32, 0.0);
    }
    tensor_free(&x), tensor_free(&y);
}

static void linear(struct side *side, struct sizes n, bool with_gelu)
{
    const struct model_ops *ops = side->context.ops;
    void *in = activation(side, n.rows * n.cols, 1, 1.0);
    void *w = weight(side, n.out_cols * n.cols, 2, 1.0), *b = weight(side, n.out_cols, 3, 1.0);
    void *out = poisoned(side, n.rows * n.out_cols);
    void *gelu_in = with_gelu ? poisoned(side, n.rows * n.out_cols) : NULL;
    ops->linear_forward(out, gelu_in, in, w, b, n.rows, n.cols, n.out_cols, &side->context);
    record_rounded(side, with_gelu ? "linear with gelu" : "linear", out, n.rows * n.out_cols);
    if (with_gelu) record_rounded(side, "gelu_in", gelu_in, n.rows * n.out_cols);
    ops->linear_forward(out, gelu_in, in, w, NULL, n.rows, n.cols, n.out_cols, &side->context);
    record_rounded(side, "linear without bias", out, n.rows * n.out_cols);

    /* Backward from numbers that neither side has rounded on its own. */
    void *d_out = activation(side, n.rows * n.out_cols, 4, 1.0);
    void *before = activation(side, n.rows * n.cols, 5, 3.0),
         *d_in = poisoned(side, n.rows * n.cols);
    float *d_w = gradient(side, n.out_cols * n.cols), *d_b = gradient(side, n.out_cols);
    if (with_gelu) { /* the host needs in = gelu(before), CUDA does not look at in there */
        const float x_to_itself[1] = {1.0f};
        void *one = place(side, x_to_itself, 1, DTYPE_FLOAT32, side->context.compute, 0);
        ops->linear_forward(in, before, activation(side, n.rows * n.cols, 5, 3.0), one, NULL,
            n.rows * n.cols, 1, 1, &side->context);
    }
    ops->linear_backward(d_in, d_w, d_b, d_out, in, with_gelu ? before : NULL, w, n.rows, n.cols,
        n.out_cols, &side->context);
    record_rounded(side, "linear d_in", d_in, n.rows * n.cols);
    record_exact(side, "linear d_bias", d_b, n.out_cols);
    if (with_gelu) record_derived(side, "linear d_weight", d_w, n.out_cols * n.cols);
    else record_exact(side, "linear d_weight", d_w, n.out_cols * n.cols);
    ops->linear_backward(d_in, d_w, NULL, d_out, in, with_gelu ? before : NULL, w, n.rows, n.cols,
        n.out_cols, &side->context);
    record_rounded(side, "linear d_in without bias", d_in, n.rows * n.cols);
}

static void linear_plain(struct side *side, struct sizes n)
{
    linear(side, n, false);
}

static void linear_gelu(struct side *side, struct sizes n)
{
    linear(side, n, true);
}

static void bias_residual(struct side *side, struct sizes n)
{
    void *x = activation(side, n.rows * n.cols, 1, 1.0);
    void *residual = activation(side, n.rows * n.cols, 2, 1.0),
         *bias = weight(side, n.cols, 3, 1.0);
    side->context.ops->bias_residual_add(x, residual, bias, n.rows, n.cols, &side->context);
    record_rounded(side, "bias_residual_add", x, n.rows * n.cols);
    x = activation(side, n.rows * n.cols, 1, 1.0);
    side->context.ops->bias_residual_add(x, residual, NULL, n.rows, n.cols, &side->context);
    record_rounded(side, "residual add", x, n.rows * n.cols);
}

static void layernorm(struct side *side, struct sizes n)
{
    const struct model_ops *ops = side->context.ops;
    void *in = activation(side, n.rows * n.cols, 1, 2.0), *out = poisoned(side, n.rows * n.cols);
    void *w = weight(side, n.cols, 2, 1.0), *b = weight(side, n.cols, 3, 1.0);
    float *mean = statistic(side, n.rows), *rstd = statistic(side, n.rows);
    ops->layernorm_forward(out, mean, rstd, in, w, b, n.rows, n.cols, &side->context);
    record_rounded(side, "layernorm", out, n.rows * n.cols);
    record_exact(side, "layernorm mean", mean, n.rows);
    record_exact(side, "layernorm rstd", rstd, n.rows);

    void *d_out = activation(side, n.rows * n.cols, 4, 1.0);
    void *d_in = activation(side, n.rows * n.cols, 5, 1.0);
    float *d_w = gradient(side, n.cols), *d_b = gradient(side, n.cols);
    ops->layernorm_backward(
        d_in, d_w, d_b, d_out, in, mean, rstd, w, n.rows, n.cols, &side->context);
    record_rounded(side, "layernorm d_in", d_in, n.rows * n.cols);
    record_exact(side, "layernorm d_weight", d_w, n.cols);
    record_exact(side, "layernorm d_bias", d_b, n.cols);
}

/* Few ids, so that tokens repeat within and beyond what a block searches at a time. */
static int32_t *tokens(struct side *side, size_t rows, size_t vocab, bool some_ignored)
{
    int32_t *ids = allocated(rows * sizeof *ids);
    for (size_t r = 0; r < rows; r++) {
        ids[r] = (int32_t)(reference_word(77, r) % vocab);
        if (some_ignored && r % 4 == 3) ids[r] = -1;
    }
    int32_t *at = place_bytes(side, ids, rows * sizeof *ids, 0);
    free(ids);
    return at;
}

/* rows tokens, a table of out_cols rows in two blocks, batch 3 where it divides the rows. */
static void embedding(struct side *side, struct sizes n)
{
    const struct model_ops *ops = side->context.ops;
    const struct ops_context *context = &side->context;
    size_t vocab = n.out_cols, cut = vocab / 3, batch = n.rows % 3 == 0 ? 3 : 1, t = n.rows / batch;
    int32_t *ids = tokens(side, n.rows, vocab, false);
    void *low = weight(side, cut * n.cols, 2, 1.0),
         *high = weight(side, (vocab - cut) * n.cols, 3, 1.0);
    void *positions = weight(side, t * n.cols, 4, 1.0), *x = poisoned(side, n.rows * n.cols);
    ops->embedding_forward(x, ids, low, 0, cut, n.rows, n.cols, context);
    ops->embedding_forward(x, ids, high, cut, vocab - cut, n.rows, n.cols, context);
    ops->positions_forward(x, positions, batch, t, n.cols, context);
    record_rounded(side, "embedding and positions", x, n.rows * n.cols);

    void *d_x = activation(side, n.rows * n.cols, 5, 1.0);
    float *d_low = gradient(side, cut * n.cols), *d_high = gradient(side, (vocab - cut) * n.cols);
    float *d_positions = gradient(side, t * n.cols);
    ops->embedding_backward(d_low, ids, d_x, 0, cut, n.rows, n.cols, context);
    ops->embedding_backward(d_high, ids, d_x, cut, vocab - cut, n.rows, n.cols, context);
    ops->positions_backward(d_positions, d_x, batch, t, n.cols, context);
    record_exact(side, "embedding d_table, first block", d_low, cut * n.cols);
    record_exact(side, "embedding d_table, second block", d_high, (vocab - cut) * n.cols);
    record_exact(side, "positions d_table", d_positions, t * n.cols);
}

static void rmsnorm(struct side *side, struct sizes n)
{
    const struct model_ops *ops = side->context.ops;
    void *in = activation(side, n.rows * n.cols, 1, 2.0), *out = poisoned(side, n.rows * n.cols);
    void *w = weight(side, n.cols, 2, 1.0);
    float *rstd = statistic(side, n.rows);
    ops->rmsnorm_forward(out, rstd, in, w, n.rows, n.cols, &side->context);
    record_rounded(side, "rmsnorm", out, n.rows * n.cols);
    record_exact(side, "rmsnorm rstd", rstd, n.rows);

    void *d_out = activation(side, n.rows * n.cols, 4, 1.0);
    void *d_in = activation(side, n.rows * n.cols, 5, 1.0);
    float *d_w = gradient(side, n.cols);
    ops->rmsnorm_backward(d_in, d_w, d_out, in, rstd, w, n.rows, n.cols, &side->context);
    record_rounded(side, "rmsnorm d_in", d_in, n.rows * n.cols);
    record_exact(side, "rmsnorm d_weight", d_w, n.cols);
}

static void swiglu(struct side *side, struct sizes n)
{
    const struct model_ops *ops = side->context.ops;
    size_t count = n.rows * n.cols;
    void *in = activation(side, 2 * count, 1, 5.0), *out = poisoned(side, count);
    ops->swiglu_forward(out, in, n.rows, n.cols, &side->context);
    record_rounded(side, "swiglu", out, count);
    void *d_out = activation(side, count, 2, 1.0), *d_in = poisoned(side, 2 * count);
    ops->swiglu_backward(d_in, d_out, in, n.rows, n.cols, &side->context);
    record_rounded(side, "swiglu d_in", d_in, 2 * count);
}

/* batch = rows, t = cols, heads = out_cols; `group` of them share keys and values. */
static struct attention_size attention_size_of(struct sizes n, size_t group)
{
    return (struct attention_size){n.rows, n.cols, n.out_cols, n.out_cols / group, n.head_cols};
}

static size_t qkv_count(struct attention_size size)
{
    return size.batch * size.t * (size.heads + 2 * size.kv_heads) * size.head_cols;
}

/* Any angles: cosines and sines are numbers to the operation. */
static void turn(struct side *side, struct attention_size size)
{
    const struct model_ops *ops = side->context.ops;
    size_t count = qkv_count(size), angles = size.t * size.head_cols;
    struct tensor random = tensor_make(angles, 3, 1.0);
    float *turns = place(side, random.f, angles, DTYPE_FLOAT32, DTYPE_FLOAT32, 0);
    void *qkv = activation(side, count, 1, 2.0), *d_qkv = activation(side, count, 2, 1.0);
    ops->rotary_forward(qkv, turns, size, &side->context);
    ops->rotary_backward(d_qkv, turns, size, &side->context);
    record_rounded(side, "rotary", qkv, count);
    record_rounded(side, "rotary d_qkv", d_qkv, count);
    tensor_free(&random);
}

static void rotary(struct side *side, struct sizes n)
{
    turn(side, attention_size_of(n, 1));
}

static void rotary_pairs(struct side *side, struct sizes n)
{
    turn(side, attention_size_of(n, 2));
}

static void attend(struct side *side, struct attention_size size)
{
    const struct ops_context *context = &side->context;
    size_t count = size.batch * size.t * size.heads * size.head_cols;
    size_t scratch_bytes = context->ops->attention_scratch_bytes(size, context->compute);
    void *scratch = filled(side, scratch_bytes / sizeof(float), NAN, DTYPE_FLOAT32, 0);
    void *qkv = activation(side, qkv_count(size), 1, 2.0), *out = poisoned(side, count);
    float *lse = statistic(side, size.batch * size.heads * size.t);
    context->ops->attention_forward(out, lse, scratch, qkv, size, context);
    record_rounded(side, "attention", out, count);
    record_exact(side, "attention lse", lse, size.batch * size.heads * size.t);
    void *d_out = activation(side, count, 2, 1.0), *d_qkv = poisoned(side, qkv_count(size));
    context->ops->attention_backward(d_qkv, scratch, d_out, qkv, out, lse, size, context);
    record_rounded(side, "attention d_qkv", d_qkv, qkv_count(size));
}

static void attention(struct side *side, struct sizes n)
{
    attend(side, attention_size_of(n, 1));
}

static void attention_pairs(struct side *side, struct sizes n)
{
    attend(side, attention_size_of(n, 2));
}

/* The vocabulary of out_cols in blocks of head_cols rows. */
static void head(struct side *side, struct sizes n)
{
    const struct ops_context *context = &side->context;
    const struct model_ops *ops = context->ops;
    size_t vocab = n.out_cols, block = n.head_cols, rows = n.rows;
    float scale = 0.125f;
    int32_t *targets = tokens(side, rows, vocab, true);
    void *x = activation(side, rows * n.cols, 1, 1.0),
         *d_x = activation(side, rows * n.cols, 2, 1.0);
    float *w = weight(side, vocab * n.cols, 3, 1.0), *d_w = gradient(side, vocab * n.cols);
    float *max = statistic(side, rows), *sum = statistic(side, rows),
          *target = statistic(side, rows);
    float *lse = filled(side, rows, START, DTYPE_FLOAT32, 0);
    double *loss = place_bytes(side, &(double){NAN}, sizeof *loss, 0);
    size_t bytes = ops->head_scratch_bytes(block, rows, n.cols, context->compute);
    void *scratch = filled(side, bytes / sizeof(float), NAN, DTYPE_FLOAT32, 0);
    ops->head_begin(max, sum, target, rows, context);
    for (size_t first = 0; first < vocab; first += block) {
        size_t count = vocab - first < block ? vocab - first : block;
        struct head_rows part = {first, count, ops_at(w, first * n.cols, context)};
        ops->head_forward(max, sum, target, scratch, x, targets, part, rows, n.cols, context);
        part.count = 0; /* as a rank may hold it */
        ops->head_forward(max, sum, target, scratch, x, targets, part, rows, n.cols, context);
    }
    ops->head_loss(loss, lse, max, sum, target, targets, rows, context);
    double found;
    transfer(side, &found, loss, sizeof found);
    float narrow_loss = (float)found;
    float *copy = place_bytes(side, &narrow_loss, sizeof narrow_loss, 0);
    record_exact(side, "head loss", copy, 1);
    record_exact(side, "head lse", lse, rows);
    for (size_t first = 0; first < vocab; first += block) {
        size_t count = vocab - first < block ? vocab - first : block;
        struct head_rows part = {first, count, ops_at(w, first * n.cols, context)};
        ops->head_backward(d_x, d_w + first * n.cols, scratch, x, lse, targets, scale, part, rows,
            n.cols, context);
    }
    record_rounded(side, "head d_x", d_x, rows * n.cols);
    record_derived(side, "head d_weight", d_w, vocab * n.cols);
    struct head_rows all = {0, vocab, w};
    float *logits = statistic(side, vocab);
    ops->head_logits(logits, x, all, n.cols, context);
    record_exact(side, "head logits", logits, vocab);
}

static void rescale(struct side *side, struct sizes n)
{
    struct tensor own = tensor_make(n.rows, 1, 3.0), sums = tensor_make(n.rows, 2, 4.0);
    for (size_t i = 0; i < n.rows; i++) sums.f[i] = i % 3 == 0 ? 0.0f : fabsf(sums.f[i]);
    float *own_max = place(side, own.f, n.rows, DTYPE_FLOAT32, DTYPE_FLOAT32, 0);
    for (size_t i = 0; i < n.rows; i++) own.f[i] += (float)(i % 5);
    float *max = place(side, own.f, n.rows, DTYPE_FLOAT32, DTYPE_FLOAT32, 0);
    float *sum = place(side, sums.f, n.rows, DTYPE_FLOAT32, DTYPE_FLOAT32, 0);
    side->context.ops->head_rescale(sum, own_max, max, n.rows, &side->context);
    record_exact(side, "head_rescale", sum, n.rows);
    tensor_free(&own), tensor_free(&sums);
}

static const struct test {
    void (*run)(struct side *side, struct sizes sizes);
    struct sizes sizes;
} tests[] = {
    {bytes_and_dtypes, {.rows = 1}},
    {bytes_and_dtypes, {.rows = 8}},
    {bytes_and_dtypes, {.rows = 1003}},
    {linear_plain, {5, 7, 6, 0}},
    {linear_plain, {33, 16, 40, 0}},
    {linear_plain, {71, 8, 9, 0}},
    {linear_gelu, {19, 16, 33, 0}},
    {linear_gelu, {66, 24, 64, 0}},
    {bias_residual, {3, 5, 0, 0}},
    {bias_residual, {7, 264, 0, 0}},
    {layernorm, {4, 7, 0, 0}},
    {layernorm, {9, 37, 0, 0}},
    {layernorm, {70, 64, 0, 0}},  /* three blocks of rows */
    {layernorm, {3, 2056, 0, 0}}, /* two strips of columns */
    {layernorm, {2, 2051, 0, 0}},
    {rmsnorm, {4, 7, 0, 0}},
    {rmsnorm, {70, 64, 0, 0}},
    {rmsnorm, {3, 2056, 0, 0}},
    {swiglu, {5, 7, 0, 0}},
    {swiglu, {9, 264, 0, 0}},
    {rotary, {2, 5, 3, 4}},
    {rotary_pairs, {2, 9, 4, 16}},
    {rotary_pairs, {1, 33, 6, 32}},
    {embedding, {6, 5, 7, 0}},
    {embedding, {600, 16, 12, 0}}, /* more tokens than are searched at a time */
    {embedding, {9, 1032, 6, 0}},  /* rows wider than a block */
    {attention, {2, 5, 3, 4}},
    {attention, {1, 64, 1, 8}},
    {attention, {1, 70, 2, 64}},
    {attention, {1, 130, 1, 24}},
    {attention, {2, 33, 1, 65}},
    {attention, {1, 67, 1, 128}},
    {attention, {1, 1, 2, 72}},
    {attention_pairs, {2, 5, 6, 4}},
    {attention_pairs, {1, 70, 4, 64}},
    {attention_pairs, {1, 67, 2, 72}},
    {head, {9, 5, 23, 23}},
    {head, {9, 16, 23, 8}},
    {head, {5, 4, 23, 1}},
    {head, {70, 8, 2100, 1200}},
    {rescale, {.rows = 77}},
};

/* ---- sides ---- */

static bool open_side(struct side *side, struct device *device, enum dtype dtype)
{
    const struct model_ops *ops = model_ops_of(device);
    struct ops_limits limits = {.rows = 4096, .cols = 2056, .weight_rows = 4096, .positions = 256};
    *side = (struct side){.dtype = dtype, .hash = 0xcbf29ce484222325u};
    struct ops_context *context = &side->context;
    context->ops = ops;
    context->device = device;
    context->compute = ops->compute(dtype);
    struct span scratch;
    size_t bytes = ops->scratch_bytes(&limits, context->compute);
    if (!CHECK_OK(memory_alloc(&side->arena, ARENA_BYTES, MEMORY_WORKSPACE, device))) return false;
    if (!CHECK_OK(memory_alloc(&scratch, bytes, MEMORY_WORKSPACE, device))) return false;
    context->scratch = scratch.ptr;
    if (ops->queued && !CHECK_OK(stream_open(&context->stream, device, "ops"))) return false;
    return CHECK_OK(ops->open(context));
}

static void close_side(struct side *side)
{
    struct device *device = side->context.device;
    side->context.ops->close(&side->context);
    if (side->context.stream != NULL) stream_close(side->context.stream, device);
    memory_free(&side->arena, MEMORY_WORKSPACE, device);
}

/* One test on both sides. */
static void run_test(
    struct side *found, struct side *expected, const struct test *test, size_t shift)
{
    struct sizes n = test->sizes;
    char text[96];
    snprintf(text, sizeof text, "(%zu, %zu, %zu, %zu)", n.rows, n.cols, n.out_cols, n.head_cols);
    expected->shift = found->shift = shift;
    test->run(expected, n);
    test->run(found, n);
    compare(found, expected, text);
    forget(expected), forget(found);
}

/* All tests in one dtype; the hash of what CUDA made. large: also the one that takes a second. */
static uint64_t run_dtype(struct device *host, struct device *cuda, enum dtype dtype, bool large)
{
    static const struct test two_tiles = {head, {65, 2, 131080, 131080}}; /* of tokens */
    struct side expected, found;
    if (!open_side(&expected, host, dtype) || !open_side(&found, cuda, dtype)) return 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        for (size_t shift = 0; shift < 2; shift++) run_test(&found, &expected, &tests[i], shift);
    uint64_t hash = found.hash;
    if (large && dtype == DTYPE_BFLOAT16) run_test(&found, &expected, &two_tiles, 0);
    close_side(&expected), close_side(&found);
    return hash;
}

/* A device of the simulator. bfloat16 takes tensor cores from compute capability 8.0 on. */
struct run {
    const char *order, *architecture;
    bool large;
};

/* In a process of its own: the simulator reads its settings once. */
static int run_in(struct run run, uint64_t *hashes)
{
    setenv("CUDASIM_ORDER", run.order, 1);
    setenv("CUDASIM_ARCH", run.architecture, 1);
    struct device *host = NULL, *cuda = NULL;
    if (!CHECK_OK(device_open(&host, "host"))) return 1;
    if (!CHECK_OK(device_open(&cuda, test_device_name()))) return 1;
    if (!CHECK(device_table(cuda, PLUGIN_MODEL) != NULL)) return 1;
    const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_BFLOAT16, DTYPE_FLOAT16};
    for (int i = 0; i < 3; i++) hashes[i] = run_dtype(host, cuda, dtypes[i], run.large);
    device_close(cuda);
    device_close(host);
    return test_result();
}

int main(void)
{
    if (device_known(test_device_name()) != STATUS_OK) return test_skip(status_text());
    enum { RUNS = 4, SAME = 3 }; /* the first ones differ in the order of threads alone */
    static const struct run runs[RUNS] = {{"forward", "80", false}, {"reverse", "80", false},
        {"random:7", "80", false}, {"forward", "75", true}};
    uint64_t(*hashes)[3] = mmap(
        NULL, sizeof *hashes * RUNS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (hashes == MAP_FAILED) abort();
    int count = strcmp(test_device_name(), "cudasim") == 0 ? RUNS : 1;
    for (int i = 0; i < count; i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) exit(run_in(runs[i], hashes[i]));
        int state = 0;
        CHECK(waitpid(child, &state, 0) == child);
        CHECK_MSG(WIFEXITED(state) && WEXITSTATUS(state) == 0, "threads in order %s, sm_%s",
            runs[i].order, runs[i].architecture);
        for (int d = 0; d < 3 && i < SAME; d++)
            CHECK_MSG(hashes[i][d] == hashes[0][d], "dtype %d: threads in order %s gave other bits",
                d, runs[i].order);
    }
    return test_result();
}
