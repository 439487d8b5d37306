/* The optimizer's CUDA table against the host's: the same bits, element for element and in the sum
 * of squares, for every dtype of gradients and of lent weights, with float32 weights and without,
 * rounded to nearest and by chance. Ranges are odd and even, shorter than a vector and longer than
 * a block, aligned and not; guards lie behind them. On the simulator in three thread orders.
 *
 * RINGZERO_TEST_DEVICE=cuda runs it on a GPU.
 * ctest: timeout=60
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "optim/adam.h"
#include "optim/norm.h"
#include "optim/numbers.h"
#include "tests/harness/harness.h"
#include "tests/harness/reference.h"

enum { MOST = 2 * 8192 + 3, GUARD = 16, ARRAYS = 5 };

/* Weights, m, v, gradients, lent: the host's bytes, and the device's. */
struct numbers {
    unsigned char host[ARRAYS][(MOST + GUARD) * sizeof(float)];
    unsigned char found[ARRAYS][(MOST + GUARD) * sizeof(float)];
    struct span device[ARRAYS];
};

struct fixture {
    struct adam_context cuda, host;
    struct numbers *n;
    double *sum;       /* pinned */
    struct span flags; /* of the device */
};

static const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_BFLOAT16, DTYPE_FLOAT16};

static void move(struct span to, struct span from, struct fixture *f)
{
    CHECK_OK(span_copy(to, from, f->cuda.stream, f->cuda.device));
    CHECK_OK(stream_synchronize(f->cuda.stream, f->cuda.device));
}

/* Array `which` = numbers of the dtype, on both sides. */
static void fill(struct fixture *f, int which, enum dtype dtype, double scale, bool positive)
{
    struct tensor x = tensor_make(MOST + GUARD, (uint64_t)which + 1, scale);
    for (size_t i = 0; i < x.count; i++) {
        if (positive) x.f[i] = fabsf(x.f[i]);
        x.f[i] =
            ldexpf(x.f[i], -(int)(i % 11)); /* or sums would be exact in double, in any order */
    }
    numbers_narrow(f->n->host[which], x.f, dtype, x.count);
    tensor_free(&x);
    size_t bytes = sizeof f->n->host[which];
    move(f->n->device[which], span_host(f->n->host[which], bytes), f);
}

/* Array `which` has the same bits on both sides, guards too. */
static bool same(struct fixture *f, int which)
{
    size_t bytes = sizeof f->n->found[which];
    move(span_host(f->n->found[which], bytes), f->n->device[which], f);
    return memcmp(f->n->found[which], f->n->host[which], bytes) == 0;
}

static void *host_at(struct fixture *f, int which, size_t shift, enum dtype dtype)
{
    return f->n->host[which] + shift * dtype_bytes(dtype);
}

static void *device_at(struct fixture *f, int which, size_t shift, enum dtype dtype)
{
    return (char *)f->n->device[which].ptr + shift * dtype_bytes(dtype);
}

/* The range that starts `shift` elements into every array. */
static struct adam_range range_at(struct fixture *f, bool on_host, size_t shift, size_t count,
    enum dtype gradients, enum dtype lent, bool weights)
{
    void *(*at)(struct fixture *, int, size_t, enum dtype) = on_host ? host_at : device_at;
    return (struct adam_range){
        .weights = weights ? at(f, 0, shift, DTYPE_FLOAT32) : NULL,
        .m = at(f, 1, shift, DTYPE_FLOAT32),
        .v = at(f, 2, shift, DTYPE_FLOAT32),
        .gradients = at(f, 3, shift, gradients),
        .gradients_dtype = gradients,
        .lent = lent == DTYPE_FLOAT32 ? NULL : at(f, 4, shift, lent),
        .lent_dtype = lent,
        .count = count,
    };
}

