/* bench/pattern: right outputs count 0 wrong, and every kind of wrong one is found. Bench is a
 * program, so its file is taken in here. ctest: timeout=30
 */
#include "bench/pattern.c"

#include <stdlib.h>

#include "tests/harness/harness.h"

#define COUNT (3 * PATTERN_PERIOD + 17)

/* The reduction as a rank would do it, in ring order from rank `first` on, rounding to the dtype at
 * each. */
static void reduce(char *out, const struct pattern_key *key, int first)
{
    struct pattern input;
    size_t bytes = dtype_bytes(key->dtype);
    char *in = malloc(COUNT * bytes);
    double *sums = calloc(COUNT, sizeof *sums);
    for (int i = 0; i < key->nranks; i++) {
        pattern_input(&input, (first + i) % key->nranks, key);
        pattern_fill(in, 0, COUNT, &input);
        for (size_t j = 0; j < COUNT; j++) {
            float scale = key->redop == REDOP_AVG ? 1.0f / (float)key->nranks : 1.0f;
            double value = key->dtype == DTYPE_INT32 ? ((int32_t *)(void *)in)[j]
                           : key->dtype == DTYPE_FLOAT32
                               ? (double)(((float *)(void *)in)[j] * scale)
                               : (double)bfloat16_to_float32(float32_to_bfloat16(
                                     bfloat16_to_float32(((uint16_t *)(void *)in)[j]) * scale));
            double sum =
                key->redop == REDOP_MAX ? (value > sums[j] ? value : sums[j]) : sums[j] + value;
            sums[j] = key->dtype == DTYPE_INT32 ? sum
                      : key->dtype == DTYPE_FLOAT32
                          ? (double)(float)sum
                          : (double)bfloat16_to_float32(float32_to_bfloat16((float)sum));
        }
    }
    for (size_t j = 0; j < COUNT; j++) {
        if (key->dtype == DTYPE_INT32)
            ((int32_t *)(void *)out)[j] =
                (int32_t)(key->redop == REDOP_AVG ? sums[j] / key->nranks : sums[j]);
        if (key->dtype == DTYPE_FLOAT32) ((float *)(void *)out)[j] = (float)sums[j];
        if (key->dtype == DTYPE_BFLOAT16)
            ((uint16_t *)(void *)out)[j] = float32_to_bfloat16((float)sums[j]);
    }
    free(in);
    free(sums);
}

static void test_key(const struct pattern_key *key)
{
    struct pattern expected;
    size_t bytes = dtype_bytes(key->dtype);
    char *out = malloc(COUNT * bytes);
    pattern_reduced(&expected, key);
    for (int first = 0; first < key->nranks; first += 1 + key->nranks / 3) {
        reduce(out, key, first);
        uint64_t wrong = pattern_count_wrong(out, 0, COUNT, &expected);
        CHECK_MSG(wrong == 0, "%llu wrong: dtype %s, redop %d, %d ranks", (unsigned long long)wrong,
            dtype_name(key->dtype), (int)key->redop, key->nranks);
    }
    /* One element, the last; all of them poisoned; the whole moved by one. */
    out[(COUNT - 1) * bytes + bytes - 1] ^= 0x40;
    CHECK(pattern_count_wrong(out, 0, COUNT, &expected) == 1);
    memset(out, PATTERN_POISON, COUNT * bytes);
    CHECK(pattern_count_wrong(out, 0, COUNT, &expected) == COUNT);
    pattern_fill(out, 1, COUNT, &expected);
    CHECK(pattern_count_wrong(out, 1, COUNT, &expected) == 0);
    CHECK(pattern_count_wrong(out, 0, COUNT, &expected) > COUNT / 4);
    free(out);
}

int main(void)
{
    const int nranks[] = {1, 2, 3, 4, 7, 49, 64, 127};
    for (size_t n = 0; n < sizeof nranks / sizeof *nranks; n++)
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
            for (int redop = 0; redop < REDOP_COUNT; redop++)
                test_key(
                    &(struct pattern_key){1234, nranks[n], (enum dtype)dtype, (enum redop)redop});

    struct pattern_key key = {1, 4, DTYPE_FLOAT32, REDOP_SUM};
    struct pattern a, b;
    float out[1000];
    pattern_input(&a, 0, &key);
    pattern_input(&b, 1, &key);
    pattern_fill(out, 0, 1000, &b);
    CHECK(pattern_count_wrong(out, 0, 1000, &a) > 500); /* ranks differ */
    return test_result();
}
