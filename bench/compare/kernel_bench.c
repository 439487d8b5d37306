/* kernel_bench: how near the kernels of a device come to what it can do at all: those that memory
 * bounds to a copy inside its memory, those that arithmetic bounds to a large matrix product; both
 * are measured in the same run.
 *
 *   kernel_bench DEVICE         arrays of 2^26 elements, layers of gpt2-124m at 16 · 1024 tokens: 2 GiB
 *   kernel_bench DEVICE tiny    sizes that a simulator can do: its times mean nothing
 *
 * Two tables, as Markdown. Bytes per element are those that the head of each kernel's file states:
 * what must move at least, so a share of a copy is no more than was reached. A time is the best of
 * BATCHES means; calls of a batch are queued one behind another, so the host's part of a launch
 * does not show where the device has enough to do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/ops.h"
#include "optim/adam.h"
#include "ring/reduce.h"
#include "verbs/clock.h"

#define BATCHES 3
#define ARRAYS  6
#define PATTERN ((size_t)65521) /* elements of the pattern that arrays are filled with */

struct sizes {
    size_t elements; /* of what memory bounds */
    size_t product;  /* rows and columns of the large product */
    size_t batch, t, cols, head_cols, vocab;
    int rounds; /* calls of a batch */
};

static const struct sizes real_sizes = {(size_t)1 << 26, 8192, 16, 1024, 768, 64, 50257, 20};
static const struct sizes tiny_sizes = {(size_t)1 << 12, 64, 1, 64, 64, 64, 256, 1};

struct bench {
    struct sizes n;
    struct device *device;
    struct stream *stream;
    struct ops_context model;
    struct adam_context adam;
    const struct reduce_ops *reduce;
    struct span arrays[ARRAYS]; /* of 4 · elements bytes each, or what the products need */
    struct span statistics;     /* 4 · statistic_count() floats */
    struct span tokens;         /* rows ids */
    struct span sum;            /* pinned: a double */
    struct span scratch[3];     /* the model's, the optimizer's; of attention and of the head */
};

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}
static size_t tokens_of(const struct sizes *n)
{
    return n->batch * n->t;
}
static size_t norm_rows(const struct sizes *n)
{
    return n->elements / n->cols;
}

static struct attention_size attention_of(const struct sizes *n)
{
    size_t heads = n->cols / n->head_cols;
    return (struct attention_size){n->batch, n->t, heads, heads, n->head_cols};
}

static size_t statistic_count(const struct sizes *n)
{
    return largest(norm_rows(n), tokens_of(n) * (n->cols / n->head_cols));
}

static float *statistic(int which, const struct bench *b)
{
    return (float *)b->statistics.ptr + (size_t)which * statistic_count(&b->n);
}

/* ---- what memory bounds ---- */

static enum status run_copy(const struct bench *b)
{
    size_t bytes = b->n.elements * sizeof(float);
    return span_copy(
        span_part(b->arrays[1], 0, bytes), span_part(b->arrays[0], 0, bytes), b->stream, b->device);
}

struct reducing {
    const struct bench *bench;
    struct reduce_slice slice;
    struct reduction reduction;
};

static enum status reduce_now(void *arguments)
{
    const struct reducing *r = arguments;
    return r->bench->reduce->combine(
        &r->slice, &r->reduction, stream_native(r->bench->stream), r->bench->device);
}

static enum status reduce(enum dtype dtype, bool wide, bool sends, const struct bench *b)
{
    struct reducing r = {
        .bench = b, .reduction = {.dtype = dtype, .redop = REDOP_SUM, .nranks = 8, .wide = wide}};
    r.slice = (struct reduce_slice){.wire = b->arrays[0].ptr,
        .own = b->arrays[1].ptr,
        .out = b->arrays[2].ptr,
        .slot = sends ? b->arrays[3].ptr : NULL,
        .count = b->n.elements};
    return stream_launch(b->stream, reduce_now, &r, sizeof r, b->device);
}

static enum status run_sum_float32(const struct bench *b)
{
    return reduce(DTYPE_FLOAT32, false, false, b);
}
static enum status run_sum_send(const struct bench *b)
{
    return reduce(DTYPE_FLOAT32, false, true, b);
}
static enum status run_sum_bfloat16(const struct bench *b)
{
    return reduce(DTYPE_BFLOAT16, false, false, b);
}
static enum status run_sum_wide(const struct bench *b)
{
    return reduce(DTYPE_BFLOAT16, true, false, b);
}

