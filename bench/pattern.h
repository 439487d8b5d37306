/* pattern: inputs whose sums are known and exact, and the check of every element of an output.
 *
 * Input i of a rank is a small whole number, a function of (seed, rank, i mod PERIOD). PERIOD is a
 * prime, so that a chunk or a slice in a wrong place shows. Results stay ≤ 251 (int8: 127), so they
 * are exact in every dtype, bfloat16 too, in any order (up to 251 ranks). A buffer is then a
 * periodic table: filled and checked at the speed of memory.
 *
 *   sum, min, max  input k(r, i)      output Σ, min, max k(r, i)     max also for what is only moved
 *   avg            input n·k(r, i)    output Σ k(r, i)     an average that every dtype holds
 *    of 8 bits     input k(r, i)      output Σ k(r, i) / n, toward zero: n·k would not fit
 *   premul_sum     input k(r, i)      output Σ s(r)·k(r, i)     s(r) is 2, 1, 2, 1, …
 *   prod           rank 0 2 … 16, two others 1 or 2, the rest 1, signs where floating;  output Π
 */
#ifndef BENCH_PATTERN_H
#define BENCH_PATTERN_H

#include <stddef.h>
#include <stdint.h>

#include "ring/ring.h"

#define PATTERN_PERIOD 4093
#define PATTERN_POISON 0xff /* a byte that makes no element of a pattern: NaN, or -1 */

struct pattern_key {
    uint64_t seed;
    int nranks;
    enum dtype dtype;
    enum redop redop;
};

struct pattern {
    enum dtype dtype;
    double tolerance; /* relative; 0 but for averages of float32 and float64, whose factor 1/n may round */
    _Alignas(16) unsigned char cells[PATTERN_PERIOD * 8];
};

/* s(r): what a rank gives premul_sum to multiply with. */
double pattern_scalar(int rank);

/* What a rank puts in; and what all of them give. */
void pattern_input(struct pattern *pattern, int rank, const struct pattern_key *key);
void pattern_reduced(struct pattern *pattern, const struct pattern_key *key);

/* Elements first … first + count of the pattern, to or against buffer[0 … count). count_wrong
 * returns how many differ. */
void pattern_fill(void *buffer, size_t first, size_t count, const struct pattern *pattern);
uint64_t pattern_count_wrong(
    const void *buffer, size_t first, size_t count, const struct pattern *pattern);

#endif