static void test_step(struct fixture *f, size_t count, size_t shift, enum dtype gradients,
    enum dtype lent, bool weights, bool stochastic)
{
    fill(f, 0, DTYPE_FLOAT32, 1.0, false);
    fill(f, 1, DTYPE_FLOAT32, 0.1, false);
    fill(f, 2, DTYPE_FLOAT32, 0.01, true);
    fill(f, 3, gradients, 2.0, false);
    fill(f, 4, lent, 1.0, false);
    const struct adam_update update = {
        .lr = 0.01f,
        .gradient_scale = 0.7f,
        .decay = 0.1f,
        .t = 3,
        .config = adam_config_default(),
        .stochastic = stochastic,
        .seed = 42,
        .first = 1000003,
    };
    struct adam_range found = range_at(f, false, shift, count, gradients, lent, weights);
    struct adam_range expected = range_at(f, true, shift, count, gradients, lent, weights);
    f->cuda.ops->step(&found, &update, &f->cuda);
    f->host.ops->step(&expected, &update, &f->host);
    for (int i = 0; i < ARRAYS; i++)
        CHECK_MSG(same(f, i),
            "step, array %d: %zu elements from %zu on, gradients %s, lent %s, %s float32 weights%s",
            i, count, shift, dtype_name(gradients), dtype_name(lent), weights ? "with" : "without",
            stochastic ? ", by chance" : "");
}

static void test_sums(struct fixture *f, size_t count, size_t shift, enum dtype dtype)
{
    double expected = NAN;
    fill(f, 3, dtype, 1.0, false);
    fill(f, 4, dtype, 1.0, false);
    void *x = device_at(f, 3, shift, dtype), *sum = device_at(f, 4, shift, dtype);
    *f->sum = NAN;
    f->cuda.ops->squares(f->sum, x, dtype, count, &f->cuda);
    f->cuda.ops->add(sum, x, dtype, count, &f->cuda);
    f->host.ops->squares(&expected, host_at(f, 3, shift, dtype), dtype, count, &f->host);
    f->host.ops->add(
        host_at(f, 4, shift, dtype), host_at(f, 3, shift, dtype), dtype, count, &f->host);
    CHECK_MSG(same(f, 4), "add: %zu of %s from %zu on", count, dtype_name(dtype), shift);
    CHECK_MSG(*f->sum == expected, "squares: %zu of %s from %zu on: %.17g, expected %.17g", count,
        dtype_name(dtype), shift, *f->sum, expected);
    if (dtype == DTYPE_FLOAT32) return;
    fill(f, 0, DTYPE_FLOAT32, 1.0, false);
    const struct adam_update chance = {.stochastic = true, .seed = 3, .t = 9, .first = 1000};
    for (int by_chance = 0; by_chance < 2; by_chance++) {
        const struct adam_update *update = by_chance ? &chance : NULL;
        f->cuda.ops->narrow(
            sum, device_at(f, 0, shift, DTYPE_FLOAT32), dtype, count, update, &f->cuda);
        f->host.ops->narrow(host_at(f, 4, shift, dtype), host_at(f, 0, shift, DTYPE_FLOAT32), dtype,
            count, update, &f->host);
        CHECK_MSG(same(f, 4), "narrow: %zu to %s from %zu on%s", count, dtype_name(dtype), shift,
            by_chance ? ", by chance" : "");
    }
}

static uint32_t flag_of(struct fixture *f)
{
    uint32_t flag = 77;
    move(span_host(&flag, sizeof flag), f->flags, f);
    return flag;
}

static void test_scale(struct fixture *f, size_t count, size_t shift, enum dtype dtype)
{
    fill(f, 3, dtype, 1.0, false);
    uint32_t expected = 0;
    const float factors[] = {1.0f / 3.0f, 1e38f, 1e38f}; /* the last one makes infinities */
    move(f->flags, span_host(&expected, sizeof expected), f);
    for (size_t i = 0; i < 3; i++) {
        f->cuda.ops->scale(
            device_at(f, 3, shift, dtype), f->flags.ptr, dtype, factors[i], count, &f->cuda);
        f->host.ops->scale(
            host_at(f, 3, shift, dtype), &expected, dtype, factors[i], count, &f->host);
        CHECK_MSG(
            same(f, 3), "scale: %zu of %s by %g", count, dtype_name(dtype), (double)factors[i]);
        CHECK_MSG(flag_of(f) == expected, "scale: flag %u, expected %u", flag_of(f), expected);
    }
    CHECK(expected == 1);
}

