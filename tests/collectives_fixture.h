/* collectives_fixture: every collective against a plain reference, to the bit: I1, I2, and cases C1,
 * C2, C3, C9 and C17. For the programs that say on which ranks, hosts, transports and with which
 * tunables.
 *
 * The grid: nranks × count × dtype × in or out of place × transport × slots (some of 64 bytes) ×
 * channels; placement and redop rotate, so that every dtype meets every redop at some count. Inputs
 * do not sum exactly, so equal bits on every transport, slot size and placement are what I2 promises.
 *
 *   collectives_reference.h   data, and what each element must be
 *   collectives_case.h        one call, in guarded buffers
 *   collectives_beyond.h      what the grid does not reach
 *   here                      the grid, and a rank's way through all of it
 */
#ifndef TESTS_COLLECTIVES_FIXTURE_H
#define TESTS_COLLECTIVES_FIXTURE_H

#include "tests/collectives_beyond.h"
#include "tests/harness/edge_chaos.h"
#include "verbs/log.h"

#ifdef RINGZERO_SANITIZED
#define EVERY 2 /* number of ranks of a setting: the sanitizers take ten times as long */
#else
#define EVERY 1
#endif

struct setting {
    struct ring_config config;
    const char *device;      /* NULL: the host */
    bool quick;              /* only a few counts */
    const enum dtype *large; /* only the large case, of these up to DTYPE_COUNT; or NULL */
    /* Of ring_alloc(): none; all; of even ranks; only one, that is not used; a device's, for calls
     * of one or two buffers. */
    enum { PLAIN, ALLOCATED, MIXED, STAGED, SHARED } memory;
    bool small;     /* only small counts and the checks after the grid */
    int hosts;      /* that are pretended: 0: none, else rank r is on host r mod hosts, */
    bool blocks;    /* or neighbouring ranks share one */
    int host_ranks; /* that the communicator must have found: 0: 1 */
};

static _Thread_local bool reads_windows; /* ring_alloc() has been called, by all ranks */

/* ---- the grid ---- */

static void run_grid(const struct setting *setting, struct ring_comm *comm, struct stream *stream,
    struct device *device)
{
    int n = ring_comm_nranks(comm);
    size_t un = (size_t)n, counts[] = {0, 1, un - 1, un, un + 1, 1003, 9001};
    int last = setting->quick ? 6 : 7;
    for (int i = 0; i < last * DTYPE_COUNT; i++) {
        int k = i % last, d = i / last;
        if (k == 6 && (d + n) % 3 != 0)
            continue; /* the longest: a third of the dtypes, others at other n */
        for (int c = COLLECTIVE_ALL_REDUCE; c <= COLLECTIVE_BROADCAST; c++) {
            bool reduces = c == COLLECTIVE_ALL_REDUCE || c == COLLECTIVE_REDUCE_SCATTER;
            int op = reduces ? (d + k + n) % REDOP_COUNT : REDOP_SUM;
            struct test_case t = {(enum collective)c, (enum dtype)d, (enum redop)op, counts[k], 0,
                .in_place = (d + k + c + n / 2) % 2 == 0,
                .root = c == COLLECTIVE_BROADCAST ? (k + d) % n : 0};
            run_case(&t, comm, (d + k + n / 3) % 2 ? stream : NULL, device);
            t.stride = counts[k] + (size_t)(k % 3) * 5;
            t.in_place = !t.in_place;
            if (c != COLLECTIVE_BROADCAST && t.count > 0) run_case(&t, comm, stream, device);
        }
    }
}

/* 16-bit floats that accumulate in float32: both dtypes, every operation, plain and in columns, in
 * place and out. */
static void run_wide(const struct setting *setting, struct ring_comm *comm, struct stream *stream,
    struct device *device)
{
    size_t n = (size_t)ring_comm_nranks(comm), counts[] = {0, 1, n - 1, n + 1, 1003, 9001};
    int last = setting->quick ? 5 : 6;
    for (int i = 0; i < last * REDOP_COUNT * 2; i++) {
        int k = i % last, op = i / last % REDOP_COUNT;
        struct test_case t = {
            .collective = (i + k) % 2 ? COLLECTIVE_ALL_REDUCE : COLLECTIVE_REDUCE_SCATTER,
            .dtype = i / last / REDOP_COUNT ? DTYPE_FLOAT16 : DTYPE_BFLOAT16,
            .redop = (enum redop)op,
            .count = counts[k],
            .in_place = (k + op) % 2 == 0,
            .wide = true};
        run_case(&t, comm, stream, device);
        t.collective = t.collective == COLLECTIVE_ALL_REDUCE ? COLLECTIVE_REDUCE_SCATTER
                                                             : COLLECTIVE_ALL_REDUCE;
        t.stride = t.count + (size_t)(k % 3) * 5;
        t.in_place = !t.in_place;
        if (t.count > 0) run_case(&t, comm, NULL, device);
    }
}