static enum status run_adam(const struct bench *b)
{
    struct adam_range range = {b->arrays[0].ptr, b->arrays[1].ptr, b->arrays[2].ptr,
        b->arrays[3].ptr, DTYPE_BFLOAT16, b->arrays[4].ptr, DTYPE_BFLOAT16, b->n.elements};
    struct adam_update update = {
        .lr = 1e-4f, .gradient_scale = 1.0f, .t = 10, .config = adam_config_default()};
    b->adam.ops->step(&range, &update, &b->adam);
    return STATUS_OK;
}

static enum status run_squares(const struct bench *b)
{
    b->adam.ops->squares(b->sum.ptr, b->arrays[3].ptr, DTYPE_BFLOAT16, b->n.elements, &b->adam);
    return STATUS_OK;
}

static enum status run_narrow_add(const struct bench *b)
{
    b->model.ops->narrow_add(
        b->arrays[3].ptr, b->arrays[0].ptr, DTYPE_BFLOAT16, b->n.elements, &b->model);
    return STATUS_OK;
}

static enum status run_norm_forward(const struct bench *b)
{
    b->model.ops->layernorm_forward(b->arrays[1].ptr, statistic(0, b), statistic(1, b),
        b->arrays[0].ptr, b->arrays[3].ptr, b->arrays[4].ptr, norm_rows(&b->n), b->n.cols,
        &b->model);
    return STATUS_OK;
}

static enum status run_norm_backward(const struct bench *b)
{
    b->model.ops->layernorm_backward(b->arrays[2].ptr, b->arrays[4].ptr, b->arrays[5].ptr,
        b->arrays[1].ptr, b->arrays[0].ptr, statistic(0, b), statistic(1, b), b->arrays[3].ptr,
        norm_rows(&b->n), b->n.cols, &b->model);
    return STATUS_OK;
}

static enum status run_residual(const struct bench *b)
{
    b->model.ops->bias_residual_add(b->arrays[1].ptr, b->arrays[0].ptr, b->arrays[3].ptr,
        norm_rows(&b->n), b->n.cols, &b->model);
    return STATUS_OK;
}

static enum status run_embedding(const struct bench *b)
{
    b->model.ops->embedding_forward(b->arrays[1].ptr, b->tokens.ptr, b->arrays[0].ptr, 0,
        b->n.vocab, tokens_of(&b->n), b->n.cols, &b->model);
    return STATUS_OK;
}

static enum status head_forward(size_t cols, const struct bench *b)
{
    struct head_rows all = {0, b->n.vocab, b->arrays[3].ptr};
    b->model.ops->head_forward(statistic(0, b), statistic(1, b), statistic(2, b), b->scratch[2].ptr,
        b->arrays[0].ptr, b->tokens.ptr, all, tokens_of(&b->n), cols, &b->model);
    return STATUS_OK;
}

static enum status head_backward(size_t cols, const struct bench *b)
{
    struct head_rows all = {0, b->n.vocab, b->arrays[3].ptr};
    b->model.ops->head_backward(b->arrays[1].ptr, b->arrays[4].ptr, b->scratch[2].ptr,
        b->arrays[0].ptr, statistic(3, b), b->tokens.ptr, 1e-3f, all, tokens_of(&b->n), cols,
        &b->model);
    return STATUS_OK;
}

/* With so few columns products do little but write what the cross-entropy reads. */
#define FEW 8
static enum status run_entropy_forward(const struct bench *b)
{
    return head_forward(FEW, b);
}
static enum status run_entropy_backward(const struct bench *b)
{
    return head_backward(FEW, b);
}

/* ---- what arithmetic bounds ---- */

static enum status linear(
    size_t rows, size_t in_cols, size_t out_cols, bool biased, bool gelu, const struct bench *b)
{
    b->model.ops->linear_forward(b->arrays[1].ptr, gelu ? b->arrays[2].ptr : NULL, b->arrays[0].ptr,
        b->arrays[3].ptr, biased ? b->arrays[4].ptr : NULL, rows, in_cols, out_cols, &b->model);
    return STATUS_OK;
}

