/* tokenizer_encode: the ids of a text, word by word.
 *
 * Invariant: the ids of a word depend on the word alone, so they are kept: the next time they are
 * copied. A word that is new is merged with a heap of the pairs that could be next:
 *
 *   parts    0   1   2   3   4         next[at] begins the part after the one at `at`; 0: none begins
 *            ␣   t   h   e   n         at `at` any more
 *   heap     {rank, at, end} of neighbours that together are a token; stale when one of them has
 *            changed since, which shows in next[]
 */
#include <stdbool.h>
#include <stdlib.h>

#include "model/tokenizer_vocabulary.h"

#define MOST_WORD_BYTES INT32_MAX

/* ---- growing arrays ---- */

static enum status reserve(void **array, size_t *capacity, size_t count, size_t element)
{
    if (count <= *capacity) return STATUS_OK;
    size_t more = 2 * *capacity > count ? 2 * *capacity : count;
    void *grown = realloc(*array, more * element);
    if (grown == NULL) return FAIL(STATUS_SYSTEM, "no memory to encode with: %zu bytes", more * element);
    *array = grown;
    *capacity = more;
    return STATUS_OK;
}

/* ---- the words that are known ---- */

#define CACHE_SLOTS ((size_t)1 << 16)
#define CACHE_BYTES ((uint32_t)1 << 20) /* of words */
#define CACHE_IDS   ((uint32_t)1 << 18)
#define CACHE_WORD  64 /* longer words are rare: not kept */

struct known_word {
    uint64_t hash; /* with at least one bit; 0: a free slot */
    uint32_t text_at, ids_at;
    uint16_t bytes, ids;
};

struct known_words {
    struct known_word slot[CACHE_SLOTS];
    char text[CACHE_BYTES];
    int32_t ids[CACHE_IDS];
    uint32_t words, text_used, ids_used;
};

struct candidate {
    uint64_t rank_at; /* rank, then at: the order in which they are taken */
    uint32_t end;
};

struct encoder {
    const struct tokenizer *tokenizer;
    struct known_words *known;
    int32_t *ids;
    size_t count, capacity;
    uint32_t *next, *before; /* of the word that is being merged */
    size_t next_capacity, before_capacity;
    struct candidate *heap;
    size_t heap_count, heap_capacity;
};

static void forget(struct known_words *known)
{
    memset(known->slot, 0, sizeof known->slot);
    known->words = known->text_used = known->ids_used = 0;
}

/* The slot of the word, or the one that it would take. */
static struct known_word *known_slot(
    uint64_t hash, const char *word, size_t bytes, struct known_words *known)
{
    size_t at = hash % CACHE_SLOTS;
    for (; known->slot[at].hash != 0; at = (at + 1) % CACHE_SLOTS) {
        const struct known_word *slot = &known->slot[at];
        if (slot->hash == hash && slot->bytes == bytes &&
            memcmp(known->text + slot->text_at, word, bytes) == 0)
            break;
    }
    return &known->slot[at];
}

static void keep(uint64_t hash, const char *word, size_t bytes, const int32_t *ids, size_t count,
    struct known_words *known)
{
    if (known->words >= CACHE_SLOTS / 2 || known->text_used + bytes > CACHE_BYTES ||
        known->ids_used + count > CACHE_IDS)
        forget(known);
    *known_slot(hash, word, bytes, known) = (struct known_word){
        hash, known->text_used, known->ids_used, (uint16_t)bytes, (uint16_t)count};
    memcpy(known->text + known->text_used, word, bytes);
    memcpy(known->ids + known->ids_used, ids, count * sizeof *ids);
    known->words++;
    known->text_used += (uint32_t)bytes;
    known->ids_used += (uint32_t)count;
}

/* ---- merging ---- */

static void push(uint32_t at, uint32_t end, const char *word, struct encoder *encoder)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    uint32_t rank = end - at > tokenizer->longest ? NO_TOKEN
                                                  : tokenizer_find(word + at, end - at, tokenizer);
    if (rank == NO_TOKEN) return;
    struct candidate candidate = {(uint64_t)rank << 32 | at, end}, *heap = encoder->heap;
    size_t i = encoder->heap_count++;
    for (; i > 0 && heap[(i - 1) / 2].rank_at > candidate.rank_at; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = candidate;
}

