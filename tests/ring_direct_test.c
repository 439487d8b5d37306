/* Collectives with a root or between two ranks, the v-forms and groups, against plain references, over every transport, and on CUDA
 * memory where there is a device: RINGZERO_TEST_DEVICE, else the simulator.
 * ctest: timeout=120
 *
 * Values are small integers that say where they come from, exact in int32; outputs are poisoned first; counts include 0, and for
 * the v-forms ranks without any element. Orders that would deadlock without a group are tried inside one.
 */
#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"
#include "tests/harness/edge_chaos.h"
#include "tests/harness/harness.h"
#include "tests/harness/through_device.h"

#define POISON (-7777)

static int32_t value(int rank, int to, size_t i) { return (int32_t)(rank * 1000003 + to * 10007 + (int)(i % 9973)); }

struct world {
    struct ring_comm *comm;
    struct stream *stream; /* every other call runs on it */
    struct device *device;
    int n, rank, calls;
};

/* Where the next call runs; finish() waits for it. */
static struct stream *where(struct world *world) { return world->calls++ % 2 ? world->stream : NULL; }
static void finish(struct world *world, enum status status)
{
    if (CHECK_OK(status)) CHECK_OK(stream_synchronize(world->stream, world->device));
}

static int32_t *filled(size_t count)
{
    int32_t *x = malloc((count + 1) * sizeof *x);
    for (size_t i = 0; i <= count; i++) x[i] = POISON;
    return x;
}

static struct span span_of(int32_t *x, size_t count) { return span_host(x, count * sizeof *x); }

static void check_reduce(struct world *world, size_t count, int root, bool in_place)
{
    int32_t *send = filled(count), *recv = in_place ? send : filled(count);
    for (size_t i = 0; i < count; i++) send[i] = value(world->rank, 0, i);
    struct span out = world->rank == root ? span_of(recv, count) : span_host(NULL, 0);
    finish(world, ring_reduce(out, span_of(send, count), count, DTYPE_INT32, REDOP_SUM, root, world->comm, where(world)));
    size_t wrong = 0;
    for (size_t i = 0; i < count && world->rank == root; i++) {
        int32_t sum = 0;
        for (int r = 0; r < world->n; r++) sum += value(r, 0, i);
        wrong += recv[i] != sum;
    }
    CHECK_MSG(wrong == 0, "reduce to %d: %zu of %zu differ", root, wrong, count);
    CHECK(recv[count] == POISON);
    if (!in_place) free(recv);
    free(send);
}

static void check_scatter_gather(struct world *world, size_t count, int root)
{
    size_t all = count * (size_t)world->n;
    int32_t *whole = filled(all), *part = filled(count), *back = filled(all);
    bool is_root = world->rank == root;
    for (size_t i = 0; i < all && is_root; i++) whole[i] = value(root, 1, i);
    struct span none = span_host(NULL, 0);
    finish(world, ring_scatter(span_of(part, count), is_root ? span_of(whole, all) : none, count, DTYPE_INT32, root,
        world->comm, where(world)));
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) wrong += part[i] != value(root, 1, (size_t)world->rank * count + i);
    finish(world, ring_gather(is_root ? span_of(back, all) : none, span_of(part, count), count, DTYPE_INT32, root, world->comm,
        where(world)));
    for (size_t i = 0; i < all && is_root; i++) wrong += back[i] != value(root, 1, i);
    /* In place on the root. */
    struct span own = span_of(whole + (size_t)root * count, count);
    finish(world, ring_gather(is_root ? span_of(whole, all) : none, is_root ? own : span_of(part, count), count, DTYPE_INT32,
        root, world->comm, where(world)));
    for (size_t i = 0; i < all && is_root; i++) wrong += whole[i] != value(root, 1, i);
    CHECK_MSG(wrong == 0, "scatter and gather, root %d: %zu of %zu differ", root, wrong, all);
    CHECK(part[count] == POISON && back[all] == POISON && whole[all] == POISON);
    free(whole);
    free(part);
    free(back);
}