/* reduce and reduce_scatter_v, whose buffers have other shapes: the same sums. */
static void run_wide_others(struct ring_comm *comm)
{
    enum { MOST = 20000 };
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm), root = n / 2;
    uint16_t *send = malloc(MOST * 2), *recv = malloc(MOST * 2), want;
    size_t counts[8], count = 0, begin = 0, wrong = 0;
    for (int r = 0; r < n; r++) count += counts[r] = r == 1 ? 0 : 700 + 151 * (size_t)r;
    for (int r = 0; r < rank; r++) begin += counts[r];
    for (size_t i = 0; i < count; i++)
        oracle_store(&send[i], value_at(rank, i, DTYPE_BFLOAT16, REDOP_AVG), DTYPE_BFLOAT16);
    ring_comm_set_reduce_dtype(comm, REDUCE_DTYPE_FLOAT32);
    struct ring_counters before = ring_comm_counters(comm);
    struct span send_span = span_host(send, count * 2), recv_span = span_host(recv, MOST * 2);
    CHECK_OK(ring_reduce(recv_span, send_span, count, DTYPE_BFLOAT16, REDOP_AVG, root, comm, NULL));
    for (size_t i = 0; i < count && rank == root; i++) {
        reference_in(channel_of(i, count), (unsigned char *)&want, i, root, DTYPE_BFLOAT16,
            REDOP_AVG, n > 1, n);
        wrong += want != recv[i];
    }
    CHECK_MSG(wrong == 0, "reduce in float32: %zu of %zu differ", wrong, count);
    CHECK_OK(
        ring_reduce_scatter_v(recv_span, send_span, counts, DTYPE_BFLOAT16, REDOP_SUM, comm, NULL));
    for (size_t i = 0; i < counts[rank]; i++) {
        reference_in(channel_of(i, counts[rank]), (unsigned char *)&want, begin + i, rank,
            DTYPE_BFLOAT16, REDOP_SUM, n > 1, n);
        wrong += want != recv[i];
    }
    CHECK_MSG(wrong == 0, "reduce_scatter_v in float32: %zu of %zu differ", wrong, counts[rank]);
    struct ring_counters after = ring_comm_counters(comm);
    struct ring_call calls[2] = {{.collective = COLLECTIVE_REDUCE,
                                     .dtype = DTYPE_BFLOAT16,
                                     .redop = REDOP_AVG,
                                     .root = root,
                                     .count = count},
        {.collective = COLLECTIVE_REDUCE_SCATTER,
            .dtype = DTYPE_BFLOAT16,
            .redop = REDOP_SUM,
            .counts = counts}};
    for (int i = 0; i < 2; i++) {
        enum collective c = calls[i].collective;
        calls[i].on_device = through.device != NULL;
        uint64_t narrow = ring_predict_sent_bytes(&calls[i], n, rank, comm);
        calls[i].reduce_dtype = REDUCE_DTYPE_FLOAT32;
        uint64_t wide = ring_predict_sent_bytes(&calls[i], n, rank, comm);
        /* Neither is ever an exchange; but by windows own inputs travel, as they are. */
        bool window = c == COLLECTIVE_REDUCE_SCATTER && reads_windows &&
                      ring_comm_config(comm)->window_bytes <= 700;
        CHECK(wide == after.sent_bytes[c] - before.sent_bytes[c] &&
              wide == (window ? narrow : 2 * narrow));
    }
    ring_comm_set_reduce_dtype(comm, REDUCE_DTYPE_OWN);
    free(send);
    free(recv);
}

/* ---- a rank ---- */

/* Tunables of a rank, on its pretended host. */
static struct ring_config config_of(
    const struct setting *setting, const struct bootstrap *bootstrap)
{
    static const char *const hosts[] = {"h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"};
    struct ring_config config = setting->config;
    int rank = bootstrap_rank(bootstrap), n = bootstrap_nranks(bootstrap);
    if (setting->hosts > 0)
        config.host = hosts[setting->blocks ? rank * setting->hosts / n : rank % setting->hosts];
    return config;
}

static void body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct ring_config config = config_of(setting, bootstrap);
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    struct stream *stream = NULL;
    if (CHECK_OK(device_open(&device, setting->device != NULL ? setting->device : "host")) &&
        CHECK_OK(stream_open(&stream, device, "test")) &&
        CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device))) {
        tested = comm;
        through_begin(device);
        if (setting->memory == SHARED) through_share(comm);
        if (setting->host_ranks > 0 ||
            getenv("RINGZERO_TEST_HOST") ==
                NULL) /* else the hosts are real, and so is what they have */
            CHECK(
                ring_comm_host_ranks(comm) == (setting->host_ranks > 0 ? setting->host_ranks : 1));
        ring_comm_set_premul(comm, premul_of(ring_comm_rank(comm)));
        struct span first = {0}; /* whoever calls ring_alloc() once means it */
        reads_windows = setting->memory != PLAIN && setting->memory != SHARED;
        if (reads_windows) CHECK_OK(ring_alloc(&first, 5000, MEMORY_WORKSPACE, comm));
        bool allocates = setting->memory == ALLOCATED ||
                         (setting->memory == MIXED && ring_comm_rank(comm) % 2 == 0);
        allocator = allocates ? comm : NULL;
        for (const enum dtype *d = setting->large; d != NULL && *d != DTYPE_COUNT; d++)
            run_large(comm, *d);
        if (setting->large == NULL && !setting->small) {
            run_grid(setting, comm, stream, device);
            run_wide(setting, comm, stream, device);
            run_wide_others(comm);
        }
        if (setting->small || (ring_comm_nranks(comm) == 8 && !setting->quick))
            run_small_counts(comm, device);
        run_reciprocals(comm);
        run_lost_ones(comm);
        run_nan(comm);
        run_zeros(comm);
        run_bad_arguments(comm);
        check_counters(comm);
        CHECK_OK(ring_barrier(comm, stream));
        CHECK_OK(stream_synchronize(stream, device));
        ring_free(&first, MEMORY_WORKSPACE, comm);
        through_end();
        CHECK(memory_account_read(device).now[MEMORY_WORKSPACE] ==
              (setting->memory == SHARED && ring_comm_nranks(comm) > 1 ? 2 << 20 : 0));
    }
    stream_close(stream, device);
    ring_comm_close(comm);
    if (device != NULL)
        CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 0 &&
              memory_account_read(device).now[MEMORY_WORKSPACE] == 0);
    device_close(device);
}

#endif
