/* bench/pattern: right outputs count 0 wrong, and every kind of wrong one is found. Bench is a
 * program, so its file is taken in here. ctest: timeout=30
 */
#include "bench/pattern.c"

#include <stdlib.h>

#include "tests/harness/harness.h"
#include "tests/reduce_oracle.h"

#define COUNT (3 * PATTERN_PERIOD + 17)

/* The reduction as the ranks do it, in ring order from rank `first` on, rounding to the dtype at each. */
static void reduce(char *out, size_t count, const struct pattern_key *key, int first)
{
    struct pattern input;
    enum dtype dtype = key->dtype;
    size_t bytes = dtype_bytes(dtype);
    char *in = malloc(count * bytes);
    for (int i = 0; i < key->nranks; i++) {
        int rank = (first + i) % key->nranks;
        pattern_input(&input, rank, key);
        pattern_fill(in, 0, count, &input);
        for (size_t j = 0; j < count; j++) {
            struct number own = oracle_load(in + j * bytes, dtype);
            own = oracle_scale(own, dtype, key->redop, key->nranks, pattern_scalar(rank));
            struct number result = i == 0 ? oracle_fit(own, dtype)
                                          : oracle_combine(oracle_load(out + j * bytes, dtype), own, dtype, key->redop);
            if (i == key->nranks - 1) result = oracle_finish(result, dtype, key->redop, key->nranks);
            oracle_store(out + j * bytes, result, dtype);
        }
    }
    free(in);
}

static void test_key(const struct pattern_key *key)
{
    struct pattern expected;
    size_t bytes = dtype_bytes(key->dtype);
    char *out = malloc(COUNT * bytes);
    pattern_reduced(&expected, key);
    size_t reduced_count = key->nranks < 10 ? PATTERN_PERIOD + 17 : 200;
    for (int first = 0; first < key->nranks; first += 1 + key->nranks / 2) {
        reduce(out, reduced_count, key, first);
        uint64_t wrong = pattern_count_wrong(out, 0, reduced_count, &expected);
        CHECK_MSG(wrong == 0, "%llu wrong: %s %s, %d ranks", (unsigned long long)wrong,
            dtype_name(key->dtype), redop_name(key->redop), key->nranks);
    }
    pattern_fill(out, 0, COUNT, &expected);
    CHECK(pattern_count_wrong(out, 0, COUNT, &expected) == 0);
    /* One element, the last; all of them poisoned; the whole moved by one. */
    out[(COUNT - 1) * bytes + bytes - 1] ^= 0x40;
    CHECK(pattern_count_wrong(out, 0, COUNT, &expected) == 1);
    memset(out, PATTERN_POISON, COUNT * bytes);
    CHECK(pattern_count_wrong(out, 0, COUNT, &expected) == COUNT);
    pattern_fill(out, 1, COUNT, &expected);
    CHECK(pattern_count_wrong(out, 1, COUNT, &expected) == 0);
    bool few_values = key->redop == REDOP_AVG && bytes == 1 && key->nranks > 40; /* averages up to 127 / 49 */
    CHECK_MSG(few_values || pattern_count_wrong(out, 0, COUNT, &expected) > COUNT / 4, "%s %s, %d ranks",
        dtype_name(key->dtype), redop_name(key->redop), key->nranks);
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
