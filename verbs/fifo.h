/* fifo: one directed edge between two ranks, as both ends see it: slots, records, and two counters.
 *
 *   producer ──► consumer      written by            read by               lives with
 *     slots[S]  bytes          producer              consumer              the consumer, in its memory kind
 *     record[S] what is where  producer              consumer              the consumer, CPU-loadable
 *     tail      steps posted   producer (release)    consumer (acquire)    the consumer, beside the records
 *     head      steps freed    consumer (release)    producer (acquire)    the producer
 *
 *   producer                                          consumer
 *   1 wait  fifo_room()  > 0   [acquire head]         1 wait  fifo_ready() > 0       [acquire tail]
 *   2 write fifo_slot()                               2 read  fifo_record(), fifo_data()
 *   3 fifo_post()              [release tail]         3 fifo_free()                  [release head]
 *
 * Step s uses slot s mod S; S is a power of two, so that counters may wrap. Counters are monotonic 64-bit words, used through
 * __atomic builtins only, so that C, C++ and nvcc read this header alike. Each side keeps its own step and the last value it
 * saw of the other's counter: memory is asked only when that does not suffice.
 *
 * Over shared memory both sides look at the same words. Over other transports each side has its own copies and
 * edge_progress() carries them across; head then moves only when the source may be reused.
 */
#ifndef VERBS_FIFO_H
#define VERBS_FIFO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a step holds. Visible to the consumer once tail says so. */
struct fifo_record {
    uint64_t bytes;    /* of data; 0 is legal: the counters still advance */
    uint64_t tag;      /* the executors' word, carried untouched */
    uint64_t address;  /* 0: the data is in the slot; else it is there, in the memory of whoever reads this record */
    uint64_t reference; /* where the producer's data are for whoever can map them (region.h); fifo_post() leaves it as it was */
};

/* One side's view. `step` and `seen` are private to the side; the four pointers may be shared. */
struct fifo {
    unsigned char *slots;
    struct fifo_record *records;
    uint64_t *tail;
    uint64_t *head;
    size_t slot_bytes;   /* from one slot to the one after it; a multiple of 64 */
    uint64_t slot_count; /* S, a power of two */
    uint64_t step;       /* producer: steps posted. consumer: steps freed */
    uint64_t seen;       /* producer: last head seen. consumer: last tail seen */
};

/* Both sides start at the same step: 0, or near the wrap in tests. */
static inline void fifo_begin(struct fifo *fifo, uint64_t start)
{
    fifo->step = start;
    fifo->seen = start;
}

static inline uint64_t fifo_index(const struct fifo *fifo, uint64_t step) { return step & (fifo->slot_count - 1); }

/* ---- producer ---- */

/* Steps that may be posted now; or, beyond `hand` steps that are in hand (begun, and posted later, in their order), begun. */
static inline uint64_t fifo_room_beyond(struct fifo *fifo, uint64_t hand)
{
    if (fifo->step + hand - fifo->seen >= fifo->slot_count)
        fifo->seen = __atomic_load_n(fifo->head, __ATOMIC_ACQUIRE); /* pairs with the release in fifo_free() */
    return fifo->slot_count - (fifo->step + hand - fifo->seen);
}

static inline uint64_t fifo_room(struct fifo *fifo) { return fifo_room_beyond(fifo, 0); }

/* The slot that the next fifo_post() publishes, or that of the step after those in hand. Needs room. */
static inline unsigned char *fifo_slot_beyond(const struct fifo *fifo, uint64_t hand)
{
    return fifo->slots + fifo_index(fifo, fifo->step + hand) * fifo->slot_bytes;
}

static inline unsigned char *fifo_slot(const struct fifo *fifo) { return fifo_slot_beyond(fifo, 0); }

/* Publishes the next step: everything the producer stored before (slot, record) is visible to a consumer that sees tail.
 * Non-temporal stores need their own fence before. address 0: the data is in the slot; else in the producer's memory there,
 * which must not change until head has passed this step (see transport.h, reads_address). */
