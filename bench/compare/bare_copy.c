/* bare_copy: what an all-gather and a broadcast of two ranks in shared memory take at the least: the same bytes, copied by two cores
 * back to back, by every way there is. No library can be quicker, so this bounds what can be had of a peer's time.
 *
 *   bare_copy plain BYTES…     bare all_gather BYTES out US WAY    BYTES are the result's; the quickest way of those below
 *                              bare all_gather BYTES in US WAY
 *                              bare broadcast BYTES in US WAY
 *   bare_copy own BYTES…       the same, where the users' memory is shared too (ring_alloc, MPI_Alloc_mem)
 *
 *   slots     into slots of the other, which copies out of them: two copies of every byte, nobody waits for the other's end
 *   kernel    out of the other's memory by process_vm_readv: one copy, and the other waits until it is made
 *   direct    the same by this process, of memory that is shared
 *   halves    (broadcast) the root writes one half into the other's memory while that reads the other half
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bench/compare/bare_pair.h"
#include "verbs/clock.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define MOST_BYTES ((size_t)128 << 20)
#define SLOTS      4
#define SLOT_BYTES ((size_t)256 << 10)
#define FEW        40 /* bytes of data that share a line with their flag */
#define LINES      64
#define ROUNDS     9

/* ---- what both ranks see ---- */

struct line {
    uint64_t flag, pad;
    unsigned char data[48];
};

/* What one rank says and has. */
struct side {
    uint64_t ready, pad0[511]; /* operations whose data the other may read */
    uint64_t read, pad1[511];  /* operations whose data was read of the other, or written to it */
    uint64_t put, pad2[511];   /* slots that the other may empty */
    uint64_t freed, pad3[511]; /* slots of the other that were emptied */
    struct line lines[LINES];
    unsigned char slots[SLOTS * SLOT_BYTES];
    unsigned char memory[MOST_BYTES]; /* the user's, where that is shared */
    uint64_t pid, from;               /* where what it sends lies in private memory */
};

struct world {
    struct bare_gate gate;
    struct side sides[2];
};

/* One rank. */
struct copier {
    struct side *mine, *other;
    int rank;
    unsigned char *send, *own; /* private, MOST_BYTES each */
    void (*copy)(unsigned char *to, const unsigned char *from, size_t bytes);
    uint64_t step, slot; /* operations and slots so far */
    bool in_place, by_kernel, shared_memory;
    bool failed; /* the kernel refused: the way does not count */
};

static void wait_for(const uint64_t *counter, uint64_t value)
{
    int spins = 0;
    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < value) bare_relax(&spins);
}

static void say(uint64_t *counter, uint64_t value)
{
    __atomic_store_n(counter, value, __ATOMIC_RELEASE);
}

/* ---- copies ---- */

static void copy_plain(unsigned char *to, const unsigned char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

#ifdef __SSE2__
static void copy_streaming(unsigned char *to, const unsigned char *from, size_t bytes)
{
    size_t i = 0;
    for (; i + 64 <= bytes; i += 64)
        for (size_t k = i; k < i + 64; k += 16)
            _mm_stream_si128((__m128i *)(void *)(to + k), _mm_loadu_si128((const __m128i *)(const void *)(from + k)));
    _mm_sfence();
    memcpy(to + i, from + i, bytes - i);
}

static void copy_string(unsigned char *to, const unsigned char *from, size_t bytes)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
#endif

/* What the other shows, to where this rank wants it. */
static void read_other(unsigned char *to, struct copier *copier, size_t bytes)
{
    if (!copier->by_kernel) {
        copier->copy(to, copier->other->memory, bytes);
        return;
    }
    struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)copier->other->from, bytes};
    if (process_vm_readv((pid_t)copier->other->pid, &here, 1, &there, 1, 0) != (ssize_t)bytes) copier->failed = true;
}

/* ---- ways: one operation of `bytes` ---- */

/* What this rank sends of an all-gather: in place, its part of the result. */
static const unsigned char *own_part(const struct copier *copier, size_t part)
{
    return copier->in_place ? copier->own + (size_t)copier->rank * part : copier->send;
}

static void place_own(const struct copier *copier, size_t part)
{
    if (!copier->in_place) copier->copy(copier->own + (size_t)copier->rank * part, copier->send, part);
}

static void put_line(struct copier *copier, const unsigned char *from, size_t bytes)
{
    struct line *line = &copier->mine->lines[copier->step % LINES];
    memcpy(line->data, from, bytes);
    say(&line->flag, copier->step);
}

