/* grid: see grid.h. */
#include "shard/grid.h"

#include <assert.h>

struct grid grid_at(int rank, int nranks, int tensor_count, int pipeline_count, int shard_group)
{
    assert(nranks % (tensor_count * pipeline_count) == 0 && rank >= 0 && rank < nranks);
    int data_count = nranks / (tensor_count * pipeline_count);
    struct grid grid = {
        .tensor = rank % tensor_count,
        .tensor_count = tensor_count,
        .data = rank / tensor_count % data_count,
        .data_count = data_count,
        .pipeline = rank / tensor_count / data_count,
        .pipeline_count = pipeline_count,
        .shard_group = shard_group > 0 ? shard_group : data_count,
    };
    assert(data_count % grid.shard_group == 0);
    return grid;
}

int grid_rank(const struct grid *grid, int pipeline, int data, int tensor)
{
    return (pipeline * grid->data_count + data) * grid->tensor_count + tensor;
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

enum status grid_open(struct grid *grid, struct ring_comm *world)
{
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
    *grid = (struct grid){0};
}
