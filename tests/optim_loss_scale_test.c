/* The dynamic loss scale: halved by an overflow down to its floor, doubled after good steps in a row, never beyond its most; and what
 * counts as finite. optim_loss_scale_fast_test.c is the same, compiled with -ffast-math.
 */
#include "optim/loss_scale.h"

#include <math.h>
#include <string.h>

#include "tests/harness/harness.h"

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Values come from bits: -ffast-math may take it that INFINITY and NAN do not occur. */
static void test_finite(void)
{
    CHECK(!loss_scale_is_finite(from_bits(0x7ff0000000000000))); /* +inf */
    CHECK(!loss_scale_is_finite(from_bits(0xfff0000000000000))); /* -inf */
    CHECK(!loss_scale_is_finite(from_bits(0x7ff8000000000000))); /* NaN */
    CHECK(!loss_scale_is_finite(from_bits(0xfff0000000000001)));
    CHECK(loss_scale_is_finite(from_bits(0x7fefffffffffffff))); /* the largest */
    CHECK(loss_scale_is_finite(from_bits(1)) && loss_scale_is_finite(0.0));
}

static void test_overflow(void)
{
    struct loss_scale scale = loss_scale_default();
    scale.floor = 0x1p14;
    CHECK(scale.value == 0x1p16);
    CHECK(loss_scale_update(&scale, false) && scale.value == 0x1p15);
    CHECK(loss_scale_update(&scale, false) && scale.value == 0x1p14);
    CHECK(!loss_scale_update(&scale, false) && scale.value == 0x1p14);
    scale.floor = 10000.0;
    CHECK(loss_scale_update(&scale, false) && scale.value == 10000.0);
}

static void test_growth(void)
{
    struct loss_scale scale = {.value = 0x1p39, .floor = 1.0, .growth_interval = 3};
    for (int i = 0; i < 2; i++) CHECK(loss_scale_update(&scale, true) && scale.value == 0x1p39);
    CHECK(loss_scale_update(&scale, false) && scale.value == 0x1p38); /* in a row */
    for (int i = 0; i < 2; i++) CHECK(loss_scale_update(&scale, true) && scale.value == 0x1p38);
    CHECK(loss_scale_update(&scale, true) && scale.value == 0x1p39);
    for (int i = 0; i < 9; i++) CHECK(loss_scale_update(&scale, true));
    CHECK(scale.value == LOSS_SCALE_MOST);
    scale.growth_interval = 0;
    scale.value = 2.0;
    for (int i = 0; i < 9; i++) CHECK(loss_scale_update(&scale, true) && scale.value == 2.0);
}

int main(void)
{
    test_finite();
    test_overflow();
    test_growth();
    return test_result();
}
