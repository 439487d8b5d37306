/* warp: operations of the lanes of a warp. A lane brings its operand and waits; the last to come
 * computes for all.
 *
 * Lanes meet by mask: those of different masks pass each other, those of one mask that meet at
 * different places of the source are an error, and so is a mask without the lane that gives it. A
 * lane that has ended is waited for no more. What a lane reads of one that does not take part is
 * 0xdead…, since on hardware it is undefined.
 */
#include <cstring>

#include "block.h"
#include "cudasim.h"
#include "fault.h"
#include "process.h"

namespace cudasim {
namespace {

meeting &meet(warp &mine, unsigned mask, combine_function operation, const place &where)
{
    for (int i = 0; i < mine.count; i++) {
        meeting &each = mine.meetings[i];
        if (each.mask != mask) continue;
        if (each.operation != operation || !each.where.is(where))
            fault(cudaErrorLaunchFailure,
                "lanes of the mask %08x meet at different operations: %s:%d and %s:%d%s", mask,
                each.where.file, each.where.line, where.file, where.line, current_place().c_str());
        return each;
    }
    meeting &added = mine.meetings[mine.count++];
    added = {mask, 0, operation, where};
    return added;
}

/* The last has come: it computes for all. */
void finish_if_all(block &here, unsigned number, meeting &met)
{
    warp &mine = here.warps[number];
    unsigned arrived = met.arrived;
    if (arrived != (met.mask & ~mine.ended)) return;
    met.operation(&here.threads[number * 32], arrived);
    met = mine.meetings[--mine.count];
    mine.phase++;
    block_ready_warp(here, number, arrived);
}

/* Waits for all lanes of the mask. orders: whether memory is ordered too, as by __syncwarp(). */
void take_part(
    void *operand, unsigned mask, combine_function combine, bool orders, const place &where)
{
    block &here = *block_here();
    cuda_thread &me = *here.current;
    unsigned number = me.linear / 32, lane = me.linear % 32,
             count = (unsigned)here.threads.size() - number * 32;
    if ((mask >> lane & 1) == 0)
        fault(cudaErrorLaunchFailure,
            "%s:%d: the mask %08x of a warp operation lacks the calling lane %u%s", where.file,
            where.line, mask, lane, current_place().c_str());
    if (count < 32) mask &= (1u << count) - 1;

    warp &mine = here.warps[number];
    meeting &met = meet(mine, mask, combine, where);
    const char *order = (const char *)&mine + (mine.phase & 1);
    if (orders) tsan_release(order);
    me.now = state::at_warp;
    me.waits = where;
    me.operand = operand;
    met.arrived |= 1u << lane;
    finish_if_all(here, number, met);
    block_switch(here);
    if (orders) tsan_acquire(order);
}

struct shuffle {
    uint64_t value, result;
    int argument, width;
};

int shuffle_source(cudasim_shuffle_kind kind, int lane, int argument, int width)
{
    int first = lane & ~(width - 1), last = first + width - 1;
    switch (kind) {
    case CUDASIM_SHUFFLE_INDEX: return first + (argument & (width - 1));
    case CUDASIM_SHUFFLE_UP: return lane - argument < first ? lane : lane - argument;
    case CUDASIM_SHUFFLE_DOWN: return lane + argument > last ? lane : lane + argument;
    default: return (lane ^ argument) > last ? lane : lane ^ argument;
    }
}

template <cudasim_shuffle_kind kind> void combine_shuffle(cuda_thread *lanes, unsigned mask)
{
    for (int i = 0; i < 32; i++) {
        if ((mask >> i & 1) == 0) continue;
        shuffle &mine = *(shuffle *)lanes[i].operand;
        int from = shuffle_source(kind, i, mine.argument, mine.width);
        mine.result =
            mask >> from & 1 ? ((shuffle *)lanes[from].operand)->value : 0xdeadbeefdeadbeef;
    }
}

struct vote {
    bool mine;
    unsigned all;
};

void combine_vote(cuda_thread *lanes, unsigned mask)
{
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1) votes |= (unsigned)((vote *)lanes[i].operand)->mine << i;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1) ((vote *)lanes[i].operand)->all = votes;
}

void combine_nothing(cuda_thread *, unsigned) {}

/* ---- matrices: the PTX ISA, "Matrix Fragments for mma.m16n8k16", "ldmatrix" ---- */

struct product {
    float *d;
    const uint32_t *a, *b;
    const float *c;
    cudasim_matrix_type type;
};

float element(const uint32_t word, int half, cudasim_matrix_type type)
{
    uint16_t bits = (uint16_t)(word >> 16 * half);
    return type == CUDASIM_BFLOAT16 ? bfloat16_to_float32(bits) : float16_to_float32(bits);
}

/* d (16, 8) = a (16, 16) · b (16, 8) + c, in float32. Lane g·4 + t holds of a the rows g and g +
 * 8, of b column g, each at k = 2t, 2t + 1, 2t + 8, 2t + 9; of c and d the rows g and g + 8 at
 * columns 2t, 2t + 1. */