static struct candidate pop(struct encoder *encoder)
{
    struct candidate *heap = encoder->heap, top = heap[0];
    struct candidate last = heap[--encoder->heap_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < encoder->heap_count) {
        if (child + 1 < encoder->heap_count && heap[child + 1].rank_at < heap[child].rank_at) child++;
        if (heap[child].rank_at >= last.rank_at) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* The parts of a word, into next. */
static enum status merge(const char *word, size_t bytes, struct encoder *encoder)
{
    if (bytes > MOST_WORD_BYTES)
        return FAIL(STATUS_DATA, "a word of %zu bytes, expected less than 2 GiB: is this text?", bytes);
    TRY(reserve((void **)&encoder->next, &encoder->next_capacity, bytes, sizeof *encoder->next));
    TRY(reserve((void **)&encoder->before, &encoder->before_capacity, bytes, sizeof *encoder->before));
    TRY(reserve((void **)&encoder->heap, &encoder->heap_capacity, 3 * bytes, sizeof *encoder->heap));
    uint32_t n = (uint32_t)bytes, *next = encoder->next, *before = encoder->before;
    encoder->heap_count = 0;
    for (uint32_t i = 0; i < n; i++) next[i] = i + 1;
    for (uint32_t i = 1; i < n; i++) before[i] = i - 1;
    for (uint32_t i = 0; i + 1 < n; i++) push(i, i + 2, word, encoder);
    while (encoder->heap_count > 0) {
        struct candidate candidate = pop(encoder);
        uint32_t at = (uint32_t)candidate.rank_at, end = candidate.end, middle = next[at];
        if (middle == 0 || middle >= n || next[middle] != end) continue; /* stale */
        next[at] = end;
        next[middle] = 0;
        if (end < n) {
            before[end] = at;
            push(at, next[end], word, encoder);
        }
        if (at > 0) push(before[at], end, word, encoder);
    }
    return STATUS_OK;
}

/* ---- a word, a text ---- */

static enum status append_new(const char *word, size_t bytes, struct encoder *encoder)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    uint32_t whole = bytes > tokenizer->longest ? NO_TOKEN : tokenizer_find(word, bytes, tokenizer);
    if (whole != NO_TOKEN) {
        encoder->ids[encoder->count++] = (int32_t)whole;
        return STATUS_OK;
    }
    TRY(merge(word, bytes, encoder));
    for (uint32_t at = 0; at < bytes; at = encoder->next[at])
        encoder->ids[encoder->count++] =
            (int32_t)tokenizer_find(word + at, encoder->next[at] - at, tokenizer);
    return STATUS_OK;
}

static enum status append_word(const char *word, size_t bytes, struct encoder *encoder)
{
    TRY(reserve((void **)&encoder->ids, &encoder->capacity, encoder->count + bytes, sizeof *encoder->ids));
    if (bytes > CACHE_WORD) return append_new(word, bytes, encoder);
    struct known_words *known = encoder->known;
    uint64_t hash = hash_bytes(word, bytes) | (uint64_t)1 << 63;
    const struct known_word *slot = known_slot(hash, word, bytes, known);
    if (slot->hash != 0) {
        const int32_t *ids = known->ids + slot->ids_at;
        for (size_t i = 0; i < slot->ids; i++) encoder->ids[encoder->count++] = ids[i];
        return STATUS_OK;
    }
    size_t first = encoder->count;
    TRY(append_new(word, bytes, encoder));
    keep(hash, word, bytes, encoder->ids + first, encoder->count - first, known);
    return STATUS_OK;
}

enum status encoder_encode(const int32_t **ids, size_t *count, const char *text, size_t bytes,
    struct encoder *encoder)
{
    encoder->count = 0;
    for (size_t at = 0; at < bytes;) {
        size_t word = tokenizer_word(text + at, bytes - at);
        TRY(append_word(text + at, word, encoder));
        at += word;
    }
    *ids = encoder->ids;
    *count = encoder->count;
    return STATUS_OK;
}

enum status encoder_open(struct encoder **out, const struct tokenizer *tokenizer)
{
    *out = NULL;
    struct encoder *encoder = calloc(1, sizeof *encoder);
    if (encoder != NULL) encoder->known = calloc(1, sizeof *encoder->known);
    if (encoder == NULL || encoder->known == NULL) {
        free(encoder);
        return FAIL(STATUS_SYSTEM, "no memory for an encoder");
    }
    encoder->tokenizer = tokenizer;
    *out = encoder;
    return STATUS_OK;
}

void encoder_close(struct encoder *encoder)
{
    if (encoder == NULL) return;
    free(encoder->known);
    free(encoder->ids);
    free(encoder->next);
    free(encoder->before);
    free(encoder->heap);
    free(encoder);
}