static void check_all_to_all(struct world *world, size_t count)
{
    size_t all = count * (size_t)world->n, wrong = 0;
    int32_t *send = filled(all), *recv = filled(all);
    for (size_t i = 0; i < all; i++) send[i] = value(world->rank, (int)(i / count), i % count);
    finish(world, ring_all_to_all(span_of(recv, all), span_of(send, all), count, DTYPE_INT32, world->comm, where(world)));
    for (size_t i = 0; i < all; i++) wrong += recv[i] != value((int)(i / count), world->rank, i % count);
    CHECK_MSG(wrong == 0, "all_to_all: %zu of %zu differ", wrong, all);
    CHECK(recv[all] == POISON);
    if (count > 0 && world->n > 1) /* on every rank alike: refused before anything is sent */
        CHECK_STATUS(ring_all_to_all(span_of(send, all), span_of(send, all), count, DTYPE_INT32, world->comm, NULL),
            STATUS_INVALID);
    free(send);
    free(recv);
}

static void check_v_forms(struct world *world, size_t scale)
{
    size_t counts[16], all = 0, begin = 0;
    for (int r = 0; r < world->n; r++) {
        counts[r] = r % 3 == 1 ? 0 : ((size_t)r * 7 + 3) * scale;
        if (r < world->rank) begin += counts[r];
        all += counts[r];
    }
    size_t own = counts[world->rank], wrong = 0;
    int32_t *whole = filled(all), *part = filled(own);
    for (size_t i = 0; i < all; i++) whole[i] = value(world->rank, 2, i);
    finish(world, ring_reduce_scatter_v(span_of(part, own), span_of(whole, all), counts, DTYPE_INT32, REDOP_SUM, world->comm,
        where(world)));
    for (size_t i = 0; i < own; i++) {
        int32_t sum = 0;
        for (int r = 0; r < world->n; r++) sum += value(r, 2, begin + i);
        wrong += part[i] != sum;
        part[i] = value(world->rank, 3, i);
    }
    finish(world, ring_all_gather_v(span_of(whole, all), span_of(part, own), counts, DTYPE_INT32, world->comm, where(world)));
    for (size_t i = 0, r = 0, first = 0; i < all; i++) {
        for (; i - first >= counts[r]; r++) first += counts[r];
        wrong += whole[i] != value((int)r, 3, i - first);
    }
    CHECK_MSG(wrong == 0, "v-forms: %zu of %zu differ", wrong, all);
    CHECK(whole[all] == POISON && part[own] == POISON);
    free(whole);
    free(part);
}

static void check_pairs(struct world *world, size_t count)
{
    int next = (world->rank + 1) % world->n, prev = (world->rank + world->n - 1) % world->n;
    int32_t *send = filled(count), *recv = filled(count);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) send[i] = value(world->rank, next, i);
    finish(world, ring_send_recv(span_of(recv, count), count, prev, span_of(send, count), count, next, DTYPE_INT32,
        world->comm, where(world)));
    for (size_t i = 0; i < count; i++) wrong += recv[i] != value(prev, world->rank, i);
    /* Two ranks, plain calls, and ranks that take no part. */
    if (world->n > 1 && world->rank == 0)
        finish(world, ring_send(span_of(send, count), count, DTYPE_INT32, 1, world->comm, where(world)));
    if (world->n > 1 && world->rank == 1) {
        finish(world, ring_recv(span_of(recv, count), count, DTYPE_INT32, 0, world->comm, where(world)));
        for (size_t i = 0; i < count; i++) wrong += recv[i] != value(0, 1 % world->n, i);
    }
    CHECK_MSG(wrong == 0, "pairs: %zu of %zu differ", wrong, count);
    free(send);
    free(recv);
}

