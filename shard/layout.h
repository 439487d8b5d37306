/* layout: where every parameter's element lies in a flat array, and which rank owns it.
 *
 * The one layout of weights, gradients and both moments, the same in every stage. For N ranks a
 * unit of E elements is N shards of S = ⌈E/N⌉ elements, one after another; units follow in order of
 * use (params.h), each aligned to 16 bytes:
 *
 *   unit u, E = 10, N = 4, S = 3       | 0 1 2 | 3 4 5 | 6 7 8 | 9 · · | gap | u + 1
 *      · is padding                     rank 0   rank 1   rank 2   rank 3
 *
 * Libraries choose by alignment what they compute with, and with it the order of a sum. A unit that
 * is gathered into a buffer of its own is aligned, so the same bits in every stage (I3) need it to be
 * where all units are kept, too.
 *
 * Invariant: padding belongs to nobody. It is zero, is never updated, and never reaches a file; but
 * it travels, so that every shard of a unit has the same size. A unit may have fewer elements than
 * there are ranks: the last shards are then all padding.
 */
#ifndef SHARD_LAYOUT_H
#define SHARD_LAYOUT_H

#include <stddef.h>

#include "model/params.h"

#define LAYOUT_ALIGNMENT 8 /* elements: 16 bytes of the narrowest, the most that cuBLAS asks for */

struct layout_unit {
    size_t elements; /* E, real ones */
    size_t shard;    /* S */
    size_t begin;    /* of the unit in a flat array: a multiple of N and of LAYOUT_ALIGNMENT */
};

struct layout {
    int nranks; /* N */
    int unit_count;
    struct layout_unit *unit; /* [unit_count] */
    size_t elements;          /* Ψp: the length of a flat array, gaps included; they never travel */
};

/* Real elements [begin, begin + count) of a unit. */
struct layout_range {
    size_t begin, count;
};

/* Free with layout_free(), which accepts a zeroed struct. errors: SYSTEM (memory). */
MUST_CHECK enum status layout_make(struct layout *layout, const struct params *params, int nranks);
void layout_free(struct layout *layout);

/* N·S: what of a flat array is a unit's, padding included. */
size_t layout_padded(const struct layout *layout, int unit);

/* What rank r owns of a unit: its shard without the padding. count may be 0. */
struct layout_range layout_owned(const struct layout *layout, int unit, int rank);

#endif
