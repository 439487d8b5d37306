/* window_part: what each rank of an operation by windows shows the others, and where it lies: pure functions of the operation.
 *
 *   4 ranks            inputs for rank c                 results of rank c
 *   reduce_scatter     chunk c of everybody's send       none
 *   all_reduce         chunk c of everybody's send       chunk c of its recv, complete
 *   all_gather         none                              its send, which is chunk c of everybody's recv
 *   broadcast          none                              the root's send, all of it
 *
 * Invariant: sizes follow from what all ranks know alike, so who reads knows how much will come.
 */
#ifndef RING_WINDOW_PART_H
#define RING_WINDOW_PART_H

#include <stdbool.h>
#include <stddef.h>

#include "ring/operation.h"

/* Whether it has inputs; whether it has results, and whether `rank` has some. */
bool window_adds(const struct operation *operation);
bool window_has_results(const struct operation *operation);
bool window_owns(int rank, const struct operation *operation);

/* Bytes: of an element in the caller's memory; of the largest chunk, and of chunk c, with its offset in the whole buffer. */
size_t window_element_bytes(const struct operation *operation);
size_t window_largest_bytes(const struct operation *operation);
size_t window_chunk_bytes(int c, const struct operation *operation);
size_t window_chunk_offset(int c, const struct operation *operation);

/* Bytes of results of `rank`, and of inputs for it. */
size_t window_result_bytes(int rank, const struct operation *operation);
size_t window_input_bytes(int rank, const struct operation *operation);

/* Whether what is in no region is read there even so, by the kernel (region_view_copy()). */
bool window_is_bare(const struct operation *operation);

/* Where this rank's results come from, and where those of a rank go; where this rank's sum is built. */
const unsigned char *window_result_source(const struct operation *operation);
unsigned char *window_result_place(int rank, const struct operation *operation);
unsigned char *window_sum_place(const struct operation *operation);

#endif
