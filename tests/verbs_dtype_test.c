/* The 16-bit floats, each of them and what is between them; and the names of element types.
 * ctest: timeout=30
 */
#include <math.h>
#include <string.h>

#include "tests/harness/harness.h"
#include "verbs/dtype.h"

/* Every bfloat16 survives the way to float32 and back; rounding is to nearest, ties to even. */
static void check_bfloat16(void)
{
    int wrong = 0;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t back = float32_to_bfloat16(bfloat16_to_float32((uint16_t)bits));
        bool nan = (bits & 0x7fff) > 0x7f80;
        wrong += nan ? (back & 0x7fff) <= 0x7f80 : back != bits;
    }
    CHECK(wrong == 0);
    CHECK(float32_to_bfloat16(1.00390625f) == 0x3f80);  /* a tie: down to even */
    CHECK(float32_to_bfloat16(1.01171875f) == 0x3f82);  /* a tie: up to even */
    CHECK(float32_to_bfloat16(3.4e38f) == 0x7f80);      /* rounds to infinity */
}

/* A float16 by its definition. */
static float float16_value(uint32_t bits)
{
    int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
    float magnitude = exponent == 31 ? (fraction != 0 ? NAN : INFINITY)
                      : exponent == 0 ? ldexpf((float)fraction, -24)
                                      : ldexpf((float)(1024 + fraction), exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

/* All 65,536 values; and between any two neighbours the tie, which goes to even, and the floats on both sides of it. */
static void check_float16(void)
{
    int wrong = 0;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = float16_to_float32((uint16_t)bits), expected = float16_value(bits);
        uint16_t back = float32_to_float16(value);
        bool nan = (bits & 0x7fff) > 0x7c00;
        wrong += nan ? !isnan(value) || back != (bits | 0x200) : memcmp(&value, &expected, 4) != 0 || back != bits;
    }
    CHECK(wrong == 0);
    for (uint32_t bits = 0; bits < 0x7c00; bits++) {
        float next = bits == 0x7bff ? 65536 : float16_value(bits + 1); /* infinity stands where 65536 would */
        float tie = (float16_value(bits) + next) / 2;
        wrong += float32_to_float16(tie) != (bits & 1 ? bits + 1 : bits);
        wrong += float32_to_float16(nextafterf(tie, 0)) != bits;
        wrong += float32_to_float16(-nextafterf(tie, INFINITY)) != (bits + 1) + 0x8000;
    }
    CHECK(wrong == 0);
    static const struct {
        float value;
        uint16_t bits;
    } hard[] = {{0, 0}, {-0.0f, 0x8000}, {1, 0x3c00}, {-2, 0xc000}, {0.1f, 0x2e66},
        /* near the largest */
        {65504, 0x7bff}, {65519.996f, 0x7bff}, {65520, 0x7c00}, {-65536, 0xfc00}, {70000, 0x7c00}, {1e6f, 0x7c00},
        {3.4e38f, 0x7c00}, {INFINITY, 0x7c00}, {-INFINITY, 0xfc00},
        /* near and below the smallest normal */
        {0x1p-14f, 0x0400}, {0x1.ff8p-15f, 0x03ff}, {0x1.ffcp-15f, 0x0400}, {0x1p-24f, 1}, {0x1p-25f, 0},
        {0x1.000002p-25f, 1}, {0x1.8p-24f, 2}, {-0x1p-26f, 0x8000}, {0x1p-149f, 0},
        /* ties */
        {1.00048828125f, 0x3c00}, {1.00146484375f, 0x3c02}};
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) {
        uint16_t found = float32_to_float16(hard[i].value);
        CHECK_MSG(found == hard[i].bits, "%a: %04x, expected %04x", (double)hard[i].value, found, hard[i].bits);
    }
    CHECK(float32_to_float16(float32_from_bits(0x7f800001)) == 0x7e00); /* still a NaN though its payload is lost */
    CHECK(float32_to_float16(float32_from_bits(0xffc02000)) == 0xfe01);
}

static void check_dtype_names(void)
{
    enum dtype dtype;
    for (int d = 0; d < DTYPE_COUNT; d++)
        CHECK(dtype_from_name(&dtype, dtype_name((enum dtype)d)) == 0 && dtype == (enum dtype)d);
    CHECK(dtype_from_name(&dtype, "float") == 0 && dtype == DTYPE_FLOAT32);
    CHECK(dtype_from_name(&dtype, "half") == 0 && dtype == DTYPE_FLOAT16);
    CHECK(dtype_from_name(&dtype, "double") == 0 && dtype == DTYPE_FLOAT64 && dtype_bytes(dtype) == 8);
    CHECK(dtype_from_name(&dtype, "f64") == -1);
}

int main(void)
{
    check_bfloat16();
    check_float16();
    check_dtype_names();
    return test_result();
}
