/* slice: every element of a chunk is in one slice, slices fit slots, and small chunks are cut where
 * that costs little.
 * ctest: timeout=10
 */
#include "ring/slice.h"
#include "tests/harness/harness.h"

#define KIB ((size_t)1 << 10)

static void test_covers(void)
{
    for (int kind = SLICE_MEMORY; kind <= SLICE_MESSAGE; kind++)
        for (size_t count = 0; count < 4096 * KIB; count = count * 3 + 1)
            for (size_t element = 1; element <= 8; element *= 2)
                for (size_t slot = 64; slot <= 256 * KIB; slot *= 8) {
                    struct slice_cut cut = slice_cut(count, element, (enum slice_kind)kind, slot, 8);
                    CHECK(cut.slice_count * element <= slot);
                    CHECK(cut.slices >= 1);
                    CHECK(cut.slices * cut.slice_count >= count);
                    CHECK(cut.slices == 1 || (cut.slices - 1) * cut.slice_count < count);
                }
}

static void test_least(void)
{
    CHECK(slice_cut(64 * KIB, 1, SLICE_MEMORY, 256 * KIB, 8).slices == 4);
    CHECK(slice_cut(64 * KIB, 1, SLICE_MESSAGE, 256 * KIB, 8).slices == 1);
    CHECK(slice_cut(256 * KIB, 1, SLICE_MESSAGE, 256 * KIB, 8).slices == 1);
    CHECK(slice_cut(252 * KIB, 1, SLICE_RELAY, 256 * KIB, 8).slices == 1);
    CHECK(slice_cut(256 * KIB, 1, SLICE_RELAY, 256 * KIB, 8).slices == 4);
    CHECK(slice_cut(4096 * KIB, 1, SLICE_RELAY, 256 * KIB, 8).slices == 16);
    CHECK(slice_cut(512 * KIB, 1, SLICE_MESSAGE, 512 * KIB, 8).slices == 2);
    CHECK(slice_cut(1024 * KIB, 1, SLICE_MESSAGE, 256 * KIB, 8).slices == 4);
    CHECK(slice_cut(4096 * KIB, 1, SLICE_MESSAGE, 256 * KIB, 8).slices == 16);
}

int main(void)
{
    test_covers();
    test_least();
    return test_result();
}