static enum status run_product(const struct bench *b)
{
    return linear(b->n.product, b->n.product, b->n.product, false, false, b);
}
static enum status run_qkv(const struct bench *b)
{
    return linear(tokens_of(&b->n), b->n.cols, 3 * b->n.cols, true, false, b);
}
static enum status run_fc(const struct bench *b)
{
    return linear(tokens_of(&b->n), b->n.cols, 4 * b->n.cols, true, true, b);
}
static enum status run_fc_projection(const struct bench *b)
{
    return linear(tokens_of(&b->n), 4 * b->n.cols, b->n.cols, true, false, b);
}

/* Of fc's projection, whose input is GELU's output. */
static enum status run_fc_backward(const struct bench *b)
{
    b->model.ops->linear_backward(b->arrays[1].ptr, b->arrays[4].ptr, b->arrays[5].ptr,
        b->arrays[0].ptr, b->arrays[2].ptr, b->arrays[2].ptr, b->arrays[3].ptr, tokens_of(&b->n),
        4 * b->n.cols, b->n.cols, &b->model);
    return STATUS_OK;
}

static enum status run_attention_forward(const struct bench *b)
{
    b->model.ops->attention_forward(b->arrays[1].ptr, statistic(0, b), b->scratch[2].ptr,
        b->arrays[0].ptr, attention_of(&b->n), &b->model);
    return STATUS_OK;
}

static enum status run_attention_backward(const struct bench *b)
{
    b->model.ops->attention_backward(b->arrays[3].ptr, b->scratch[2].ptr, b->arrays[2].ptr,
        b->arrays[0].ptr, b->arrays[1].ptr, statistic(0, b), attention_of(&b->n), &b->model);
    return STATUS_OK;
}

static enum status run_head_forward(const struct bench *b)
{
    return head_forward(b->n.cols, b);
}
static enum status run_head_backward(const struct bench *b)
{
    return head_backward(b->n.cols, b);
}

/* ---- measuring ---- */

/* work: elements, or operations. */
struct row {
    const char *name;
    enum status (*run)(const struct bench *b);
    double work, bytes;
};

static enum status measure(double *seconds, const struct row *row, const struct bench *b)
{
    TRY(row->run(b)); /* loads the kernel */
    TRY(stream_synchronize(b->stream, b->device));
    for (int batch = 0; batch < BATCHES; batch++) {
        int64_t begin = clock_ns();
        for (int i = 0; i < b->n.rounds; i++) TRY(row->run(b));
        TRY(stream_synchronize(b->stream, b->device));
        double mean = (double)(clock_ns() - begin) * 1e-9 / b->n.rounds;
        if (batch == 0 || mean < *seconds) *seconds = mean;
    }
    return STATUS_OK;
}

/* The first row is what the others are compared with. */
static enum status print_bandwidths(const struct bench *b)
{
    const struct sizes *n = &b->n;
    double s = (double)dtype_bytes(b->model.compute), elements = (double)n->elements;
    double normed = (double)(norm_rows(n) * n->cols), embedded = (double)(tokens_of(n) * n->cols);
    double logits = (double)tokens_of(n) * (double)n->vocab, copied = 0;
    const struct row rows[] = {
        {"copy", run_copy, elements, 8},
        {"sum of float32", run_sum_float32, elements, 12},
        {"sum of float32, kept and sent", run_sum_send, elements, 16},
        {"sum of bfloat16", run_sum_bfloat16, elements, 6},
        {"sum of bfloat16 into float32, finished", run_sum_wide, elements, 8},
        {"AdamW, bfloat16 with a master copy", run_adam, elements, 28},
        {"sum of squares, bfloat16", run_squares, elements, 2},
        {"gradient into bfloat16", run_narrow_add, elements, 8},
        {"layer norm", run_norm_forward, normed, 2 * s},
        {"layer norm, backward", run_norm_backward, normed, 4 * s},
        {"bias and residual", run_residual, normed, 3 * s},
        {"embedding", run_embedding, embedded, 2 * s},
        {"cross-entropy, with a product of 8 columns", run_entropy_forward, logits, 8},
        {"the same, backward, with three", run_entropy_backward, logits, 8 + 3 * s},
    };
    printf("| what memory bounds | bytes per element | elements | µs | GB/s | of a copy "
           "|\n|---|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double seconds = 0;
        TRY(measure(&seconds, &rows[i], b));
        double rate = rows[i].work * rows[i].bytes / seconds;
        if (i == 0) copied = rate;
        printf("| %s | %g | %.0f | %.4g | %.4g | %.0f %% |\n", rows[i].name, rows[i].bytes,
            rows[i].work, seconds * 1e6, rate * 1e-9, 100 * rate / copied);
    }
    return STATUS_OK;
}

