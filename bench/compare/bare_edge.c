/* bare_edge: what two cores can do at best with two FIFO edges: the mark for shared memory, and the state of the
 * machine.
 *
 *   bare_edge            exchange NS                         8 bytes and a flag in one line, both ways at once: an 8-byte all-reduce
 *   bare_edge BYTES…     also: bare BYTES plain US           a float32 sum in place of 2 ranks: nothing is checked, nobody waits politely
 *                              bare BYTES streaming US       the same, with non-temporal stores into the slots
 *
 * A virtual machine may put its two CPUs on one physical core or on two, and move them: the exchange tells which
 * (about 70 ns, or 250 ns and more), and figures of one state say nothing of the other.
 *
 *   rank 0                     rank 1              a half each; slice by slice, AHEAD slices under way
 *   copy half 1 → slot ──────► add to half 1  ─┐   the sum goes to the own buffer and into the next slot, in one pass
 *   half 1 ◄────────── slot ◄──────────────────┘   and, mirrored, the same for half 0
 */
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/compare/bare_pair.h"
#include "verbs/clock.h"
#include "verbs/clones.h"
#include "verbs/fifo.h"

#ifdef __SSE2__
#include <emmintrin.h>
#define CAN_STREAM true
#else
#define CAN_STREAM false
#endif

#define SLOTS       8
#define SLOT_BYTES  ((size_t)256 << 10)
#define SLOT_FLOATS (SLOT_BYTES / sizeof(float))
#define AHEAD       2
#define LINES       16
#define EXCHANGES   200000
#define PAGE        ((size_t)4096)

/* ---- memory that both ranks see ---- */

struct line {
    uint64_t flag; /* released after data */
    double data;
    uint64_t pad[6];
};

/* Of one direction. Counters on pages of their own. */
struct wire {
    struct line lines[LINES];
    char page0[PAGE - LINES * sizeof(struct line)];
    uint64_t tail, pad1[511];
    uint64_t head, pad2[511];
    struct fifo_record records[SLOTS];
    char page3[PAGE - SLOTS * sizeof(struct fifo_record)];
    unsigned char slots[SLOTS * SLOT_BYTES];
};

struct world {
    struct wire wires[2]; /* [r]: to rank r */
    struct bare_gate gate;
};

/* ---- the exchange ---- */

static double exchange_ns(struct world *world, int rank, uint64_t *turn)
{
    double best = 1e18, sum = 0;
    uint64_t step = 0;
    for (int round = 0; round < 5; round++) {
        bare_meet(&world->gate, turn);
        int64_t begin = clock_ns();
        for (int i = 0; i < EXCHANGES; i++) {
            struct line *out = &world->wires[1 - rank].lines[step % LINES],
                        *in = &world->wires[rank].lines[step % LINES];
            int spins = 0;
            step++;
            out->data = (double)i + rank;
            __atomic_store_n(&out->flag, step, __ATOMIC_RELEASE);
            while (__atomic_load_n(&in->flag, __ATOMIC_ACQUIRE) != step)
                if (++spins % 100000 == 0) sched_yield();
            sum += out->data + in->data;
        }
        double each = (double)(clock_ns() - begin) / EXCHANGES;
        if (each < best) best = each;
    }
    return sum > 0 ? best : -1;
}

/* ---- the all-reduce ---- */

VECTOR_CLONES static void add_plain(float *own, float *slot, const float *wire, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = own[i] + wire[i];
        own[i] = sum;
        slot[i] = sum;
    }
}

/* Slots and slices begin on a line; a slice that does not end on one is finished plainly. */
static void add_streaming(float *own, float *slot, const float *wire, size_t count)
{
    size_t i = 0;
#ifdef __SSE2__
    for (; i + 16 <= count; i += 16)
        for (size_t k = i; k < i + 16; k += 4) {
            __m128 sum = _mm_add_ps(_mm_loadu_ps(own + k), _mm_loadu_ps(wire + k));
            _mm_storeu_ps(own + k, sum);
            _mm_stream_ps(slot + k, sum);
        }
    _mm_sfence();
#endif
    add_plain(own + i, slot + i, wire + i, count - i);
}

static void copy_streaming(float *slot, const float *own, size_t count)
{
    size_t i = 0;
#ifdef __SSE2__
    for (; i + 16 <= count; i += 16)
        for (size_t k = i; k < i + 16; k += 4) _mm_stream_ps(slot + k, _mm_loadu_ps(own + k));
    _mm_sfence();
#endif
    memcpy(slot + i, own + i, (count - i) * sizeof *own);
}