static void take_line(struct copier *copier, unsigned char *to, size_t bytes)
{
    const struct line *line = &copier->other->lines[copier->step % LINES];
    wait_for(&line->flag, copier->step);
    memcpy(to, line->data, bytes);
}

/* Puts part by part and takes part by part: with two slots under way both copy at once. */
static void move_slots(struct copier *copier, const unsigned char *from, unsigned char *to, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += SLOT_BYTES) {
        size_t part = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        size_t slot = copier->slot++ % SLOTS * SLOT_BYTES;
        if (from != NULL) {
            if (copier->slot > SLOTS) wait_for(&copier->other->freed, copier->slot - SLOTS);
            copier->copy(copier->mine->slots + slot, from + at, part);
            say(&copier->mine->put, copier->slot);
        }
        if (to == NULL) continue;
        wait_for(&copier->other->put, copier->slot);
        memcpy(to + at, copier->other->slots + slot, part);
        say(&copier->mine->freed, copier->slot);
    }
}

static void gather_slots(struct copier *copier, size_t bytes)
{
    size_t part = bytes / 2;
    unsigned char *to = copier->own + (size_t)(1 - copier->rank) * part;
    const unsigned char *from = own_part(copier, part);
    copier->step++;
    place_own(copier, part);
    if (part > FEW) {
        move_slots(copier, from, to, part);
        return;
    }
    put_line(copier, from, part);
    take_line(copier, to, part);
}

static void gather_once(struct copier *copier, size_t bytes)
{
    size_t part = bytes / 2;
    copier->mine->from = (uint64_t)(uintptr_t)own_part(copier, part);
    say(&copier->mine->ready, ++copier->step);
    place_own(copier, part);
    wait_for(&copier->other->ready, copier->step);
    read_other(copier->own + (size_t)(1 - copier->rank) * part, copier, part);
    say(&copier->mine->read, copier->step);
    wait_for(&copier->other->read, copier->step);
}

/* The root goes on at once: it may be as many operations ahead as there are lines or slots. */
static void broadcast_slots(struct copier *copier, size_t bytes)
{
    copier->step++;
    if (bytes > FEW) {
        move_slots(copier, copier->rank == 0 ? copier->own : NULL, copier->rank == 0 ? NULL : copier->own, bytes);
    } else if (copier->rank == 0) {
        if (copier->step > LINES) wait_for(&copier->other->read, copier->step - LINES);
        put_line(copier, copier->own, bytes);
    } else {
        take_line(copier, copier->own, bytes);
        if (copier->step % (LINES / 4) == 0) say(&copier->mine->read, copier->step);
    }
}

static void broadcast_once(struct copier *copier, size_t bytes)
{
    copier->step++;
    if (copier->rank == 0) {
        copier->mine->from = (uint64_t)(uintptr_t)copier->own;
        say(&copier->mine->ready, copier->step);
        wait_for(&copier->other->read, copier->step);
    } else {
        wait_for(&copier->other->ready, copier->step);
        read_other(copier->own, copier, bytes);
        say(&copier->mine->read, copier->step);
    }
}

static void broadcast_halves(struct copier *copier, size_t bytes)
{
    size_t half = bytes / 2 / 64 * 64;
    say(&copier->mine->ready, ++copier->step);
    wait_for(&copier->other->ready, copier->step);
    if (copier->rank == 0) copier->copy(copier->other->memory, copier->own, half);
    else copier->copy(copier->own + half, copier->other->memory + half, bytes - half);
    say(&copier->mine->read, copier->step);
    wait_for(&copier->other->read, copier->step);
}

/* ---- measuring ---- */

struct way {
    const char *name;
    void (*run)(struct copier *copier, size_t bytes);
    void (*copy)(unsigned char *to, const unsigned char *from, size_t bytes);
    enum { BY_SLOTS, BY_KERNEL, SHARED } needs; /* SHARED: users' memory that both have mapped */
};

