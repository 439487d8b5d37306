/* paper: see paper.h. */
#include "shard/paper.h"

#include <math.h>

double paper_held_bytes(int stage, double elements, double nranks)
{
    double weights = 2.0, gradients = 2.0, optimizer = PAPER_K;
    if (stage >= 1) optimizer /= nranks;
    if (stage >= 2) gradients /= nranks;
    if (stage >= 3) weights /= nranks;
    return (weights + gradients + optimizer) * elements;
}

double paper_sent_psi(int stage)
{
    return stage == 3 ? 3.0 : 2.0;
}

const struct paper_row *paper_table_1(size_t index)
{
    static const struct paper_row rows[] = {
        {7.5e9, 1, {0}, {0}},
        {7.5e9, 4, {52.5, 41.3, 30}, {1, 1, 0}},
        {7.5e9, 16, {35.6, 21.6, 7.5}, {1, 1, 1}},
        {7.5e9, 64, {31.4, 16.6, 1.88}, {1, 1, 2}},
        {7.5e9, 256, {0}, {0}},
        {7.5e9, 1024, {30.1, 15.1, 0.12}, {1, 1, 2}},
        {128e9, 1, {0}, {0}},
        {128e9, 4, {0}, {0}},
        {128e9, 16, {0}, {0}},
        {128e9, 64, {0}, {0}},
        {128e9, 256, {0}, {0}},
        {128e9, 1024, {0}, {0}},
        {1e12, 1, {0}, {0}},
        {1e12, 4, {0}, {0}},
        {1e12, 16, {0}, {0}},
        {1e12, 64, {0}, {0}},
        {1e12, 256, {0}, {0}},
        {1e12, 1024, {0}, {0}},
    };
    return index < sizeof rows / sizeof *rows ? &rows[index] : NULL;
}

/* ---- activations ---- */

static double block_inputs(double count, const struct paper_shape *shape)
{
    return count * shape->batch * shape->seq * shape->hidden;
}

double paper_activations(const struct paper_shape *shape)
{
    return 12.0 * block_inputs(shape->layers, shape);
}

double paper_activations_by_root(const struct paper_shape *shape)
{
    return paper_activations(shape) / sqrt(shape->layers);
}

double paper_activations_by_block(const struct paper_shape *shape)
{
    return paper_checkpoints(shape) + 12.0 * block_inputs(1.0, shape);
}

double paper_checkpoints(const struct paper_shape *shape)
{
    return block_inputs(shape->layers, shape);
}

double paper_peak_weights(double nranks, double units, double gathered)
{
    return 1.0 / nranks + gathered / units;
}

/* ---- figures ---- */

bool paper_figure(struct paper_figure *figure, size_t index)
{
    const double psi = 1.5e9; /* GPT-2 1.5B */
    const struct paper_shape gpt2 = {48, 1600, 32, 1024}, large = {125, 8192, 32, 1024};
    const struct paper_figure figures[] = {
        {"weights of GPT-2 1.5B", "2Ψ", "GB", 2.0 * psi / PAPER_GB, 3, 0.5},
        {"its model states", "(2 + 2 + K)Ψ", "GB", paper_held_bytes(0, psi, 1) / PAPER_GB, 24, 0.5},
        {"its activations, batch 32 of 1024", "2 · 12·h·b·s·L", "GB",
            2.0 * paper_activations(&gpt2) / PAPER_GB, 60, 0.5},
        {"the same, checkpointed, about", "2 · 12·h·b·s·√L", "GB",
            2.0 * paper_activations_by_root(&gpt2) / PAPER_GB, 8, 1.0},
        {"its gradients fused in a float32 buffer", "4Ψ", "GB", 4.0 * psi / PAPER_GB, 6, 0.5},
        {"weights at stage 3's peak, 64 ranks, 64 equal units", "1/N + 1/units", "/64",
            64.0 * paper_peak_weights(64, 64, 1), 2, 1e-9},
        {"checkpoints of the 100 B example, elements", "L·b·s·h", "e9",
            paper_checkpoints(&large) / 1e9, 33.55, 0.005},
        {"the same, 16 bits", "2 · L·b·s·h", "GB", 2.0 * paper_checkpoints(&large) / PAPER_GB, 67.1,
            0.05},
        {"the same, partitioned over 16 (P_a)", "2 · L·b·s·h / 16", "GB",
            2.0 * paper_checkpoints(&large) / 16.0 / PAPER_GB, 4.19, 0.005},
        {"what it prints as 33 GB: elements", "L·b·s·h", "e9", paper_checkpoints(&large) / 1e9, 33,
            1.0},
        {"and as 2 GB, with P_a", "L·b·s·h / 16", "e9", paper_checkpoints(&large) / 16.0 / 1e9, 2,
            0.5},
        {"P_a's all-gather beside tensor parallelism's 12·b·s·h", "1/12", "%", 100.0 / 12.0, 8.3,
            0.05},
    };
    if (index >= sizeof figures / sizeof *figures) return false;
    *figure = figures[index];
    return true;
}
