/* pattern: see pattern.h. */
#include "bench/pattern.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

double pattern_scalar(int rank) { return rank % 2 == 0 ? 2 : 1; }

/* Values are 0 … levels − 1, such that results fit the smallest dtypes. */
static uint32_t levels(const struct pattern_key *key)
{
    int largest = key->dtype == DTYPE_INT8 ? 127 : 251;
    bool sums = key->redop != REDOP_MAX && key->redop != REDOP_MIN;
    int terms = key->redop == REDOP_PREMUL_SUM ? 2 * key->nranks : sums ? key->nranks : 1;
    int fit = largest / terms;
    return fit < 2 ? 2 : (uint32_t)fit;
}

static uint64_t hash(int rank, size_t cell, const struct pattern_key *key)
{
    uint64_t x = key->seed * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xbf58476d1ce4e5b9u + cell + 1;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A rank's factor of a product: the whole is 2 … 64, and negative only where no poison is −1. */
static int factor_at(int rank, size_t cell, const struct pattern_key *key)
{
    uint64_t x = hash(rank, cell, key);
    int twos = rank == 0 ? 1 + (int)(x % 4) : rank <= 2 ? (int)(x % 2) : 0;
    bool negative = !dtype_is_integer(key->dtype) && (x >> 8) % 2 != 0;
    return negative ? -(1 << twos) : 1 << twos;
}

/* k(r, i) of the header's head. */
static int value_at(int rank, size_t cell, const struct pattern_key *key)
{
    if (key->redop == REDOP_PROD) return factor_at(rank, cell, key);
    return (int)(hash(rank, cell, key) % levels(key));
}

/* An average of 8-bit integers: the one operation whose inputs are not n·k, and whose results are Σ k / n. */
static bool averages_bytes(const struct pattern_key *key)
{
    return key->redop == REDOP_AVG && dtype_bytes(key->dtype) == 1;
}

static int reduced_at(size_t cell, const struct pattern_key *key)
{
    int result = value_at(0, cell, key) * (key->redop == REDOP_PREMUL_SUM ? (int)pattern_scalar(0) : 1);
    for (int rank = 1; rank < key->nranks; rank++) {
        int value = value_at(rank, cell, key);
        switch (key->redop) {
        case REDOP_PROD: result *= value; break;
        case REDOP_MIN: result = value < result ? value : result; break;
        case REDOP_MAX: result = value > result ? value : result; break;
        case REDOP_PREMUL_SUM: result += (int)pattern_scalar(rank) * value; break;
        default: result += value; break;
        }
    }
    if (!averages_bytes(key)) return result;
    /* With very many ranks the sum wraps before it is divided. */
    return (key->dtype == DTYPE_INT8 ? (int8_t)result : (uint8_t)result) / key->nranks;
}

static void put(void *cells, size_t cell, int value, enum dtype dtype)
{
    double double_ = value;
    float single = (float)value;
    int64_t whole = value; /* its first bytes are the narrower integers, signed or not: little-endian */
    uint16_t half = dtype == DTYPE_FLOAT16 ? float32_to_float16(single) : float32_to_bfloat16(single);
    size_t bytes = dtype_bytes(dtype);
    const void *from = dtype == DTYPE_FLOAT64    ? (const void *)&double_
                       : dtype == DTYPE_FLOAT32  ? (const void *)&single
                       : dtype_is_integer(dtype) ? (const void *)&whole
                                                 : &half;
    memcpy((char *)cells + cell * bytes, from, bytes);
}

void pattern_input(struct pattern *pattern, int rank, const struct pattern_key *key)
{
    bool scaled = key->redop == REDOP_AVG && !averages_bytes(key);
    pattern->dtype = key->dtype;
    pattern->tolerance = 0;
    for (size_t cell = 0; cell < PATTERN_PERIOD; cell++)
        put(pattern->cells, cell, (scaled ? key->nranks : 1) * value_at(rank, cell, key), key->dtype);
}

void pattern_reduced(struct pattern *pattern, const struct pattern_key *key)
{
    double precision = key->dtype == DTYPE_FLOAT32 ? 0x1p-23 : key->dtype == DTYPE_FLOAT64 ? 0x1p-52 : 0;
    pattern->dtype = key->dtype;
    pattern->tolerance = key->redop == REDOP_AVG ? key->nranks * precision : 0;
    for (size_t cell = 0; cell < PATTERN_PERIOD; cell++)
        put(pattern->cells, cell, reduced_at(cell, key), key->dtype);
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
    double a, b; /* only float32 and float64 have a tolerance */
    if (pattern->dtype == DTYPE_FLOAT64) {
        memcpy(&a, found, sizeof a);
        memcpy(&b, expected, sizeof b);
    } else {
        float single[2];
        memcpy(&single[0], found, sizeof *single);
        memcpy(&single[1], expected, sizeof *single);
        a = single[0], b = single[1];
    }
    return fabs(a - b) <= pattern->tolerance * fabs(b);
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