void combine_product(cuda_thread *lanes, unsigned mask)
{
    if (mask != ~0u)
        fault(cudaErrorLaunchFailure, "a matrix product without all 32 lanes%s",
            current_place().c_str());
    float a[16][16], b[16][8];
    for (int i = 0; i < 32; i++) {
        const product &mine = *(product *)lanes[i].operand;
        int g = i / 4, k = i % 4 * 2;
        for (int half = 0; half < 2; half++) {
            for (int part = 0; part < 4; part++)
                a[g + part % 2 * 8][k + half + part / 2 * 8] =
                    element(mine.a[part], half, mine.type);
            for (int part = 0; part < 2; part++)
                b[k + half + part * 8][g] = element(mine.b[part], half, mine.type);
        }
    }
    for (int i = 0; i < 32; i++) {
        const product &mine = *(product *)lanes[i].operand;
        for (int part = 0; part < 4; part++) {
            int row = i / 4 + part / 2 * 8, col = i % 4 * 2 + part % 2;
            float sum = 0;
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][col];
            mine.d[part] = mine.c[part] + sum;
        }
    }
}

struct matrix_load {
    uint32_t *d;
    const void *row;
};

/* Four matrices of 8 rows of 16 bytes. Lane i gives the address of row i % 8 of matrix i / 8,
 * and gets of each matrix the word i % 4 of row i / 4; or, transposed, the elements i / 4 of the
 * rows 2 (i % 4) and 2 (i % 4) + 1. */
template <bool transposed> void combine_matrix_load(cuda_thread *lanes, unsigned mask)
{
    if (mask != ~0u)
        fault(cudaErrorLaunchFailure, "a matrix load without all 32 lanes%s",
            current_place().c_str());
    uint16_t rows[32][8];
    for (int i = 0; i < 32; i++) {
        const void *row = ((matrix_load *)lanes[i].operand)->row;
        if ((uintptr_t)row % 16 != 0)
            fault(cudaErrorMisalignedAddress,
                "a matrix load from %p, which is not aligned to 16 bytes%s", row,
                current_place().c_str());
        memcpy(rows[i], row, 16);
    }
    for (int i = 0; i < 32; i++) {
        for (int matrix = 0; matrix < 4; matrix++) {
            const auto *m = &rows[matrix * 8];
            int r = i / 4, c = i % 4 * 2;
            uint32_t low = transposed ? m[c][r] : m[r][c],
                     high = transposed ? m[c + 1][r] : m[r][c + 1];
            ((matrix_load *)lanes[i].operand)->d[matrix] = low | high << 16;
        }
    }
}

} // namespace

void warp_lane_ended(block &here, const cuda_thread &thread)
{
    unsigned number = thread.linear / 32;
    warp &mine = here.warps[number];
    mine.ended |= 1u << thread.linear % 32;
    for (int i = mine.count - 1; i >= 0; i--) finish_if_all(here, number, mine.meetings[i]);
}

} // namespace cudasim

using namespace cudasim;
extern "C" {

uint64_t cudasim_shuffle(cudasim_shuffle_kind kind, unsigned mask, uint64_t value, int argument,
    int width, const char *file, int line)
{
    static constexpr combine_function functions[] = {combine_shuffle<CUDASIM_SHUFFLE_INDEX>,
        combine_shuffle<CUDASIM_SHUFFLE_UP>, combine_shuffle<CUDASIM_SHUFFLE_DOWN>,
        combine_shuffle<CUDASIM_SHUFFLE_XOR>};
    shuffle mine = {value, 0, argument, width};
    take_part(&mine, mask, functions[kind], false, {file, line});
    return mine.result;
}

unsigned cudasim_ballot(unsigned mask, int predicate, const char *file, int line)
{
    vote mine = {predicate != 0, 0};
    take_part(&mine, mask, combine_vote, false, {file, line});
    return mine.all;
}

void cudasim_warp_barrier(unsigned mask, const char *file, int line)
{
    take_part(nullptr, mask, combine_nothing, true, {file, line});
}

void cudasim_matrix_product(float *d, const uint32_t *a, const uint32_t *b, const float *c,
    cudasim_matrix_type type, const char *file, int line)
{
    product mine = {d, a, b, c, type};
    if (type == CUDASIM_BFLOAT16 && self.set.gpu->number < 80)
        fault(cudaErrorLaunchFailure,
            "a product of bfloat16 at %s:%d, which compute capability 7.5 has not; expected 8.0 or "
            "more (CUDASIM_ARCH=80)%s",
            file, line, current_place().c_str());
    take_part(&mine, ~0u, combine_product, false, {file, line});
}

void cudasim_matrix_load(uint32_t *d, const void *row, int transposed, const char *file, int line)
{
    matrix_load mine = {d, row};
    take_part(&mine, ~0u, transposed ? combine_matrix_load<true> : combine_matrix_load<false>,
        false, {file, line});
}

/* ---- copies beside the thread: they happen when they are waited for, as late as hardware may
 * do them ---- */

void cudasim_copy_async(void *to, const void *from, unsigned bytes)
{
    cuda_thread &me = *block_here()->current;
    if (((uintptr_t)to | (uintptr_t)from) % bytes != 0)
        fault(cudaErrorMisalignedAddress,
            "an asynchronous copy of %u bytes from %p to %p, which is not aligned to them%s", bytes,
            from, to, current_place().c_str());
    me.copies.push_back({to, from, bytes, me.copy_group});
}

void cudasim_copy_commit() { block_here()->current->copy_group++; }

void cudasim_copy_wait(unsigned groups_left)
{
    cuda_thread &me = *block_here()->current;
    size_t done = 0;
    for (; done < me.copies.size() && me.copies[done].group + groups_left < me.copy_group; done++) {
        const async_copy &each = me.copies[done];
        tsan_reads(each.from, each.bytes);
        tsan_writes(each.to, each.bytes);
        memcpy(each.to, each.from, each.bytes);
    }
    me.copies.erase(me.copies.begin(), me.copies.begin() + (long)done);
}
}
