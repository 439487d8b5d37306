/* pattern: see pattern.h. */
#include "bench/pattern.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Values are 0 … levels − 1. Sums (and n·k, the inputs of an average) stay ≤ 256, and maxima below.
 */
static uint32_t levels(const struct pattern_key *key)
{
    int fit = key->redop == REDOP_MAX ? 251 : 256 / key->nranks;
    return fit < 2 ? 2 : (uint32_t)fit;
}

/* k(r, i) of the file's head. */
static uint32_t value_at(int rank, size_t cell, const struct pattern_key *key)
{
    uint64_t x = key->seed * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xbf58476d1ce4e5b9u + cell + 1;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) % levels(key));
}

static void put(void *cells, size_t cell, uint32_t value, enum dtype dtype)
{
    float real = (float)value;
    uint16_t half = float32_to_bfloat16(real);
    size_t bytes = dtype_bytes(dtype);
    const void *from = dtype == DTYPE_INT32     ? (const void *)&value
                       : dtype == DTYPE_FLOAT32 ? (const void *)&real
                                                : &half;
    memcpy((char *)cells + cell * bytes, from, bytes);
}

void pattern_input(struct pattern *pattern, int rank, const struct pattern_key *key)
{
    uint32_t factor = key->redop == REDOP_AVG ? (uint32_t)key->nranks : 1;
    pattern->dtype = key->dtype;
    pattern->tolerance = 0;
    for (size_t cell = 0; cell < PATTERN_PERIOD; cell++)
        put(pattern->cells, cell, factor * value_at(rank, cell, key), key->dtype);
}

void pattern_reduced(struct pattern *pattern, const struct pattern_key *key)
{
    pattern->dtype = key->dtype;
    bool inexact = key->redop == REDOP_AVG && key->dtype == DTYPE_FLOAT32;
    pattern->tolerance = inexact ? (float)key->nranks * 0x1p-23f : 0;
    for (size_t cell = 0; cell < PATTERN_PERIOD; cell++) {
        uint32_t sum = 0, max = 0;
        for (int rank = 0; rank < key->nranks; rank++) {
            uint32_t value = value_at(rank, cell, key);
            sum += value;
            max = value > max ? value : max;
        }
        put(pattern->cells, cell, key->redop == REDOP_MAX ? max : sum, key->dtype);
    }
}

/* Elements from place `first` of the pattern to the end of its table, at most count. */
static size_t run_count(size_t first, size_t count)
{
    size_t left = PATTERN_PERIOD - first % PATTERN_PERIOD;
    return left < count ? left : count;
}

void pattern_fill(void *buffer, size_t first, size_t count, const struct pattern *pattern)
{
    size_t bytes = dtype_bytes(pattern->dtype);
    for (char *to = buffer; count > 0;) {
        size_t run = run_count(first, count);
        memcpy(to, pattern->cells + first % PATTERN_PERIOD * bytes, run * bytes);
        to += run * bytes;
        first += run;
        count -= run;
    }
}

static bool is_right(
    const unsigned char *found, const unsigned char *expected, const struct pattern *pattern)
{
    if (memcmp(found, expected, dtype_bytes(pattern->dtype)) == 0) return true;
    if (pattern->tolerance == 0) return false;
    float a, b; /* only float32 has a tolerance */
    memcpy(&a, found, sizeof a);
    memcpy(&b, expected, sizeof b);
    return fabsf(a - b) <= pattern->tolerance * fabsf(b);
}

uint64_t pattern_count_wrong(
    const void *buffer, size_t first, size_t count, const struct pattern *pattern)
{
    size_t bytes = dtype_bytes(pattern->dtype);
    uint64_t wrong = 0;
    for (const unsigned char *from = buffer; count > 0;) {
        size_t run = run_count(first, count);
        const unsigned char *expected = pattern->cells + first % PATTERN_PERIOD * bytes;
        if (memcmp(from, expected, run * bytes) != 0)
            for (size_t i = 0; i < run; i++)
                wrong += !is_right(from + i * bytes, expected + i * bytes, pattern);
        from += run * bytes;
        first += run;
        count -= run;
    }
    return wrong;
}
