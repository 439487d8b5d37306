/* mpi_bench: the sweep on an MPI. Built by peers.sh, once with each MPI's compiler. */
#include <mpi.h>

#include "bench/compare/sweep.h"

static int operate(const struct sweep_call *call, void *context)
{
    (void)context;
    int count = (int)call->count, code = MPI_ERR_OP;
    const void *send = call->in_place ? MPI_IN_PLACE : call->send;
    switch (call->collective) {
    case SWEEP_ALL_REDUCE: code = MPI_Allreduce(send, call->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case SWEEP_REDUCE_SCATTER:
        code = MPI_Reduce_scatter_block(send, call->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case SWEEP_ALL_GATHER:
        code = MPI_Allgather(send, count, MPI_FLOAT, call->recv, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case SWEEP_BROADCAST: code = MPI_Bcast(call->recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case SWEEP_COLLECTIVES: break;
    }
    return code != MPI_SUCCESS;
}

static float *allocate(size_t bytes, void *context)
{
    (void)context;
    float *buffer = NULL;
    return MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, &buffer) == MPI_SUCCESS ? buffer : NULL;
}

static void release(float *buffer, size_t bytes, void *context)
{
    (void)bytes, (void)context;
    if (buffer != NULL) MPI_Free_mem(buffer);
}

static int maximum(double *value, void *context)
{
    (void)context;
    return MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD) != MPI_SUCCESS;
}

int main(int argc, char **argv)
{
    struct sweep_options options;
    struct sweep_peer peer = {.operate = operate, .maximum = maximum, .allocate = allocate, .release = release,
        .in_place_part_first = true};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peer.nranks);
    int code = sweep_parse(&options, argc, argv);
    if (code == 0) code = sweep_run(&options, &peer);
    if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
    MPI_Finalize();
    return 0;
}
