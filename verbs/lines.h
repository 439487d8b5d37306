/* lines: the FIFO of an edge for messages of a few bytes, where both ends see the same memory: flag and data in one cache line, so
 * that one line crosses between the cores, once.
 *
 *   entry[s mod L]     offset 0    flag    s + 1 of the step that is in it      producer (release), last → consumer (acquire)
 *                             8    tag     the executors' word                  producer
 *                            16    bytes   of data                              producer
 *                            24    data    up to entry_bytes − 24               producer
 *   head               steps freed, on a line of its own                        consumer (release) → producer (acquire)
 *
 *   producer                                     consumer
 *   1 lines_room()     [acquire head, rarely]    1 lines_ready()      [acquire flag]
 *   2 write data                                 2 read data
 *   3 lines_post()     [release flag]            3 lines_free()       [release head]
 *
 * Compared with fifo.h there is no tail and no record to fetch beside the data. Steps count from 0 and never wrap in practice
 * (64 bits); entries start zeroed. source: the LL protocol of FIELD_NOTES §1, with a flag per message instead of per word.
 */
#ifndef VERBS_LINES_H
#define VERBS_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINES_COUNT        32 /* L, a power of two */
#define LINES_HEADER_BYTES 24

struct line_entry {
    uint64_t flag, tag, bytes;
    unsigned char data[]; /* entry_bytes − LINES_HEADER_BYTES */
};

/* One side's view. */
struct lines {
    unsigned char *entries; /* NULL: this edge has none */
    uint64_t *head;
    size_t entry_bytes; /* a multiple of 64 */
    uint64_t step, seen;
};

static inline struct line_entry *lines_entry(const struct lines *lines)
{
    return (struct line_entry *)(void *)(lines->entries + (lines->step & (LINES_COUNT - 1)) * lines->entry_bytes);
}

static inline bool lines_room(struct lines *lines)
{
    if (lines->step - lines->seen < LINES_COUNT) return true;
    lines->seen = __atomic_load_n(lines->head, __ATOMIC_ACQUIRE); /* pairs with the release in lines_free() */
    return lines->step - lines->seen < LINES_COUNT;
}

static inline void lines_post(struct lines *lines, uint64_t bytes, uint64_t tag)
{
    struct line_entry *entry = lines_entry(lines);
    entry->tag = tag;
    entry->bytes = bytes;
    lines->step++;
    __atomic_store_n(&entry->flag, lines->step, __ATOMIC_RELEASE); /* pairs with the acquire in lines_ready() */
}

static inline bool lines_ready(const struct lines *lines)
{
    return __atomic_load_n(&lines_entry(lines)->flag, __ATOMIC_ACQUIRE) == lines->step + 1; /* see lines_post() */
}

static inline void lines_free(struct lines *lines)
{
    lines->step++;
    __atomic_store_n(lines->head, lines->step, __ATOMIC_RELEASE); /* pairs with the acquire in lines_room() */
}

#endif
