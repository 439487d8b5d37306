/* plan_residual: the second half of `ringzero plan --paper`: ZeRO-R's configurations C1 … C5 on the
 * 100 B example, what P_a costs and allows, and what offloading asks of the bus.
 */
#include "bench/plan_print.h"
#include "shard/paper_residual.h"

#define DEVICE_BYTES 32e9   /* of a GPU that the paper measures on */
#define DEVICE_FLOPS 100e12 /* a second: for the bus, more than it reaches */

static void print_configuration(
    const struct paper_configuration *configuration, const struct paper_run *run, FILE *json)
{
    double states = paper_states_bytes(configuration, run) / PAPER_GB;
    double checkpoints = paper_checkpoint_bytes(configuration, run) / PAPER_GB;
    double host = paper_host_bytes(configuration, run) / PAPER_GB;
    double device = paper_device_bytes(configuration, run) / PAPER_GB;
    double batch = paper_largest_batch(configuration, run, DEVICE_BYTES);
    struct paper_run largest = *run;
    char per_token[32] = "-";
    largest.shape.batch = batch;
    if (batch > 0.0)
        snprintf(per_token, sizeof per_token, "%.0f", paper_data_bytes_per_token(&largest));
    printf("  %-3s %-16s %6.2f %12.2f %10.2f %8.2f %11.0f %14.0f %8s\n", configuration->name,
        configuration->parts, states, checkpoints, host, device, paper_tensor_sent(configuration),
        batch, per_token);
    if (json != NULL)
        fprintf(json,
            "{\"configuration\":\"%s\",\"parts\":\"%s\",\"states_gb\":%.6g,\"checkpoints_gb\":%.6g,"
            "\"host_gb\":%.6g,\"device_gb\":%.6g,\"tensor_sent_bsh\":%.0f,\"largest_batch\":%.0f}"
            "\n",
            configuration->name, configuration->parts, states, checkpoints, host, device,
            paper_tensor_sent(configuration), batch);
}

static void print_configurations(const struct paper_run *run, FILE *json)
{
    printf(
        "#\n# ZeRO-R on the 100 B example: Ψ = %.1fe9, L = %.0f, h = %.0f, b = %.0f, s = %.0f; "
        "M = %.0f, D = %.0f. GB of a rank,\n# and with %.0f GB a rank the largest batch, and the "
        "bytes of gradients a rank then sends per token\n"
        "#                     states  checkpoints    in host   device  sent b·s·h  largest batch"
        "  a token\n",
        run->elements * 1e-9, run->shape.layers, run->shape.hidden, run->shape.batch,
        run->shape.seq, run->tensor, run->data, DEVICE_BYTES / PAPER_GB);
    const struct paper_configuration *configuration;
    for (size_t i = 0; (configuration = paper_configuration(i)) != NULL; i++)
        print_configuration(configuration, run, json);
    printf(
        "# states  2Ψ/M weights, 2Ψ/M gradients and 12Ψ/M optimizer: what is sharded, 1/D of it\n"
        "# device  and the activations of one block, 2·12·b·s·h/M = %.2f GB; C_B adds a constant "
        "in place of 4Ψ/M = %.1f GB\n",
        paper_block_bytes(run) / PAPER_GB, paper_fused_bytes(run) / PAPER_GB);
}

/* Data parallelism's volume is constant, so what a token costs falls as the batch grows. */
static void print_per_token(const struct paper_run *run)
{
    printf(
        "#\n# bytes of gradients that a rank sends per token, 4Ψ/M · (D-1)/D / (b·s), as the batch "
        "grows\n ");
    struct paper_run with = *run;
    for (with.shape.batch = 1.0; with.shape.batch <= 256.0; with.shape.batch *= 4.0)
        printf("  b = %.0f: %.0f", with.shape.batch, paper_data_bytes_per_token(&with));
    putchar('\n');
}

static void print_intensity(const struct paper_run *run, FILE *json)
{
    double intensity = paper_offload_intensity(&run->shape);
    printf("#\n# offloading (P_a+cpu): 96·b·s·h² FLOPs of a block for 2 · 2·b·s·h bytes to the "
           "host and "
           "back\n  %.0f FLOPs a byte, 24·h: at %.0f TFLOP/s a rank the bus carries %.2f GB/s\n",
        intensity, DEVICE_FLOPS * 1e-12, DEVICE_FLOPS / intensity / PAPER_GB);
    if (json != NULL) fprintf(json, "{\"offload_flops_per_byte\":%.0f}\n", intensity);
}

void plan_print_residual(FILE *json)
{
    struct paper_run run = paper_run_100b();
    print_configurations(&run, json);
    print_per_token(&run);
    print_intensity(&run, json);
}
