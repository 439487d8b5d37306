/* chaos_operation: see chaos_operation.h. Inputs are small natural numbers, so that every result is exact in every dtype, in any
 * order (an average of floats: but for the last bits). */
#include "tests/harness/chaos_operation.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GUARD_BYTES 64
#define MOST_RANKS  64
#define POISON      0x7b

static const char *const form_names[CHAOS_FORM_COUNT] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
    "scatter", "gather", "all_to_all", "reduce_scatter_v", "all_gather_v", "send_recv", "pairs", "barrier"};

/* ---- drawing ---- */

uint64_t chaos_random(uint64_t *seed)
{
    uint64_t x = *seed += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

unsigned chaos_random_below(uint64_t *seed, unsigned limit) { return (unsigned)(chaos_random(seed) % limit); }

struct chaos_operation chaos_draw(uint64_t *seed, size_t most_count)
{
    struct chaos_operation drawn = {
        .form = (enum chaos_form)chaos_random_below(seed, CHAOS_FORM_COUNT),
        .dtype = (enum dtype)chaos_random_below(seed, DTYPE_COUNT),
        .redop = (enum redop)chaos_random_below(seed, REDOP_COUNT),
        .root = chaos_random_below(seed, 840),
        .distance = chaos_random_below(seed, 840),
        .in_place = chaos_random_below(seed, 2),
        .salt = chaos_random(seed) % 1000,
    };
    size_t most[] = {4, 300, 5000, most_count};
    drawn.count = chaos_random(seed) % most[chaos_random_below(seed, 4)];
    if (drawn.count >= most_count) drawn.count = most_count - 1;
    return drawn;
}

size_t chaos_room_bytes(size_t most_count, int nranks) { return most_count * 8 * (size_t)nranks + GUARD_BYTES; }

static double scalar_of(int rank) { return rank % 2 == 0 ? 2 : 1; }

void chaos_prepare(struct ring_comm *comm) { ring_comm_set_premul(comm, scalar_of(ring_comm_rank(comm))); }

/* ---- where a rank's elements lie ---- */

static bool is_v(const struct chaos_operation *o) { return o->form == CHAOS_REDUCE_SCATTER_V || o->form == CHAOS_ALL_GATHER_V; }

/* Some ranks of a v-form have nothing. */
static size_t part_count(const struct chaos_operation *o, int rank)
{
    if (!is_v(o)) return o->count;
    uint64_t seed = o->salt * MOST_RANKS + (uint64_t)rank, drawn = chaos_random(&seed);
    return drawn % 4 == 0 ? 0 : (size_t)(drawn >> 8) % (o->count + 1);
}

static size_t part_begin(const struct chaos_operation *o, int rank)
{
    size_t begin = 0;
    for (int r = 0; r < rank; r++) begin += part_count(o, r);
    return begin;
}

/* What this rank has on each side, in elements, and where its part lies in the array of all parts. */
struct extent {
    size_t send, recv, whole, own;
    bool sends, receives, in_place;
};

static struct extent extent_of(const struct chaos_operation *o, int rank, int n)
{
    bool at_root = rank == (int)(o->root % (unsigned)n);
    size_t part = part_count(o, rank), whole = part_begin(o, n), own = part_begin(o, rank);
    struct extent one = {part, part, part, 0, true, true, o->in_place}, all = {whole, whole, whole, 0, true, true, false};
    struct extent scatters = {whole, part, whole, own, true, true, o->in_place};
    struct extent gathers = {part, whole, whole, own, true, true, o->in_place};
    switch (o->form) {
    case CHAOS_ALL_REDUCE: return one;
    case CHAOS_BROADCAST: one.sends = at_root; return one;
    case CHAOS_REDUCE: one.receives = at_root; return one;
    case CHAOS_REDUCE_SCATTER:
    case CHAOS_REDUCE_SCATTER_V: return scatters;
    case CHAOS_SCATTER: scatters.sends = at_root; return scatters;
    case CHAOS_ALL_GATHER:
    case CHAOS_ALL_GATHER_V: return gathers;
    case CHAOS_GATHER: gathers.receives = at_root; return gathers;
    case CHAOS_ALL_TO_ALL: return all;
    case CHAOS_PAIRS:
        one.sends = rank % 2 == 0 && rank + 1 < n;
        one.receives = rank % 2 == 1;
        one.in_place = false;
        return one;
    case CHAOS_SEND_RECV: one.in_place = false; return one;
    default: return (struct extent){0};
    }
}

static struct span place(char *buffer, size_t first, size_t count, const struct chaos_operation *o)
{
    size_t element = dtype_bytes(o->dtype);
    return span_host(buffer + first * element, count * element);
}

static struct span send_place(const struct chaos_operation *o, const struct extent *extent, const struct chaos_buffers *buffers)
{
    bool within = extent->in_place && extent->send < extent->whole;
    return place(extent->in_place ? buffers->b : buffers->a, within ? extent->own : 0, extent->send, o);
}

static struct span recv_place(const struct chaos_operation *o, const struct extent *extent, const struct chaos_buffers *buffers)
{
    bool within = extent->in_place && extent->recv < extent->whole;
    return place(buffers->b, within ? extent->own : 0, extent->recv, o);
}

/* ---- numbers ---- */

static bool reduces(const struct chaos_operation *o)
{
    return o->form == CHAOS_ALL_REDUCE || o->form == CHAOS_REDUCE || o->form == CHAOS_REDUCE_SCATTER ||
           o->form == CHAOS_REDUCE_SCATTER_V;
}

/* Such that what 5 ranks make of them fits the smallest dtype. Averaged are multiples of the number of ranks. */
static int input_value(const struct chaos_operation *o, int rank, size_t index, int n)
{
    int value = (int)((index * 7 + (size_t)rank * 3 + o->salt) % 13);
    if (!reduces(o)) return value;
    if (o->redop == REDOP_PROD) return 1 + value % 2;
    return o->redop == REDOP_AVG ? n * (value % 5) : value;
}

static int reduced_value(const struct chaos_operation *o, size_t index, int n)
{
    int result = 0;
    for (int r = 0; r < n; r++) {
        int value = input_value(o, r, index, n);
        if (o->redop == REDOP_PREMUL_SUM) value *= (int)scalar_of(r);
        if (r == 0) result = value;
        else if (o->redop == REDOP_PROD) result *= value;
        else if (o->redop == REDOP_MIN) result = value < result ? value : result;
        else if (o->redop == REDOP_MAX) result = value > result ? value : result;
        else result += value;
    }
    return o->redop == REDOP_AVG ? result / n : result;
}

/* What element i of this rank's output must be. */
static int expected_value(const struct chaos_operation *o, size_t i, int rank, int n)
{
    int root = (int)(o->root % (unsigned)n), from = 0;
    switch (o->form) {
    case CHAOS_ALL_GATHER:
    case CHAOS_ALL_GATHER_V:
    case CHAOS_GATHER:
        for (; i >= part_count(o, from); from++) i -= part_count(o, from);
        return input_value(o, from, i, n);
    case CHAOS_ALL_TO_ALL: return input_value(o, (int)(i / o->count), (size_t)rank * o->count + i % o->count, n);
    case CHAOS_BROADCAST: return input_value(o, root, i, n);
    case CHAOS_SCATTER: return input_value(o, root, (size_t)rank * o->count + i, n);
    case CHAOS_SEND_RECV: return input_value(o, (rank + n - (int)(o->distance % (unsigned)n)) % n, i, n);
    case CHAOS_PAIRS: return input_value(o, rank - 1, i, n);
    case CHAOS_REDUCE_SCATTER:
    case CHAOS_REDUCE_SCATTER_V: return reduced_value(o, part_begin(o, rank) + i, n);
    default: return reduced_value(o, i, n);
    }
}

static void element_store(void *array, size_t index, enum dtype dtype, int value)
{
    switch (dtype) {
    case DTYPE_INT8:
    case DTYPE_UINT8: ((uint8_t *)array)[index] = (uint8_t)value; return;
    case DTYPE_INT32:
    case DTYPE_UINT32: ((int32_t *)array)[index] = value; return;
    case DTYPE_INT64:
    case DTYPE_UINT64: ((int64_t *)array)[index] = value; return;
    case DTYPE_FLOAT16: ((uint16_t *)array)[index] = float32_to_float16((float)value); return;
    case DTYPE_BFLOAT16: ((uint16_t *)array)[index] = float32_to_bfloat16((float)value); return;
    case DTYPE_FLOAT32: ((float *)array)[index] = (float)value; return;
    case DTYPE_FLOAT64: ((double *)array)[index] = value; return;
    case DTYPE_COUNT: return;
    }
}

static double element_load(const void *array, size_t index, enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_INT8:
    case DTYPE_UINT8: return ((const uint8_t *)array)[index];
    case DTYPE_INT32:
    case DTYPE_UINT32: return ((const int32_t *)array)[index];
    case DTYPE_INT64:
    case DTYPE_UINT64: return (double)((const int64_t *)array)[index];
    case DTYPE_FLOAT16: return float16_to_float32(((const uint16_t *)array)[index]);
    case DTYPE_BFLOAT16: return bfloat16_to_float32(((const uint16_t *)array)[index]);
    case DTYPE_FLOAT32: return ((const float *)array)[index];
    case DTYPE_FLOAT64: return ((const double *)array)[index];
    case DTYPE_COUNT: break;
    }
    return -1;
}

