/* The protocol of fifo.h between two threads on one piece of memory: where ThreadSanitizer sees each release and each acquire.
 * ctest: timeout=60
 *
 * Slots, records and counters near their wrap; the producer reuses a slot as soon as head allows it, so a release or an acquire
 * that is missing is a race on the slot's bytes, and on any machine a wrong sum.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/harness.h"
#include "verbs/fifo.h"

#define SLOT_BYTES 64
#define STEPS      20000

struct shared {
    uint64_t tail, head;
    uint64_t slot_count, start;
    struct fifo_record records[8];
    unsigned char slots[8 * SLOT_BYTES];
};

static struct fifo view(struct shared *shared)
{
    struct fifo fifo = {.slots = shared->slots, .records = shared->records, .tail = &shared->tail, .head = &shared->head,
        .slot_bytes = SLOT_BYTES, .slot_count = shared->slot_count};
    fifo_begin(&fifo, shared->start);
    return fifo;
}

static void *produce(void *argument)
{
    struct fifo fifo = view(argument);
    for (uint64_t s = 0; s < STEPS; s++) {
        while (fifo_room(&fifo) == 0) sched_yield();
        size_t bytes = s % (SLOT_BYTES + 1);
        memset(fifo_slot(&fifo), (int)(s & 0xff), bytes);
        fifo_post(&fifo, bytes, s, 0);
    }
    while (fifo_unfreed(&fifo) > 0) sched_yield();
    return NULL;
}

static void consume(struct shared *shared)
{
    struct fifo fifo = view(shared);
    size_t wrong = 0;
    for (uint64_t s = 0; s < STEPS; s++) {
        while (fifo_ready(&fifo) == 0) sched_yield();
        struct fifo_record record = fifo_record(&fifo);
        const unsigned char *data = fifo_data(&fifo, &record);
        wrong += record.tag != s || record.bytes != s % (SLOT_BYTES + 1);
        for (size_t i = 0; i < record.bytes; i++) wrong += data[i] != (s & 0xff);
        fifo_free(&fifo);
    }
    CHECK(wrong == 0);
}

static void run(uint64_t slot_count, uint64_t start)
{
    struct shared *shared = calloc(1, sizeof *shared);
    shared->slot_count = slot_count;
    shared->start = shared->tail = shared->head = start;
    pthread_t producer;
    CHECK(pthread_create(&producer, NULL, produce, shared) == 0);
    consume(shared);
    pthread_join(producer, NULL);
    CHECK(shared->tail == start + STEPS && shared->head == start + STEPS);
    free(shared);
}

int main(void)
{
    run(1, 0);
    run(2, UINT64_MAX - 1000);
    run(8, UINT64_MAX - 3);

    /* Without a second thread: room and readiness count exactly. */
    struct shared shared = {.slot_count = 4};
    struct fifo producer = view(&shared), consumer = view(&shared);
    CHECK(fifo_room(&producer) == 4 && fifo_ready(&consumer) == 0);
    for (int i = 0; i < 4; i++) fifo_post(&producer, 0, 0, 0);
    CHECK(fifo_room(&producer) == 0 && fifo_ready(&consumer) == 4 && fifo_unfreed(&producer) == 4);
    fifo_free(&consumer);
    CHECK(fifo_room(&producer) == 1 && fifo_ready(&consumer) == 3 && fifo_unfreed(&producer) == 3);
    char elsewhere = 1;
    fifo_post(&producer, 1, 7, (uint64_t)(uintptr_t)&elsewhere);
    for (int i = 0; i < 3; i++) fifo_free(&consumer);
    struct fifo_record record = fifo_record(&consumer);
    CHECK(record.tag == 7 && fifo_data(&consumer, &record) == (unsigned char *)&elsewhere);

    /* What has been freed keeps its tag, the rest is taken back. */
    CHECK(fifo_ready(&consumer) == 1);
    fifo_free(&consumer);
    for (uint64_t i = 0; i < 3; i++) fifo_post(&producer, 0, 20 + i, 0);
    CHECK(fifo_ready(&consumer) == 3);
    fifo_free(&consumer);
    fifo_take_back(&producer, 99);
    for (uint64_t i = 0; i < 3; i++) CHECK(shared.records[(5 + i) % 4].tag == (i == 0 ? 20 : 99));
    CHECK(fifo_ready(&consumer) == 2 && fifo_record(&consumer).tag == 99 && fifo_tag_after(&consumer) == 99);
    return test_result();
}