/* Operations of a causal attention: half of all pairs, two products forward, five backward. */
static enum status print_products(const struct bench *b)
{
    const struct sizes *n = &b->n;
    double rows_cols = (double)(tokens_of(n) * n->cols), c = (double)n->cols,
           side = (double)n->product, largest_rate = 0;
    double pairs = (double)n->batch * (double)n->t * (double)n->t * c,
           head = 2 * rows_cols * (double)n->vocab;
    const struct row rows[] = {
        {"large product", run_product, 2 * side * side * side, 0},
        {"queries, keys, values, with bias", run_qkv, 6 * rows_cols * c, 0},
        {"fc, with bias and GELU", run_fc, 8 * rows_cols * c, 0},
        {"fc's projection, with bias", run_fc_projection, 8 * rows_cols * c, 0},
        {"fc's projection, backward, with GELU's", run_fc_backward, 16 * rows_cols * c, 0},
        {"attention", run_attention_forward, 2 * pairs, 0},
        {"attention, backward", run_attention_backward, 5 * pairs, 0},
        {"head, with cross-entropy", run_head_forward, head, 0},
        {"head, backward, logits again", run_head_backward, 3 * head, 0},
    };
    printf("\n| what arithmetic bounds, in %s | GFLOP | µs | TFLOP/s | of the large product "
           "|\n|---|---:|---:|---:|---:|\n",
        dtype_name(b->model.compute));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double seconds = 0;
        TRY(measure(&seconds, &rows[i], b));
        double rate = rows[i].work / seconds;
        if (i == 0) largest_rate = rate;
        printf("| %s | %.4g | %.4g | %.4g | %.0f %% |\n", rows[i].name, rows[i].work * 1e-9,
            seconds * 1e6, rate * 1e-12, 100 * rate / largest_rate);
    }
    return STATUS_OK;
}

/* ---- the device ---- */

static enum status open_ops(struct bench *b)
{
    const struct sizes *n = &b->n;
    b->model = (struct ops_context){.ops = model_ops_of(b->device), .device = b->device};
    b->adam = (struct adam_context){.ops = adam_ops_of(b->device), .device = b->device};
    b->reduce = reduce_ops_of(b->device);
    if (b->model.ops == NULL || b->adam.ops == NULL || b->reduce == NULL)
        return FAIL(STATUS_INVALID, "%s was built without kernels", device_name(b->device));
    b->model.compute = b->model.ops->compute(DTYPE_BFLOAT16);
    const struct ops_limits limits = {
        .rows = largest(norm_rows(n), largest(tokens_of(n), n->product)),
        .cols = largest(4 * n->cols, n->product),
        .weight_rows = n->vocab,
        .positions = n->t};
    TRY(memory_alloc(&b->scratch[0], b->model.ops->scratch_bytes(&limits, b->model.compute),
        MEMORY_WORKSPACE, b->device));
    TRY(memory_alloc(&b->scratch[1], b->adam.ops->scratch_bytes, MEMORY_WORKSPACE, b->device));
    size_t attention = b->model.ops->attention_scratch_bytes(attention_of(n), b->model.compute);
    size_t head =
        b->model.ops->head_scratch_bytes(n->vocab, tokens_of(n), n->cols, b->model.compute);
    TRY(memory_alloc(&b->scratch[2], largest(attention, head), MEMORY_WORKSPACE, b->device));
    b->model.scratch = b->scratch[0].ptr;
    b->adam.scratch = b->scratch[1].ptr;
    if (b->model.ops->queued) b->model.stream = b->stream;
    if (b->adam.ops->queued) b->adam.stream = b->stream;
    return b->model.ops->open(&b->model);
}