/* Everyone sends to everyone (itself too), two messages each, all sends first, together with an all-reduce: only as a group. */
static void check_group(struct world *world, size_t count)
{
    int n = world->n;
    int32_t *out = filled(count * (size_t)n * 2), *in = filled(count * (size_t)n * 2), *sum = filled(count);
    CHECK_OK(ring_group_begin(world->comm));
    CHECK_STATUS(ring_group_begin(world->comm), STATUS_INVALID);
    for (int m = 0; m < 2; m++)
        for (int j = 0; j < n; j++) {
            int peer = m == 0 ? j : n - 1 - j; /* any order of peers; between two ranks the order of messages counts */
            int32_t *x = out + (size_t)(m * n + peer) * count;
            for (size_t i = 0; i < count; i++) x[i] = value(world->rank, peer + 100 * m, i);
            CHECK_OK(ring_send(span_of(x, count), count, DTYPE_INT32, peer, world->comm, NULL));
        }
    CHECK_STATUS(ring_group_begin(world->comm), STATUS_INVALID); /* refused, and the open group goes on as one */
    for (size_t i = 0; i < count; i++) sum[i] = value(world->rank, 5, i);
    CHECK_OK(ring_all_reduce(span_of(sum, count), span_of(sum, count), count, DTYPE_INT32, REDOP_SUM, world->comm, NULL));
    for (int m = 0; m < 2; m++)
        for (int peer = n - 1; peer >= 0; peer--)
            CHECK_OK(ring_recv(span_of(in + (size_t)(m * n + peer) * count, count), count, DTYPE_INT32, peer, world->comm, NULL));
    finish(world, ring_group_end(world->comm, where(world)));
    size_t wrong = 0;
    for (int m = 0; m < 2; m++)
        for (int peer = 0; peer < n; peer++)
            for (size_t i = 0; i < count; i++)
                wrong += in[(size_t)(m * n + peer) * count + i] != value(peer, world->rank + 100 * m, i);
    for (size_t i = 0; i < count; i++) {
        int32_t expected = 0;
        for (int r = 0; r < n; r++) expected += value(r, 5, i);
        wrong += sum[i] != expected;
    }
    CHECK_MSG(wrong == 0, "group: %zu differ", wrong);
    CHECK_STATUS(ring_group_end(world->comm, NULL), STATUS_INVALID);
    free(out);
    free(in);
    free(sum);
}

struct setting {
    struct ring_config config;
    const char *device;
};

static void body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct world world = {.n = bootstrap_nranks(bootstrap), .rank = bootstrap_rank(bootstrap)};
    if (!CHECK_OK(device_open(&world.device, setting->device))) return;
    CHECK_OK(stream_open(&world.stream, world.device, "test"));
    if (CHECK_OK(ring_comm_open(&world.comm, &setting->config, bootstrap, world.device))) {
        through_begin(world.device);
        static const size_t counts[] = {0, 1, 5, 100, 3001};
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            for (int root = 0; root < world.n; root += world.n > 3 ? 3 : 1) {
                check_reduce(&world, counts[c], root, root % 2 == 0);
                check_scatter_gather(&world, counts[c], root);
            }
            check_all_to_all(&world, counts[c]);
            check_v_forms(&world, counts[c] / 3);
            check_pairs(&world, counts[c]);
            check_group(&world, counts[c]);
        }
        int32_t x = 1;
        CHECK_STATUS(ring_send(span_of(&x, 1), 1, DTYPE_INT32, world.n, world.comm, NULL), STATUS_INVALID);
        CHECK_STATUS(ring_reduce(span_host(NULL, 0), span_of(&x, 1), 1, DTYPE_INT32, REDOP_SUM, -1, world.comm, NULL),
            STATUS_INVALID);
    }
    through_end();
    stream_close(world.stream, world.device);
    ring_comm_close(world.comm);
    CHECK(memory_account_read(world.device).now[MEMORY_COMMUNICATION] == 0);
    device_close(world.device);
}

int main(void)
{
    static const int nranks[] = {1, 2, 3, 5, 8};
    const char *device = test_device_name();
    struct setting settings[] = {
        {{.transport = "shm", .slot_bytes = 1024, .slot_count = 4}, "host"},
        {{.transport = "tcp", .slot_bytes = 4096, .slot_count = 4}, "host"},
        {{.transport = "verbs", .slot_bytes = 4096, .slot_count = 4}, "host"},
        {{.custom = &transport_chaos, .slot_bytes = 192, .slot_count = 2}, "host"},
        {{.transport = "auto", .channels = 2}, "host"},
        {{.transport = "auto", .slot_bytes = 1024, .slot_count = 4}, device},
        {{.transport = "tcp", .slot_bytes = 4096, .slot_count = 4}, device},
    };
    int count = test_has_device(device) ? 7 : 5;
    for (int s = 0; s < count; s++)
        for (size_t i = 0; i < sizeof nranks / sizeof *nranks; i++) {
            bool on_host = strcmp(settings[s].device, "host") == 0;
            if (nranks[i] > (s == 0 ? 8 : on_host ? 5 : 3)) continue;
            if (test_takes(settings[s].config.transport)) ranks_as_threads(nranks[i], 20000, body, &settings[s]);
        }
    return test_result();
}
