/* Activation checkpointing: losses, logits and gradients are the bits of the run that keeps
 * everything, wherever the inputs of blocks are meanwhile (I3); a block is entered once for its
 * recomputation and backward; and what is held is one block's activations and L inputs.
 * ctest: timeout=60
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

enum { BATCH = 2, T = 5, C = 12, X_COUNT = BATCH * T * C, MOST_LAYERS = 4, VOCAB = 10 };
static const int32_t tokens[BATCH * T] = {1, 2, 3, 4, 5, 9, 8, 7, 6, 0};
static const int32_t targets[BATCH * T] = {2, 3, -1, 5, 9, 8, 7, 6, 0, 1};

/* Either architecture; heads of Llama share keys and values. */
static struct model_config config_of(enum architecture architecture, int layers)
{
    bool llama = architecture == ARCHITECTURE_LLAMA;
    return (struct model_config){.architecture = architecture,
        .max_t = 6,
        .vocab = VOCAB,
        .layers = layers,
        .heads = llama ? 6 : 3,
        .channels = C,
        .vocab_block = 4,
        .kv_heads = llama ? 2 : 0,
        .hidden = llama ? 20 : 0};
}

/* Carries the inputs of blocks away, and spoils a buffer as soon as it is the model's again. */
struct carrier {
    struct model_hooks lender; /* the plain host's */
    float kept[MOST_LAYERS][X_COUNT];
    struct span x[MOST_LAYERS];
    int block_enters[MOST_LAYERS][2]; /* forward, backward */
    int first_block_unit, layers;
};

static enum status enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct carrier *carrier = context;
    int layer = unit - carrier->first_block_unit;
    if (layer >= 0 && layer < carrier->layers) carrier->block_enters[layer][use != UNIT_FORWARD]++;
    return carrier->lender.enter(carrier->lender.context, view, unit, use);
}

static enum status act_save(void *context, int block, struct span x)
{
    struct carrier *carrier = context;
    CHECK(x.bytes <= sizeof carrier->kept[block]);
    memcpy(carrier->kept[block], x.ptr, x.bytes);
    carrier->x[block] = x;
    if (block == 0) return STATUS_OK;
    struct span before = carrier->x[block - 1];
    CHECK(before.ptr != x.ptr); /* the copy of the last input may still run */
    CHECK(memcmp(before.ptr, carrier->kept[block - 1], before.bytes) == 0);
    memset(before.ptr, 0xff, before.bytes);
    return STATUS_OK;
}

static enum status act_load(void *context, int block, struct span x)
{
    struct carrier *carrier = context;
    CHECK(x.ptr == carrier->x[block].ptr && x.bytes == carrier->x[block].bytes);
    memcpy(x.ptr, carrier->kept[block], x.bytes);
    return STATUS_OK;
}

struct outcome {
    double loss;
    float logits[VOCAB];
    struct memory_account account;
};

/* Two steps, the second shorter, whose gradients add up in the host. */
static struct outcome run_steps(
    struct model_host *host, const struct model_hooks *hooks, const struct model_run *run)
{
    struct outcome outcome = {.loss = NAN};
    struct device *device;
    struct model *model;
    double loss;
    size_t valid;
    if (!CHECK_OK(device_open(&device, "host"))) return outcome;
    if (!CHECK_OK(model_open(&model, &host->params, hooks, run, device))) return outcome;
    CHECK_OK(model_forward(&outcome.loss, &valid, tokens, targets, BATCH, T, model));
    CHECK_OK(model_logits(outcome.logits, 1, 3, model));
    CHECK_OK(model_backward(0.125f, model));
    CHECK_OK(model_forward(&loss, &valid, tokens, targets, BATCH, T - 2, model));
    CHECK_OK(model_backward(0.25f, model));
    outcome.loss += loss;
    outcome.account = memory_account_read(device);
    model_close(model);
    struct memory_account left = memory_account_read(device);
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) CHECK(left.now[tag] == 0);
    device_close(device);
    return outcome;
}

static void check_same(const struct model_host *found, const struct outcome *outcome,
    const struct model_host *kept, const struct outcome *kept_outcome)
{
    CHECK_MSG(
        outcome->loss == kept_outcome->loss, "%.9g, kept %.9g", outcome->loss, kept_outcome->loss);
    CHECK(memcmp(outcome->logits, kept_outcome->logits, sizeof outcome->logits) == 0);
    CHECK(memcmp(found->gradients, kept->gradients, kept->params.elements * sizeof(float)) == 0);
}

static void test_same_bits(enum architecture architecture, int layers)
{
    struct model_config config = config_of(architecture, layers);
    struct model_host kept = model_host_make(&config, 5), again = model_host_make(&config, 5),
                      carried = model_host_make(&config, 5);
    struct model_hooks kept_hooks = model_host_hooks(&kept), again_hooks = model_host_hooks(&again);
    struct carrier carrier = {.lender = model_host_hooks(&carried),
        .first_block_unit = kept.params.first_block_unit,
        .layers = layers};
    struct model_hooks carrier_hooks = {.context = &carrier,
        .enter = enter,
        .activations = &carrier,
        .act_save = act_save,
        .act_load = act_load};
    struct model_run run = model_host_run(BATCH, T);
    struct outcome kept_outcome = run_steps(&kept, &kept_hooks, &run);
    run.recompute = true;
    struct outcome again_outcome = run_steps(&again, &again_hooks, &run);
    struct outcome carried_outcome = run_steps(&carried, &carrier_hooks, &run);
    check_same(&again, &again_outcome, &kept, &kept_outcome);
    check_same(&carried, &carried_outcome, &kept, &kept_outcome);
    for (int layer = 0; layer < layers; layer++)
        CHECK(carrier.block_enters[layer][0] == 2 &&
              carrier.block_enters[layer][1] == 2); /* in two steps */
    CHECK(again_outcome.account.peak[MEMORY_CHECKPOINTS] ==
          (uint64_t)layers * X_COUNT * sizeof(float));
    CHECK(kept_outcome.account.peak[MEMORY_CHECKPOINTS] == 0);
    CHECK(carried_outcome.account.peak[MEMORY_CHECKPOINTS] == 0);
    model_host_free(&kept), model_host_free(&again), model_host_free(&carried);
}

int main(void)
{
    for (int layers = 1; layers <= MOST_LAYERS; layers++) {
        test_same_bits(ARCHITECTURE_GPT2, layers);
        test_same_bits(ARCHITECTURE_LLAMA, layers);
    }
    return test_result();
}
