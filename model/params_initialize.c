/* params_initialize: starting values of parameters.
 *
 * Invariant: what a starting value is depends on (seed, canonical name, element) alone. The canonical name of
 * a block of wte is "wte", its elements counted from the table's first row, so that the bits do not depend on
 * how rows are cut into units either. No library function takes part in a value: portable_math.h.
 *
 *   element 2i   ← r·cos(θ)      r = √(−2 ln u₁)   u₁, u₂ from words 2i + 1, 2i + 2 of a counter-based generator
 *   element 2i+1 ← r·sin(θ)      θ = 2π u₂         keyed by (seed, name)
 */
#include <math.h>

#include "model/params.h"
#include "model/portable_math.h"

/* The output function of splitmix64: every bit of the result depends on every bit of x.
 * source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators". */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Word `counter` of the stream of `key`, as a number in (0, 1]. */
static double uniform(uint64_t key, uint64_t counter)
{
    uint64_t word = mix(key + counter * 0x9e3779b97f4a7c15u);
    return ((double)(word >> 11) + 1.0) * 0x1p-53;
}

static void fill_normal(float *values, uint64_t key, uint64_t begin, size_t count, float std)
{
    for (uint64_t pair = begin / 2; 2 * pair < begin + count; pair++) {
        double radius = sqrt(-2.0 * portable_log(uniform(key, 2 * pair + 1))), normal[2];
        portable_turn(&normal[0], &normal[1], uniform(key, 2 * pair + 2));
        for (uint64_t half = 0; half < 2; half++) {
            uint64_t element = 2 * pair + half;
            if (element >= begin && element < begin + count)
                values[element - begin] = (float)(radius * normal[half] * (double)std);
        }
    }
}

/* FNV-1a of the canonical name: up to a '[', which only blocks of wte have. */
static uint64_t name_hash(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0' && *name != '['; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return hash;
}

/* Elements [begin, begin + count) of the whole tensor. */
static void initialize_run(float *values, const struct param *param, size_t begin, size_t count, uint64_t seed)
{
    if (param->init == INIT_NORMAL) {
        uint64_t key = mix(mix(seed + 0x9e3779b97f4a7c15u) ^ name_hash(param->name));
        fill_normal(values, key, (uint64_t)param->first_row * param->whole_cols + begin, count, param->std);
        return;
    }
    float value = param->init == INIT_ONE ? 1.0f : 0.0f;
    for (size_t i = 0; i < count; i++) values[i] = value;
}

void params_initialize(float *values, const struct params *params, int unit, size_t begin, size_t count,
    uint64_t seed)
{
    struct params_walk walk = params_walk(params, unit, begin, begin + count);
    for (struct params_run run; params_next_run(&run, &walk);)
        initialize_run(values + (run.begin - begin), run.param, run.whole_begin - run.param->whole_offset,
            run.count, seed);
}
