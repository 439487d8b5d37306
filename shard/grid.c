/* grid: see grid.h. */
#include "shard/grid.h"

#include <assert.h>
#include <stdlib.h>

#include "verbs/log.h"

struct grid grid_at(int place, int nranks, int tensor_count, int pipeline_count, int shard_group)
{
    assert(nranks % (tensor_count * pipeline_count) == 0 && place >= 0 && place < nranks);
    int data_count = nranks / (tensor_count * pipeline_count);
    struct grid grid = {
        .tensor = place % tensor_count,
        .tensor_count = tensor_count,
        .data = place / tensor_count % data_count,
        .data_count = data_count,
        .pipeline = place / tensor_count / data_count,
        .pipeline_count = pipeline_count,
        .shard_group = shard_group > 0 ? shard_group : data_count,
    };
    assert(data_count % grid.shard_group == 0);
    return grid;
}

int grid_place(const struct grid *grid, int pipeline, int data, int tensor)
{
    return (pipeline * grid->data_count + data) * grid->tensor_count + tensor;
}

int grid_rank(const struct grid *grid, int pipeline, int data, int tensor)
{
    int place = grid_place(grid, pipeline, data, tensor);
    return grid->rank_at != NULL ? grid->rank_at[place] : place;
}

int grid_nranks(const struct grid *grid)
{
    return grid->pipeline_count * grid->data_count * grid->tensor_count;
}

struct params_part grid_part(const struct grid *grid)
{
    return (struct params_part){
        grid->tensor, grid->tensor_count, grid->pipeline, grid->pipeline_count};
}

double grid_sum_over_data(const double *values, int stride, const struct grid *grid)
{
    double sum = 0.0;
    for (int d = 0; d < grid->data_count; d++)
        sum += values[stride * grid_rank(grid, grid->pipeline_count - 1, d, 0)];
    return sum;
}

/* ---- places ---- */

/* Ranks on this one's host that are before it; with `all`, after it too. */
static int count_on_host(const int *host, int rank, int nranks, bool all)
{
    int count = 0;
    for (int r = 0; r < (all ? nranks : rank); r++) count += host[r] == host[rank];
    return count;
}

/* Appends the ranks of one host that are in its whole groups, or those that are left over. */
static int append_host(int *rank_at, int count, const int *host, int first, int nranks,
    int tensor_count, bool left_over)
{
    int whole = count_on_host(host, first, nranks, true) / tensor_count * tensor_count;
    for (int r = first, seen = 0; r < nranks; r++) {
        if (host[r] != host[first]) continue;
        if ((seen++ >= whole) == left_over) rank_at[count++] = r;
    }
    return count;
}

int grid_place_ranks(int *rank_at, const int *host, int nranks, int tensor_count)
{
    int count = 0, spanning = 0;
    for (int left_over = 0; left_over <= 1; left_over++)
        for (int r = 0; r < nranks; r++)
            if (count_on_host(host, r, nranks, false) == 0)
                count = append_host(rank_at, count, host, r, nranks, tensor_count, left_over != 0);
    assert(count == nranks);
    for (int first = 0; first < nranks; first += tensor_count) {
        bool spans = false;
        for (int t = 1; t < tensor_count; t++)
            spans |= host[rank_at[first + t]] != host[rank_at[first]];
        spanning += spans;
    }
    return spanning;
}

/* This rank's coordinates, and all ranks' places, where these are not their ranks. */
static void take_place(struct grid *grid, int *rank_at, int rank)
{
    int nranks = grid_nranks(grid), own = 0;
    bool moved = false;
    for (int place = 0; place < nranks; place++) {
        moved |= rank_at[place] != place;
        if (rank_at[place] == rank) own = place;
    }
    if (moved) {
        *grid = grid_at(
            own, nranks, grid->tensor_count, grid->pipeline_count, grid->shard_group);
        grid->rank_at = rank_at;
    } else free(rank_at);
}

static enum status place_ranks(struct grid *grid, const struct ring_comm *world)
{
    int nranks = grid_nranks(grid), rank = ring_comm_rank(world);
    if (grid->shard_group == nranks) return STATUS_OK; /* one group, of all: in any order */
    int *host = calloc((size_t)nranks, sizeof *host);
    int *rank_at = calloc((size_t)nranks, sizeof *rank_at);
    if (host == NULL || rank_at == NULL) {
        free(host);
        free(rank_at);
        return FAIL(STATUS_SYSTEM, "no memory for the places of %d ranks", nranks);
    }
    for (int r = 0; r < nranks; r++) host[r] = ring_comm_host(world, r);
    int spanning = grid_place_ranks(rank_at, host, nranks, grid->tensor_count);
    if (spanning > 0 && rank == 0)
        LOG_WARN("train",
            "%d of %d tensor groups span hosts, over which every sum of activations then goes: start "
            "a multiple of %d ranks on each host, or lower --tensor",
            spanning, nranks / grid->tensor_count, grid->tensor_count);
    free(host);
    take_place(grid, rank_at, rank);
    return STATUS_OK;
}

/* ---- */

enum status grid_open(struct grid *grid, struct ring_comm *world)
{
    TRY(place_ranks(grid, world));
    /* A group's color is its first rank, so that no two of one kind are alike. */
    int p = grid->pipeline, d = grid->data, t = grid->tensor, group = grid->shard_group;
    int ends = grid->pipeline_count - 1;
    grid->world = world;
    assert(ring_comm_nranks(world) == grid_nranks(grid));
    if (grid->tensor_count > 1)
        TRY(ring_comm_split(&grid->tensor_comm, grid_rank(grid, p, d, 0), t, world));
    if (ends > 0) TRY(ring_comm_split(&grid->pipeline_comm, grid_rank(grid, 0, d, t), p, world));
    if (ends > 0) TRY(ring_comm_split(&grid->pipeline_back_comm, 0, p, grid->pipeline_comm));
    if (ends > 0)
        TRY(ring_comm_split(
            &grid->embedding_comm, p == 0 || p == ends ? grid_rank(grid, 0, d, t) : -1, p, world));
    if (group == grid_nranks(grid)) {
        grid->group_comm = world;
        return STATUS_OK;
    }
    TRY(ring_comm_split(&grid->group_comm, grid_rank(grid, p, d / group * group, t), d, world));
    if (group == grid->data_count) return STATUS_OK;
    return ring_comm_split(&grid->replicas_comm, grid_rank(grid, p, d % group, t), d, world);
}

void grid_close(struct grid *grid)
{
    ring_comm_close(grid->replicas_comm);
    if (grid->group_comm != grid->world) ring_comm_close(grid->group_comm);
    ring_comm_close(grid->embedding_comm);
    ring_comm_close(grid->pipeline_back_comm);
    ring_comm_close(grid->pipeline_comm);
    ring_comm_close(grid->tensor_comm);
    free(grid->rank_at);
    *grid = (struct grid){0};
}
