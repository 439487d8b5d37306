/* portable_math: logarithm, exponential, cosine and sine in double, the same bits on every machine.
 *
 * libm may round them differently from machine to machine, and what they make (starting values,
 * angles of rotary positions) must be everybody's. Here is plain arithmetic, in one order.
 */
#ifndef MODEL_PORTABLE_MATH_H
#define MODEL_PORTABLE_MATH_H

#include <math.h>

/* Horner's rule: Σ coefficient[i]·xⁱ. */
static inline double portable_polynomial(const double *coefficient, int count, double x)
{
    double sum = 0.0;
    for (int i = count - 1; i >= 0; i--) sum = sum * x + coefficient[i];
    return sum;
}

/* ln x for x > 0: x = m·2ᵉ with m near 1, ln m = 2·atanh((m − 1)/(m + 1)). Within 1e-15 of ln x,
 * relatively. */
static inline double portable_log(double x)
{
    static const double atanh_series[11] = {1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11,
        1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    int exponent;
    double m = frexp(x, &exponent); /* exact; m in [½, 1) */
    if (m < 0.70710678118654752) {
        m *= 2.0;
        exponent--;
    }
    double s = (m - 1.0) / (m + 1.0);
    return 2.0 * s * portable_polynomial(atanh_series, 11, s * s) + exponent * 0.69314718055994531;
}

/* eˣ for |x| < 700: x = n·ln2 + r, |r| ≤ ln2/2, and Taylor's series of r. Within 1e-15·(1 + |x|) of
 * eˣ, relatively. */
static inline double portable_exp(double x)
{
    double n = floor(x / 0.69314718055994531 + 0.5), r = x - n * 0.69314718055994531, sum = 1.0;
    for (int i = 14; i > 0; i--) sum = 1.0 + r / i * sum;
    return ldexp(sum, (int)n);
}

/* cos and sin of 2πu, u in [0, 1]: the nearest quarter turn, and Taylor's series within an eighth
 * of it. */
static inline void portable_turn(double *cosine, double *sine, double u)
{
    static const double cos_series[9] = {1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320,
        -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
    static const double sin_series[9] = {1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    int quarter = (int)(4.0 * u + 0.5);
    double angle = (4.0 * u - quarter) * 1.57079632679489662, square = angle * angle;
    double c = portable_polynomial(cos_series, 9, square);
    double s = angle * portable_polynomial(sin_series, 9, square);
    const double cosines[4] = {c, -s, -c, s}, sines[4] = {s, c, -s, -c};
    *cosine = cosines[quarter % 4];
    *sine = sines[quarter % 4];
}

#endif
