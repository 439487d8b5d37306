/* params_initialize: starting values of parameters.
 *
 * Invariant: what a starting value is depends on (seed, canonical name, element) alone. The canonical name of
 * a block of wte is "wte", its elements counted from the table's first row, so that the bits do not depend on
 * how rows are cut into units either. No library function takes part in a value: libm may round log and cos
 * differently from machine to machine.
 *
 *   element 2i   ← r·cos(θ)      r = √(−2 ln u₁)   u₁, u₂ from words 2i + 1, 2i + 2 of a counter-based generator
 *   element 2i+1 ← r·sin(θ)      θ = 2π u₂         keyed by (seed, name)
 */
#include <math.h>

#include "model/params.h"

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

/* Horner's rule: Σ coefficient[i]·xⁱ. */
static inline double polynomial(const double *coefficient, int count, double x)
{
    double sum = 0.0;
    for (int i = count - 1; i >= 0; i--) sum = sum * x + coefficient[i];
    return sum;
}

/* ln u for u in (0, 1]: u = m·2ᵉ with m near 1, ln m = 2·atanh((m − 1)/(m + 1)). Within 1e-15 of ln u, relatively. */
static double natural_log(double u)
{
    static const double atanh_series[11] = {
        1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    int exponent;
    double m = frexp(u, &exponent); /* exact; m in [½, 1) */
    if (m < 0.70710678118654752) {
        m *= 2.0;
        exponent--;
    }
    double s = (m - 1.0) / (m + 1.0);
    return 2.0 * s * polynomial(atanh_series, 11, s * s) + exponent * 0.69314718055994531;
}

/* cos and sin of 2πu, u in (0, 1]: the nearest quarter turn, and Taylor's series within an eighth of it. */
static void turn(double *cosine, double *sine, double u)
{
    static const double cos_series[9] = {1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
    static const double sin_series[9] = {1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800,
        1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    int quarter = (int)(4.0 * u + 0.5);
    double angle = (4.0 * u - quarter) * 1.57079632679489662, square = angle * angle;
    double c = polynomial(cos_series, 9, square), s = angle * polynomial(sin_series, 9, square);
    const double cosines[4] = {c, -s, -c, s}, sines[4] = {s, c, -s, -c};
    *cosine = cosines[quarter % 4];
    *sine = sines[quarter % 4];
}

static void fill_normal(float *values, uint64_t key, uint64_t begin, size_t count, float std)
{
    for (uint64_t pair = begin / 2; 2 * pair < begin + count; pair++) {
        double radius = sqrt(-2.0 * natural_log(uniform(key, 2 * pair + 1))), normal[2];
        turn(&normal[0], &normal[1], uniform(key, 2 * pair + 2));
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