struct pair {
    struct fifo out, in;
    bool streaming;
};

static struct fifo wire_fifo(struct wire *wire)
{
    return (struct fifo){.slots = wire->slots,
        .records = wire->records,
        .tail = &wire->tail,
        .head = &wire->head,
        .slot_bytes = SLOT_BYTES,
        .slot_count = SLOTS};
}

static float *next_slot(struct pair *pair)
{
    int spins = 0;
    while (fifo_room(&pair->out) == 0) bare_relax(&spins);
    return (float *)(void *)fifo_slot(&pair->out);
}

static const float *next_data(struct pair *pair)
{
    int spins = 0;
    while (fifo_ready(&pair->in) == 0) bare_relax(&spins);
    return (const float *)(const void *)fifo_slot(&pair->in);
}

static size_t slice_count(size_t slice, size_t count)
{
    size_t left = count - slice * SLOT_FLOATS;
    return left < SLOT_FLOATS ? left : SLOT_FLOATS;
}

static void send_slice(struct pair *pair, const float *half, size_t slice, size_t count)
{
    size_t part = slice_count(slice, count);
    const float *from = half + slice * SLOT_FLOATS;
    float *slot = next_slot(pair);
    if (pair->streaming) copy_streaming(slot, from, part);
    else memcpy(slot, from, part * sizeof *from);
    fifo_post(&pair->out, part * sizeof *from, 0, 0);
}

static void add_slice(struct pair *pair, float *half, size_t slice, size_t count)
{
    const float *wire = next_data(pair);
    float *slot = next_slot(pair);
    size_t part = slice_count(slice, count);
    (pair->streaming ? add_streaming : add_plain)(half + slice * SLOT_FLOATS, slot, wire, part);
    fifo_free(&pair->in);
    fifo_post(&pair->out, part * sizeof *half, 0, 0);
}

static void keep_slice(struct pair *pair, float *half, size_t slice, size_t count)
{
    memcpy(half + slice * SLOT_FLOATS, next_data(pair), slice_count(slice, count) * sizeof *half);
    fifo_free(&pair->in);
}

/* Both ranks run the same schedule, so what arrives next is always known. */
static void all_reduce(struct pair *pair, float *own, float *other, size_t half)
{
    size_t slices = (half + SLOT_FLOATS - 1) / SLOT_FLOATS;
    for (size_t i = 0; i < slices + AHEAD * 2; i++) {
        if (i < slices) send_slice(pair, other, i, half);
        if (i >= AHEAD && i - AHEAD < slices) add_slice(pair, own, i - AHEAD, half);
        if (i >= 2 * AHEAD) keep_slice(pair, other, i - 2 * AHEAD, half);
    }
}

/* Median microseconds. */
static double measure(struct world *world, struct pair *pair, float *array, size_t bytes, int rank, uint64_t *turn)
{
    int64_t times[101];
    size_t half = bytes / sizeof *array / 2;
    int rounds = bytes >= (size_t)64 << 20 ? 7 : bytes >= (size_t)8 << 20 ? 25 : 101;
    for (int i = 0; i < rounds; i++) {
        bare_meet(&world->gate, turn);
        int64_t begin = clock_ns();
        all_reduce(pair, array + (size_t)rank * half, array + (size_t)(1 - rank) * half, half);
        times[i] = clock_ns() - begin;
    }
    return bare_median_us(times, rounds);
}

/* ---- the two ranks ---- */

static int run(void *shared, int rank, int argc, char **argv)
{
    struct world *world = shared;
    uint64_t turn = 0;
    double ns = exchange_ns(world, rank, &turn);
    if (rank == 0) printf("exchange %.1f\n", ns);
    struct pair pair = {.out = wire_fifo(&world->wires[1 - rank]), .in = wire_fifo(&world->wires[rank])};
    for (int i = 1; i < argc; i++) {
        size_t bytes = strtoull(argv[i], NULL, 10) / 128 * 128; /* halves of whole lines */
        float *array = bare_array(bytes);
        if (array == NULL) {
            fprintf(stderr, "bare_edge: cannot reduce \"%s\" bytes; expected a number of at least 128\n", argv[i]);
            return 2;
        }
        for (int streaming = 0; streaming <= CAN_STREAM; streaming++) {
            pair.streaming = streaming;
            double us = measure(world, &pair, array, bytes, rank, &turn);
            if (rank == 0) printf("bare %s %s %.2f\n", argv[i], streaming ? "streaming" : "plain", us);
        }
        free(array);
    }
    return 0;
}

int main(int argc, char **argv)
{
    return bare_run(run, sizeof(struct world), argc, argv);
}