static void run_all(struct fixture *f)
{
    const size_t counts[] = {0, 1, 7, 8, 1003, MOST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t d = 0; d < 3; d++) {
            test_sums(f, counts[c], c % 2, dtypes[d]);
            if (counts[c] > 0) test_scale(f, counts[c], (c + d) % 2, dtypes[d]);
        }
    for (size_t shift = 0; shift < 2; shift++)
        for (size_t g = 0; g < 3; g++)
            for (size_t l = 0; l < 3; l++) {
                test_step(f, 1003, shift, dtypes[g], dtypes[l], true, false);
                if (l > 0) test_step(f, 1003, shift, dtypes[g], dtypes[l], false, false);
                if (l > 0) test_step(f, 1003, shift, dtypes[g], dtypes[l], g > 0, true);
            }
    test_step(f, MOST, 0, DTYPE_BFLOAT16, DTYPE_BFLOAT16, true, true);
    test_step(f, 0, 0, DTYPE_BFLOAT16, DTYPE_BFLOAT16, true, false);
}

/* In a process of its own: the simulator reads its settings once. */
static int run_order(const char *order)
{
    setenv("CUDASIM_ORDER", order, 1);
    struct device *device = NULL;
    struct fixture f = {.host = {.ops = &adam_ops_host}};
    struct span sum, scratch;
    if (!CHECK_OK(device_open(&device, test_device_name()))) return 1;
    f.cuda = (struct adam_context){.ops = adam_ops_of(device), .device = device};
    if (!CHECK(f.cuda.ops != NULL && f.cuda.ops->queued)) return 1;
    if (!CHECK_OK(stream_open(&f.cuda.stream, device, "adam"))) return 1;
    CHECK_OK(memory_alloc(&scratch, f.cuda.ops->scratch_bytes, MEMORY_WORKSPACE, device));
    CHECK_OK(memory_alloc(&f.flags, sizeof(uint32_t), MEMORY_WORKSPACE, device));
    CHECK_OK(memory_alloc_kind(&sum, sizeof *f.sum, MEMORY_HOST_PINNED, MEMORY_WORKSPACE, device));
    f.cuda.scratch = scratch.ptr;
    f.sum = sum.ptr;
    f.n = calloc(1, sizeof *f.n);
    if (f.n == NULL) abort();
    for (int i = 0; i < ARRAYS; i++)
        CHECK_OK(memory_alloc(&f.n->device[i], sizeof f.n->host[i], MEMORY_WORKSPACE, device));
    run_all(&f);
    for (int i = 0; i < ARRAYS; i++) memory_free(&f.n->device[i], MEMORY_WORKSPACE, device);
    memory_free(&scratch, MEMORY_WORKSPACE, device);
    memory_free(&f.flags, MEMORY_WORKSPACE, device);
    memory_free(&sum, MEMORY_WORKSPACE, device);
    stream_close(f.cuda.stream, device);
    device_close(device);
    free(f.n);
    return test_result();
}

int main(void)
{
    if (device_known(test_device_name()) != STATUS_OK) return test_skip(status_text());
    static const char *const orders[] = {"forward", "reverse", "random:7"};
    int runs = strcmp(test_device_name(), "cudasim") == 0 ? 3 : 1;
    for (int i = 0; i < runs; i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) exit(run_order(orders[i]));
        int state = 0;
        CHECK(waitpid(child, &state, 0) == child);
        CHECK_MSG(WIFEXITED(state) && WEXITSTATUS(state) == 0, "threads in order %s", orders[i]);
    }
    return test_result();
}