void chaos_fill(const struct chaos_operation *o, const struct chaos_buffers *buffers, struct ring_comm *comm)
{
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm);
    struct extent extent = extent_of(o, rank, n);
    memset(buffers->b, POISON, extent.whole * dtype_bytes(o->dtype) + GUARD_BYTES);
    char *send = send_place(o, &extent, buffers).ptr;
    for (size_t i = 0; extent.sends && i < extent.send; i++) element_store(send, i, o->dtype, input_value(o, rank, i, n));
}

/* ---- the calls ---- */

static enum status issue_send_recv(const struct chaos_operation *o, struct span recv, struct span send, bool grouped,
    struct ring_comm *comm, struct stream *stream)
{
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm), distance = (int)(o->distance % (unsigned)n);
    int to = (rank + distance) % n, from = (rank + n - distance) % n;
    if (!grouped) return ring_send_recv(recv, o->count, from, send, o->count, to, o->dtype, comm, stream);
    if (o->salt % 2 == 0) { /* a group takes any order */
        TRY(ring_recv(recv, o->count, o->dtype, from, comm, stream));
        return ring_send(send, o->count, o->dtype, to, comm, stream);
    }
    TRY(ring_send(send, o->count, o->dtype, to, comm, stream));
    return ring_recv(recv, o->count, o->dtype, from, comm, stream);
}

