/* draw: see draw.h. Invariant: one number is drawn per token, whatever is left out. */
#include "model/draw.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* The next number of splitmix64 in [0, 1). source: Steele, Lea and Flood, "Fast splittable
 * pseudorandom number generators". */
static double random_next(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

static int most_likely(const float *logits, int vocab)
{
    int best = 0;
    for (int i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static int by_likelihood(const void *a, const void *b, void *logits)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    float lx = ((const float *)logits)[x], ly = ((const float *)logits)[y];
    return lx != ly ? (lx < ly) - (lx > ly) : (x > y) - (x < y);
}

/* exp((logit − largest) / temperature): a weight that need not be divided by their sum. */
static double weight(const float *logits, int id, double largest, const struct draw_config *config)
{
    return exp(((double)logits[id] - largest) / (double)config->temperature);
}

/* How many of the ids in `order`, the most likely first, are left. */
static int count_left(const float *logits, const int32_t *order, int vocab, double largest,
    const struct draw_config *config)
{
    int count = config->top_k > 0 && config->top_k < vocab ? config->top_k : vocab;
    double sum = 0.0, reached = 0.0;
    for (int i = 0; i < count; i++) sum += weight(logits, order[i], largest, config);
    for (int i = 0; i < count; i++) {
        reached += weight(logits, order[i], largest, config);
        if (reached >= (double)config->top_p * sum) return i + 1;
    }
    return count;
}

int32_t draw_token(const float *logits, int32_t *order, int vocab, const struct draw_config *config,
    uint64_t *state)
{
    double random = random_next(state);
    int best = most_likely(logits, vocab), count = vocab;
    double largest = (double)logits[best], sum = 0.0;
    if (config->temperature <= 0.0f) return best;
    bool sorts = config->top_k > 0 || config->top_p < 1.0f;
    for (int i = 0; i < vocab && sorts; i++) order[i] = i;
    if (sorts) {
        qsort_r(order, (size_t)vocab, sizeof *order, by_likelihood, (void *)(uintptr_t)logits);
        count = count_left(logits, order, vocab, largest, config);
    }
    for (int i = 0; i < count; i++) sum += weight(logits, sorts ? order[i] : i, largest, config);
    double rest = random * sum;
    for (int i = 0; i < count; i++) {
        int id = sorts ? order[i] : i;
        rest -= weight(logits, id, largest, config);
        if (rest < 0.0) return id;
    }
    return sorts ? order[count - 1] : vocab - 1; /* rounding left a trace of the sum */
}