/* Zeros would cost less power than numbers: an array is filled with a pattern of 16-bit floats
 * between -1 and 1, which read as float32 are between -1 and 1 as well. */
static enum status fill_array(
    const struct span *array, const uint16_t *pattern, struct device *device)
{
    for (size_t at = 0; at < array->bytes; at += PATTERN * sizeof *pattern) {
        size_t left = array->bytes - at,
               bytes = left < PATTERN * sizeof *pattern ? left : PATTERN* sizeof *pattern;
        TRY(span_copy(span_part(*array, at, bytes), span_host(pattern, bytes), NULL, device));
    }
    return STATUS_OK;
}

static enum status fill_arrays(struct bench *b)
{
    static uint16_t pattern[PATTERN];
    size_t ids = tokens_of(&b->n);
    int32_t *tokens = malloc(ids * sizeof *tokens);
    if (tokens == NULL) return FAIL(STATUS_SYSTEM, "no memory for %zu tokens", ids);
    uint32_t state = 1;
    for (size_t i = 0; i < PATTERN; i++, state = state * 1664525 + 1013904223)
        pattern[i] = float32_to_bfloat16((float)(state >> 8) * 0x1p-23f - 1.0f);
    for (size_t i = 0; i < ids; i++, state = state * 1664525 + 1013904223)
        tokens[i] = (int32_t)((state >> 8) % b->n.vocab);
    enum status status =
        span_copy(b->tokens, span_host(tokens, ids * sizeof *tokens), NULL, b->device);
    free(tokens);
    for (int i = 0; i < ARRAYS && status == STATUS_OK; i++)
        status = fill_array(&b->arrays[i], pattern, b->device);
    return status;
}

static enum status bench_open(struct bench *b, const char *name)
{
    const struct sizes *n = &b->n;
    TRY(device_open(&b->device, name));
    TRY(stream_open(&b->stream, b->device, "kernels"));
    size_t s = sizeof(float), most = largest(n->elements, n->product * n->product);
    most = largest(most, largest(4 * tokens_of(n), n->vocab) * n->cols);
    for (int i = 0; i < ARRAYS; i++)
        TRY(memory_alloc(&b->arrays[i], most * s, MEMORY_WORKSPACE, b->device));
    TRY(memory_alloc(&b->statistics, 4 * statistic_count(n) * s, MEMORY_WORKSPACE, b->device));
    TRY(memory_alloc(&b->tokens, tokens_of(n) * sizeof(int32_t), MEMORY_WORKSPACE, b->device));
    TRY(memory_alloc_kind(
        &b->sum, sizeof(double), MEMORY_HOST_PINNED, MEMORY_WORKSPACE, b->device));
    TRY(open_ops(b));
    return fill_arrays(b);
}

static void bench_close(struct bench *b)
{
    if (b->model.inside != NULL) b->model.ops->close(&b->model);
    if (b->stream != NULL) stream_close(b->stream, b->device);
    for (int i = 0; i < ARRAYS; i++) memory_free(&b->arrays[i], MEMORY_WORKSPACE, b->device);
    for (int i = 0; i < 3; i++) memory_free(&b->scratch[i], MEMORY_WORKSPACE, b->device);
    memory_free(&b->statistics, MEMORY_WORKSPACE, b->device);
    memory_free(&b->tokens, MEMORY_WORKSPACE, b->device);
    memory_free(&b->sum, MEMORY_WORKSPACE, b->device);
    device_close(b->device);
}

static enum status run(struct bench *b, const char *name)
{
    TRY(bench_open(b, name));
    TRY(print_bandwidths(b));
    return print_products(b);
}

int main(int argc, char **argv)
{
    bool tiny = argc == 3 && strcmp(argv[2], "tiny") == 0;
    if (argc != 2 && !tiny) {
        fprintf(
            stderr, "kernel_bench: expected kernel_bench DEVICE [tiny], as in kernel_bench cuda\n");
        return 2;
    }
    struct bench b = {.n = tiny ? tiny_sizes : real_sizes};
    enum status status = run(&b, argv[1]);
    if (status != STATUS_OK) fprintf(stderr, "kernel_bench: %s\n", status_text());
    if (b.device != NULL) bench_close(&b);
    return status != STATUS_OK;
}
