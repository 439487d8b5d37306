/* paper_residual: ZeRO-R by the paper's formulas (arXiv 1910.02054): what is left to hold beside
 * model states, where tensor parallelism over M ranks stands inside data parallelism over D, and
 * what P_a and P_a+cpu make of it. Beside them stands what activation.h and forecast.h count for a
 * real run.
 *
 *   configuration   C1     C2     C3       C4       C5          C_B and M_D in all of them
 *   states          P_os   P_os   P_os+g   P_os+g   P_os+g      Ψ/M parameters a rank
 *   checkpoints     whole  P_a    whole    P_a      P_a+cpu     2·L·b·s·h bytes; over M; on the host
 *
 * Bytes are of 16-bit numbers. b is the batch of one tensor group: all its ranks share it.
 */
#ifndef SHARD_PAPER_RESIDUAL_H
#define SHARD_PAPER_RESIDUAL_H

#include <stddef.h>

#include "shard/activation.h"
#include "shard/paper.h"

struct paper_configuration {
    const char *name, *parts; /* "C4", "P_os+g, P_a" */
    int stage;
    enum activation_keep activations;
};
/* C1 … C5 by index 0 … 4; NULL beyond. */
const struct paper_configuration *paper_configuration(size_t index);

/* Where a model runs: its shape, Ψ, and how many ranks share it and its copies. */
struct paper_run {
    struct paper_shape shape;
    double elements;     /* Ψ */
    double tensor, data; /* M, D */
};
/* The example that the paper reckons with: 125 layers of 8192, batch 32 of 1024 tokens, M = 16; D =
 * 25 makes the 400 GPUs that it measures on. Ψ = 12·L·h². */
struct paper_run paper_run_100b(void);

/* A rank's weights, gradients and optimizer. */
double paper_states_bytes(
    const struct paper_configuration *configuration, const struct paper_run *run);
/* Its checkpoints on the device, and those in host memory. */
double paper_checkpoint_bytes(
    const struct paper_configuration *configuration, const struct paper_run *run);
double paper_host_bytes(
    const struct paper_configuration *configuration, const struct paper_run *run);
/* Its share of the one block that is computed: 12·b·s·h elements of activations, over M ranks. */
double paper_block_bytes(const struct paper_run *run);
/* All of these on the device; with C_B temporary buffers add a constant, without it fused float32
 * gradients would add paper_fused_bytes(). */
double paper_device_bytes(
    const struct paper_configuration *configuration, const struct paper_run *run);
double paper_fused_bytes(const struct paper_run *run);

/* The largest batch whose device bytes fit; 0 if not even 1. */
double paper_largest_batch(const struct paper_configuration *configuration,
    const struct paper_run *run, double memory_bytes);

/* Elements that a block's tensor parallelism sends a rank, in b·s·h·(M−1)/M: two all-reduces each
 * in forward, backward and recompute are 12; P_a's all-gather is one more. */
double paper_tensor_sent(const struct paper_configuration *configuration);

/* FLOPs of a block (forward, recompute, backward: 4 · 24·b·s·h²) for each byte of its checkpoint
 * that is moved to host memory and back: 2 · 2·b·s·h. Both fall as 1/M. */
double paper_offload_intensity(const struct paper_shape *shape);

/* Bytes of gradients that data parallelism makes a rank send for each token of its group's batch: 2
 * · 2Ψ/M · (D−1)/D, over b·s. */
double paper_data_bytes_per_token(const struct paper_run *run);

#endif
