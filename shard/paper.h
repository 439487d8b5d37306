/* paper: the formulas of the ZeRO paper (arXiv 1910.02054), which count each parameter once and no
 * padding, and the values that it prints. Beside them stands what forecast.h counts for a real run.
 *
 *   Ψ parameters, N ranks, 16-bit weights (2Ψ) and gradients (2Ψ), float32 master weights, momentum
 *   and variance: K = 12
 *
 *              bytes held                     elements sent a step
 *   stage 0    (2 + 2 + K)Ψ                   2Ψ(N−1)/N
 *   stage 1    (2 + 2)Ψ + KΨ/N                2Ψ(N−1)/N
 *   stage 2    2Ψ + (2 + K)Ψ/N                2Ψ(N−1)/N
 *   stage 3    (2 + 2 + K)Ψ/N                 3Ψ(N−1)/N
 */
#ifndef SHARD_PAPER_H
#define SHARD_PAPER_H

#include <stdbool.h>
#include <stddef.h>

#define PAPER_GB 1e9
#define PAPER_K  12.0

/* Bytes of a rank's weights, gradients and optimizer. stage: 0 … 3. */
double paper_held_bytes(int stage, double elements, double nranks);
/* In Ψ(N−1)/N elements: 2 or 3. */
double paper_sent_psi(int stage);

/* Table 1: bytes held, in GB. */
struct paper_row {
    double elements, nranks;
    double printed[3]; /* stages 1, 2, 3; 0: not at hand */
    int digits[3];     /* after the point */
};
/* The row, NULL beyond the last. */
const struct paper_row *paper_table_1(size_t index);

/* A transformer as the paper reckons with it. */
struct paper_shape {
    double layers, hidden, batch, seq;
};
/* Elements of activations: 12 · hidden · batch · seq · layers (its footnote). */
double paper_activations(const struct paper_shape *shape);
/* The same with checkpoints "by about the square root": of each of √L groups of blocks the
 * activations. */
double paper_activations_by_root(const struct paper_shape *shape);
/* With a checkpoint per block: L inputs of a block, and the activations of one block. */
double paper_activations_by_block(const struct paper_shape *shape);
/* The checkpoints alone: layers · batch · seq · hidden. */
double paper_checkpoints(const struct paper_shape *shape);

/* The share of the weights that stage 3 holds at its peak where the model is `units` equal units:
 * the own shard, and `gathered` units. */
double paper_peak_weights(double nranks, double units, double gathered);

/* A figure that the paper prints, or that a reading of it uses: ours must show the same digits. */
struct paper_figure {
    const char *name, *formula, *unit;
    double value;
    double printed;
    double slack; /* half of its last digit; more where it says "about" */
};
/* False beyond the last. */
bool paper_figure(struct paper_figure *figure, size_t index);

#endif