static inline void fifo_post(struct fifo *fifo, uint64_t bytes, uint64_t tag, uint64_t address)
{
    struct fifo_record *record = &fifo->records[fifo_index(fifo, fifo->step)];
    record->bytes = bytes;
    record->tag = tag;
    record->address = address;
    fifo->step++;
    __atomic_store_n(fifo->tail, fifo->step, __ATOMIC_RELEASE); /* pairs with the acquire in fifo_ready() */
}

/* The same of data that are neither in the slot nor at an address of the reader: it maps them by reference. */
static inline void fifo_post_reference(struct fifo *fifo, uint64_t bytes, uint64_t tag, uint64_t reference)
{
    fifo->records[fifo_index(fifo, fifo->step)].reference = reference;
    fifo_post(fifo, bytes, tag, 0);
}

/* Steps posted whose source is not yet reusable. */
static inline uint64_t fifo_unfreed(struct fifo *fifo)
{
    fifo->seen = __atomic_load_n(fifo->head, __ATOMIC_ACQUIRE); /* pairs with the release in fifo_free() */
    return fifo->step - fifo->seen;
}

/* Before what such steps refer to changes: their tag is another one from here on, for a consumer that looks after it has read. */
static inline void fifo_take_back(struct fifo *fifo, uint64_t tag)
{
    for (uint64_t unfreed = fifo_unfreed(fifo); unfreed > 0; unfreed--) /* an exchange: what is stored later stays behind it */
        __atomic_exchange_n(&fifo->records[fifo_index(fifo, fifo->step - unfreed)].tag, tag, __ATOMIC_ACQ_REL);
}

/* ---- consumer ---- */

/* Steps that may be read now; or, beyond `hand` steps that are in hand (begun, and freed later, in their order), begun. */
static inline uint64_t fifo_ready_beyond(struct fifo *fifo, uint64_t hand)
{
    if (fifo->seen - fifo->step <= hand)
        fifo->seen = __atomic_load_n(fifo->tail, __ATOMIC_ACQUIRE); /* pairs with the release in fifo_post() */
    return fifo->seen - fifo->step - hand;
}

static inline uint64_t fifo_ready(struct fifo *fifo) { return fifo_ready_beyond(fifo, 0); }

/* The record of the oldest step not yet freed, or of the one after those in hand. Needs fifo_ready() > 0. A copy, each word of which is
 * loaded once: a producer that shares the memory may be faulty, and what has been checked must be what is used. */
static inline struct fifo_record fifo_record_beyond(const struct fifo *fifo, uint64_t hand)
{
    const struct fifo_record *shared = &fifo->records[fifo_index(fifo, fifo->step + hand)];
    struct fifo_record record;
    record.bytes = __atomic_load_n(&shared->bytes, __ATOMIC_RELAXED);
    record.tag = __atomic_load_n(&shared->tag, __ATOMIC_RELAXED);
    record.address = __atomic_load_n(&shared->address, __ATOMIC_RELAXED);
    record.reference = __atomic_load_n(&shared->reference, __ATOMIC_RELAXED);
    return record;
}

static inline struct fifo_record fifo_record(const struct fifo *fifo) { return fifo_record_beyond(fifo, 0); }

/* The tag of the oldest step not yet freed, after all that has been read: pairs with fifo_take_back(). */
static inline uint64_t fifo_tag_after(const struct fifo *fifo)
{
    return __atomic_fetch_add(&fifo->records[fifo_index(fifo, fifo->step)].tag, 0, __ATOMIC_ACQ_REL);
}

/* Where its data are. */
static inline const unsigned char *fifo_data(const struct fifo *fifo, const struct fifo_record *record)
{
    return record->address != 0 ? (const unsigned char *)(uintptr_t)record->address : fifo_slot(fifo);
}

/* Gives the oldest step back: the consumer's loads from it are done before the producer sees head. */
static inline void fifo_free(struct fifo *fifo)
{
    fifo->step++;
    __atomic_store_n(fifo->head, fifo->step, __ATOMIC_RELEASE); /* pairs with the acquire in fifo_room() */
}

#ifdef __cplusplus
}
#endif
#endif
