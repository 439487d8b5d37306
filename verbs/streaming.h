/* streaming: loops over ranges that no cache of a core holds.
 *
 * Lines are asked for some time before the loop comes to them, those that are overwritten as well:
 * a processor does so by itself, but never far enough ahead, and not beyond a page.
 *
 * Stores of 16-bit numbers go past the caches where a range is written once, whole, and read much
 * later: a plain store first fetches the line that it overwrites, and puts out another's.
 *
 *   head               pieces of STREAMING_PIECE, each streaming_store()     rest
 *   up to 16 bytes'    made in the first cache, then streamed                less than a piece
 *   alignment
 *
 * Invariant: what is stored has the same bits as by plain stores; where a processor has none of
 * these, they are plain ones.
 */
#ifndef VERBS_STREAMING_H
#define VERBS_STREAMING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define STREAMING_LINE  64   /* bytes */
#define STREAMING_AHEAD 4096 /* bytes: some 200 ns of one core's share of memory */
#define STREAMING_PIECE 64   /* elements: two lines */
#define STREAMING_ALIGN _Alignas(16)
#define STREAMING_COUNT ((size_t)1 << 20) /* fewer are plainly stored: a core's own cache has them */

/* Asks for the lines of the `bytes` that lie `ahead` bytes behind `at`, where nothing need be: into
 * the first cache; or into the second, which was quicker where much else is in the first. */
static inline void streaming_ask(const void *at, size_t ahead, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += STREAMING_LINE)
        __builtin_prefetch((const void *)((uintptr_t)at + ahead + i), 0, 3);
}
static inline void streaming_ask_second(const void *at, size_t ahead, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += STREAMING_LINE)
        __builtin_prefetch((const void *)((uintptr_t)at + ahead + i), 0, 2);
}

/* Elements of to (count) to be stored plainly before the first piece: all where there are few. */
static inline size_t streaming_head(const uint16_t *to, size_t count)
{
    size_t past = (uintptr_t)to % 16 / sizeof *to;
    return count < STREAMING_COUNT ? count : (8 - past) % 8;
}

/* to (STREAMING_PIECE) = from; both begin at multiples of 16 bytes. Others see it after
 * streaming_end(). */
static inline void streaming_store(uint16_t *to, const uint16_t *from)
{
#ifdef __SSE2__
    for (size_t i = 0; i < STREAMING_PIECE; i += 8)
        _mm_stream_si128((__m128i *)(void *)(to + i),
            _mm_load_si128((const __m128i *)(const void *)(from + i)));
#else
    memcpy(to, from, STREAMING_PIECE * sizeof *to);
#endif
}

/* Whoever synchronizes with this thread by plain means sees what was stored before. */
static inline void streaming_end(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

#endif