enum status chaos_issue(const struct chaos_operation *o, const struct chaos_buffers *buffers, bool grouped,
    struct ring_comm *comm, struct stream *stream)
{
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm), root = (int)(o->root % (unsigned)n);
    struct extent extent = extent_of(o, rank, n);
    struct span send = send_place(o, &extent, buffers), recv = recv_place(o, &extent, buffers);
    size_t count = o->count, counts[MOST_RANKS];
    enum dtype dtype = o->dtype;
    for (int r = 0; r < n; r++) counts[r] = part_count(o, r);
    switch (o->form) {
    case CHAOS_ALL_REDUCE: return ring_all_reduce(recv, send, count, dtype, o->redop, comm, stream);
    case CHAOS_REDUCE_SCATTER: return ring_reduce_scatter(recv, send, count, dtype, o->redop, comm, stream);
    case CHAOS_ALL_GATHER: return ring_all_gather(recv, send, count, dtype, comm, stream);
    case CHAOS_BROADCAST: return ring_broadcast(recv, send, count, dtype, root, comm, stream);
    case CHAOS_REDUCE: return ring_reduce(recv, send, count, dtype, o->redop, root, comm, stream);
    case CHAOS_SCATTER: return ring_scatter(recv, send, count, dtype, root, comm, stream);
    case CHAOS_GATHER: return ring_gather(recv, send, count, dtype, root, comm, stream);
    case CHAOS_ALL_TO_ALL: return ring_all_to_all(recv, send, count, dtype, comm, stream);
    case CHAOS_REDUCE_SCATTER_V: return ring_reduce_scatter_v(recv, send, counts, dtype, o->redop, comm, stream);
    case CHAOS_ALL_GATHER_V: return ring_all_gather_v(recv, send, counts, dtype, comm, stream);
    case CHAOS_SEND_RECV: return issue_send_recv(o, recv, send, grouped, comm, stream);
    case CHAOS_PAIRS:
        if (extent.sends) return ring_send(send, count, dtype, rank + 1, comm, stream);
        return extent.receives ? ring_recv(recv, count, dtype, rank - 1, comm, stream) : STATUS_OK;
    default: return ring_barrier(comm, stream);
    }
}

/* ---- right or wrong ---- */

bool chaos_check(char *text, size_t bytes, const struct chaos_operation *o, const struct chaos_buffers *buffers,
    struct ring_comm *comm)
{
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm);
    struct extent extent = extent_of(o, rank, n);
    const char *recv = recv_place(o, &extent, buffers).ptr;
    double tolerance = reduces(o) && o->redop == REDOP_AVG ? 1e-5 : 0, found = 0;
    size_t wrong = 0, first = 0, outside = 0;
    for (size_t i = extent.receives ? extent.recv : 0; i-- > 0;) {
        double value = element_load(recv, i, o->dtype), expected = expected_value(o, i, rank, n);
        if (fabs(value - expected) <= tolerance * expected) continue;
        wrong++;
        first = i;
        found = value;
    }
    const char *guard = buffers->b + extent.whole * dtype_bytes(o->dtype);
    for (int i = 0; i < GUARD_BYTES; i++) outside += guard[i] != POISON;
    if (wrong == 0 && outside == 0) return true;
    snprintf(text, bytes, "%s of %zu %s, %s, root %u, %s place, rank %d of %d: %zu wrong, the first at %zu: %g, expected %d; %zu "
        "bytes written behind the output", form_names[o->form], o->count, dtype_name(o->dtype), redop_name(o->redop),
        o->root % (unsigned)n, extent.in_place ? "in" : "out of", rank, n, wrong, first, found,
        wrong > 0 ? expected_value(o, first, rank, n) : 0, outside);
    return false;
}
