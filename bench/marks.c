/* marks: see marks.h. */
#include "bench/marks.h"

#include "bench/limit.h"
#include "model/ops.h"
#include "verbs/clock.h"

#define LEAST_SIZE 128
#define MOST_SIZE  8192
#define LONG_NS    8000000 /* of a product: its beginning and end must not count */
#define ROUNDS     8
#define SOME_BYTE  0x3c
#define COPY_BYTES ((size_t)32 << 20)

/* c (size, size) = a · bᵀ, as a linear layer without bias. */
struct product {
    size_t size;
    struct span a, b, c, scratch;
    struct ops_context context;
};

static void product_close(struct product *product)
{
    struct device *device = product->context.device;
    memory_free(&product->a, MEMORY_WORKSPACE, device);
    memory_free(&product->b, MEMORY_WORKSPACE, device);
    memory_free(&product->c, MEMORY_WORKSPACE, device);
}

static enum status product_open(struct product *product, size_t size)
{
    const struct ops_context *context = &product->context;
    size_t bytes = size * size * dtype_bytes(context->compute);
    product->size = size;
    TRY(memory_alloc(&product->a, bytes, MEMORY_WORKSPACE, context->device));
    TRY(memory_alloc(&product->b, bytes, MEMORY_WORKSPACE, context->device));
    TRY(memory_alloc(&product->c, bytes, MEMORY_WORKSPACE, context->device));
    TRY(span_fill(product->a, SOME_BYTE, NULL, context->device)); /* of every dtype about 0.01 */
    return span_fill(product->b, SOME_BYTE, NULL, context->device);
}

/* *ns: the fastest of `rounds`. */
static enum status product_time(int64_t *ns, int rounds, struct product *product)
{
    const struct ops_context *context = &product->context;
    *ns = INT64_MAX;
    for (int i = 0; i < rounds; i++) {
        int64_t begin_ns = clock_ns();
        context->ops->linear_forward(product->c.ptr, NULL, product->a.ptr, product->b.ptr, NULL,
            product->size, product->size, product->size, context);
        if (context->stream != NULL) TRY(stream_synchronize(context->stream, context->device));
        int64_t took_ns = clock_ns() - begin_ns;
        if (took_ns < *ns) *ns = took_ns;
    }
    return STATUS_OK;
}

/* The size at which one takes long enough on some rank: the same on all. The caller closes the product. */
static enum status measure_products(struct marks *marks, struct product *product, struct job *job)
{
    for (size_t size = LEAST_SIZE;; size *= 2) {
        int64_t ns;
        TRY(product_open(product, size));
        TRY(product_time(&ns, 2, product));
        double longest = (double)ns;
        TRY(job_max(&longest, job));
        bool enough = longest >= LONG_NS || size == MOST_SIZE;
        if (enough) {
            TRY(product_time(&ns, ROUNDS, product));
            marks->size = (int)size;
            marks->gflops = 2.0 * (double)size * (double)size * (double)size / (double)ns;
        }
        product_close(product);
        if (enough) return STATUS_OK;
    }
}

static enum status measure_copies(struct marks *marks, struct job *job)
{
    struct limit limit;
    struct span a = {0}, b = {0};
    enum status status;
    TRY_GOTO(memory_alloc(&a, COPY_BYTES, MEMORY_WORKSPACE, job->device));
    TRY_GOTO(memory_alloc(&b, COPY_BYTES, MEMORY_WORKSPACE, job->device));
    TRY_GOTO(limit_measure_copy(&limit, a, b, COPY_BYTES, job));
    marks->copy_gbps = limit.gbps;
fail:
    memory_free(&a, MEMORY_WORKSPACE, job->device);
    memory_free(&b, MEMORY_WORKSPACE, job->device);
    return status;
}

enum status marks_measure(struct marks *marks, enum dtype weights, struct job *job)
{
    TRY(model_ops_check(job->device));
    const struct model_ops *ops = model_ops_of(job->device);
    struct product product = {
        .context = {.ops = ops, .device = job->device, .compute = ops->compute(weights)}};
    struct ops_context *context = &product.context;
    const struct ops_limits limits = {.rows = MOST_SIZE, .cols = MOST_SIZE, .positions = 1};
    size_t bytes = ops->scratch_bytes(&limits, context->compute);
    enum status status = STATUS_OK;
    if (ops->queued) TRY(stream_open(&context->stream, job->device, "marks"));
    TRY_GOTO(memory_alloc(&product.scratch, bytes, MEMORY_WORKSPACE, job->device));
    context->scratch = product.scratch.ptr;
    TRY_GOTO(ops->open(context));
    TRY_GOTO(measure_products(marks, &product, job));
    TRY_GOTO(measure_copies(marks, job));
fail:
    ops->close(context);
    stream_close(context->stream, job->device);
    product_close(&product);
    memory_free(&product.scratch, MEMORY_WORKSPACE, job->device);
    memory_account_forget_peaks(job->device);
    return status;
}
