/* block: one block of a kernel while it runs, on one OS thread. Its CUDA threads are fibers, and
 * exactly one of them runs; it goes on until it waits: for a barrier, for the lanes of its warp, or
 * in a loop that polls a flag.
 *
 *   ready -- first in the queue -> runs -- __syncthreads() --> at_barrier -- the last comes -> ready
 *     ^                             |  --- warp operation ---> at_warp ---- all lanes come -> ready
 *     |<---- polls the same again --+  --- returns ----------> done
 *
 * Nothing can run and not all are done: a deadlock, reported. Only polling threads are ready: the
 * OS thread gives way, more blocks of the grid may start, and after CUDASIM_WATCHDOG_S without any
 * progress that too is reported.
 */
#ifndef CUDASIM_BLOCK_H
#define CUDASIM_BLOCK_H

#include <string>
#include <vector>

#include "fiber.h"
#include "grid.h"
#include "shared.h"

namespace cudasim {

enum class state : uint8_t { ready, at_barrier, at_warp, done };

/* Where in a kernel a thread waits. */
struct place {
    const char *file;
    int line;
    bool is(const place &other) const;
};

constexpr unsigned POLLS_KEPT = 4;

struct look {
    const void *flag;
    uint64_t value;
};

struct async_copy {
    void *to;
    const void *from;
    unsigned bytes, group;
};

struct cuda_thread {
    uint3 index;
    unsigned linear;
    fiber *stack; /* NULL until it first runs */
    state now;
    place waits;
    int result;    /* of a barrier */
    void *operand; /* of a warp operation */
    look polled[POLLS_KEPT];
    unsigned poll_count; /* since the last barrier */
    std::vector<async_copy> copies;
    unsigned copy_group;
};

/* Lanes that meet in a warp operation; as many at once as there are disjoint masks. */
using combine_function = void (*)(cuda_thread *lanes, unsigned mask);
struct meeting {
    unsigned mask, arrived;
    combine_function operation;
    place where;
};
struct warp {
    meeting meetings[32];
    int count;
    unsigned phase, ended;
};

/* First in, first out; never allocates, so that fibers can share it. */
template <class T> class ring {
public:
    bool empty() const { return first == last; }
    unsigned size() const { return last - first; }
    void clear() { first = last = 0; }
    T *pop() { return slots[first++ % CAPACITY]; }
    T *pop_last() { return slots[--last % CAPACITY]; }
    void push(T *one) { slots[last++ % CAPACITY] = one; }
    void push_front(T *one) { slots[--first % CAPACITY] = one; }

private:
    static constexpr unsigned CAPACITY = 2048; /* a block has at most 1024, each in it once */
    T *slots[CAPACITY];
    unsigned first = 0, last = 0;
};

struct block {
    struct grid *grid;
    std::vector<cuda_thread> threads;
    std::vector<warp> warps;
    ring<cuda_thread> ready;
    cuda_thread *current;
    unsigned live;
    std::vector<unsigned> order; /* of threads, when they all become ready */
    uint64_t random;

    /* the barrier that some have reached */
    unsigned arrived, phase;
    int barrier_kind, barrier_sum;
    place barrier;
    /* For ThreadSanitizer: two in turn, or a fast thread would hide races of a slow one. */
    char barrier_order[2];

    /* polling */
    unsigned idle, idle_seen;
    int64_t idle_since;

    fiber os_thread;
    ring<fiber> spare;
    cuda_thread *wanted; /* by a fiber: the OS thread makes a stack for it, and runs it */
    void *dynamic_shared;
    std::vector<const void *> shared_seen; /* blocks of static shared memory */

    /* For ThreadSanitizer: what the OS thread has made; the ends of this block's threads, and of
     * the block's before it in the same shared memory. */
    char made, ends[2];
    unsigned count;
};

/* Runs block number `index` of the grid, in the order in which blocks start, on the calling
 * thread. */
void block_run(struct grid &grid, unsigned index);

/* The block that the calling OS thread runs, or NULL. */
block *block_here();

/* The current thread waits: it has put itself where it will be found again. */
void block_switch(block &here);
/* A thread has ended: its warp waits for it no more. */
void warp_lane_ended(block &here, const cuda_thread &thread);
/* All that waited in one operation of a warp are ready, before anybody else. */
void block_ready_warp(block &here, unsigned warp, unsigned mask);
unsigned block_thread_count(const kernel_work &kernel);

/* The size of the running thread's stack, when an address is just past its end; else 0. */
size_t stack_overflowed(const void *address);

/* ", kernel K, block (x,y,z), thread (x,y,z)", or "". */
std::string current_place();

} // namespace cudasim
#endif