static const struct way gather_ways[] = {
    {"slots", gather_slots, copy_plain, BY_SLOTS},
    {"kernel", gather_once, copy_plain, BY_KERNEL},
    {"direct", gather_once, copy_plain, SHARED},
#ifdef __SSE2__
    {"slots, non-temporal", gather_slots, copy_streaming, BY_SLOTS},
    {"direct, non-temporal", gather_once, copy_streaming, SHARED},
    {"direct, movsb", gather_once, copy_string, SHARED},
#endif
    {0},
};
static const struct way broadcast_ways[] = {
    {"slots", broadcast_slots, copy_plain, BY_SLOTS},
    {"kernel", broadcast_once, copy_plain, BY_KERNEL},
    {"direct", broadcast_once, copy_plain, SHARED},
    {"halves", broadcast_halves, copy_plain, SHARED},
#ifdef __SSE2__
    {"slots, non-temporal", broadcast_slots, copy_streaming, BY_SLOTS},
    {"direct, non-temporal", broadcast_once, copy_streaming, SHARED},
    {"direct, movsb", broadcast_once, copy_string, SHARED},
    {"halves, non-temporal", broadcast_halves, copy_streaming, SHARED},
    {"halves, movsb", broadcast_halves, copy_string, SHARED},
#endif
    {0},
};

static void forget(struct side *side)
{
    side->ready = side->read = side->put = side->freed = 0;
    memset(side->lines, 0, sizeof side->lines);
}

/* Median microseconds of an operation, back to back, in batches of a few milliseconds; by the slower rank: both wait for it. */
static double measure(const struct way *way, struct copier *copier, size_t bytes, struct world *world, uint64_t *turn)
{
    int64_t times[ROUNDS];
    int batch = bytes < 4096 ? 20000 : bytes < (size_t)512 << 10 ? 500 : bytes < (size_t)8 << 20 ? 20 : 1;
    bare_meet(&world->gate, turn);
    forget(copier->mine);
    copier->step = copier->slot = 0;
    copier->copy = way->copy;
    copier->by_kernel = way->needs == BY_KERNEL;
    copier->failed = false;
    for (int i = 0; i < ROUNDS; i++) {
        bare_meet(&world->gate, turn);
        int64_t begin = clock_ns();
        for (int k = 0; k < batch; k++) way->run(copier, bytes);
        bare_meet(&world->gate, turn);
        times[i] = clock_ns() - begin;
    }
    return bare_median_us(times, ROUNDS) / batch;
}

static void report(const char *collective, const char *size, const struct way *ways, struct copier *copier, struct world *world,
    uint64_t *turn)
{
    const struct way *best_way = NULL;
    double best = 0;
    for (const struct way *way = ways; way->name != NULL; way++) {
        if (way->needs == SHARED && !copier->shared_memory) continue;
        double us = measure(way, copier, strtoull(size, NULL, 10), world, turn);
        if (copier->failed || (best_way != NULL && us >= best)) continue;
        best = us;
        best_way = way;
    }
    if (copier->rank == 0)
        printf("bare %s %s %s %.3f %s\n", collective, size, copier->in_place ? "in" : "out", best, best_way->name);
}

static int run(void *shared, int rank, int argc, char **argv)
{
    struct world *world = shared;
    uint64_t turn = 0;
    struct copier copier = {.mine = &world->sides[rank], .other = &world->sides[1 - rank], .rank = rank,
        .send = aligned_alloc(64, MOST_BYTES), .own = aligned_alloc(64, MOST_BYTES), .shared_memory = strcmp(argv[1], "own") == 0};
    if (copier.send == NULL || copier.own == NULL) return 1;
    memset(copier.send, 1, MOST_BYTES);
    memset(copier.own, 1, MOST_BYTES);
    memset(copier.mine->memory, 1, MOST_BYTES);
    copier.mine->pid = (uint64_t)getpid();
    for (int i = 2; i < argc; i++)
        for (int in_place = 0; in_place <= 1; in_place++) {
            copier.in_place = in_place != 0;
            report("all_gather", argv[i], gather_ways, &copier, world, &turn);
            if (in_place) report("broadcast", argv[i], broadcast_ways, &copier, world, &turn);
        }
    free(copier.send);
    free(copier.own);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3 || (strcmp(argv[1], "plain") != 0 && strcmp(argv[1], "own") != 0)) {
        fprintf(stderr, "bare_copy: memory is \"%s\"; expected plain or own, and sizes in bytes behind it\n", argc < 2 ? "" : argv[1]);
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        size_t bytes = strtoull(argv[i], NULL, 10);
        if (bytes >= 8 && bytes <= MOST_BYTES && bytes % 8 == 0) continue;
        fprintf(stderr, "bare_copy: size is \"%s\"; expected a multiple of 8 up to %zu\n", argv[i], MOST_BYTES);
        return 2;
    }
    return bare_run(run, sizeof(struct world), argc, argv);
}
