/* grid: where a rank stands among all ranks, and the communicators that follow from it.
 *
 * N ranks are P stages of a pipeline, times D data ranks, times M tensor ranks that share every
 * tensor; neighbours share tensors, since that is where most is sent, so they are on one host where
 * possible:
 *
 *   place = (pipeline · D + data) · M + tensor
 *
 *   M = 2, D = 2, P = 2     pipeline 0          pipeline 1
 *                  data 0   0 1  ◄ a tensor     4 5
 *                  data 1   2 3    group        6 7
 *
 * Places are ranks, where ranks of one host follow each other as launchers number them by default.
 * Where they do not (mpirun --map-by node), places go from host to host all the same:
 *
 *   rank   0 1 2 3 4 5 6 7        place   0 1 2 3   4 5 6 7
 *   host   A B A B A B A B        rank    0 2 4 6   1 3 5 7
 *
 * Hosts whose ranks M does not divide first have whole tensor groups of their own; what is left of all
 * hosts forms groups that span them, which rank 0 warns of.
 *
 *   places of one                 have the same            and share
 *     tensor group    {0 1}      pipeline, data           tensors, tokens
 *     data group      {0 2}      pipeline, tensor         what ZeRO shards: shard groups are parts of it
 *     pipeline group  {0 4}      data, tensor             tokens; each has other blocks
 *     embedding group {0 4}      the ends of a pipeline   rows of the embedding
 *
 * Invariants: what is summed over ranks is summed in the order of these coordinates, so that all
 * ranks get the same bits. Places follow from which ranks share a host, and from nothing else (I2).
 */
#ifndef SHARD_GRID_H
#define SHARD_GRID_H

#include "model/params.h"
#include "ring/ring.h"

struct grid {
    int tensor, tensor_count;     /* M */
    int data, data_count;         /* D */
    int pipeline, pipeline_count; /* P */
    int shard_group;              /* data ranks that keep one copy of what is sharded; divides D */

    int *rank_at; /* [places]; NULL: place and rank are the same */

    /* NULL until grid_open(), and for predictions. */
    struct ring_comm *world; /* all ranks: the caller's */
    struct ring_comm *tensor_comm; /* NULL where there is one rank, as the next two */
    struct ring_comm *pipeline_comm, *pipeline_back_comm; /* for activations and gradients */
    struct ring_comm *embedding_comm; /* NULL where P = 1, and between the ends */
    struct ring_comm *group_comm;     /* the shard group; the world where that is all ranks */
    struct ring_comm *replicas_comm;  /* who keeps the same shard; NULL where there is one group */
};

/* What is at a place. M·P divides nranks, shard_group divides D; 0: D. Pure. */
struct grid grid_at(int place, int nranks, int tensor_count, int pipeline_count, int shard_group);

/* The place, and the rank, at these coordinates; how many there are. */
int grid_place(const struct grid *grid, int pipeline, int data, int tensor);
int grid_rank(const struct grid *grid, int pipeline, int data, int tensor);
int grid_nranks(const struct grid *grid);

/* rank_at[place], of nranks ranks on these hosts (any numbers, alike for ranks that share one).
 * Returns how many tensor groups span hosts. Pure. */
int grid_place_ranks(int *rank_at, const int *host, int nranks, int tensor_count);

/* The part of the model that a rank holds. */
struct params_part grid_part(const struct grid *grid);

/* Σ over data ranks of values[stride · rank], of the ranks that stand for the others: those of the
 * last stage, which compute the loss, with tensor rank 0. */
double grid_sum_over_data(const double *values, int stride, const struct grid *grid);

/* Finds this rank's place by the hosts of all (its coordinates may change), and splits the
 * communicators off. collective over world. errors: SYSTEM, and the ring's; grid_close() is due
 * whatever the result. */
MUST_CHECK enum status grid_open(struct grid *grid, struct ring_comm *world);
void grid_close(struct grid *grid);

#endif
