/* forecast: see forecast.h. Builds the tables that a run would build, without the memory, and asks
 * the predictions of stage, model and ledger.
 */
#include "shard/forecast.h"

#include <stdlib.h>

#include "shard/trainer.h"

const char *forecast_part_name(enum forecast_part part)
{
    static const char *const names[FORECAST_PART_COUNT] = {
        [FORECAST_EMBEDDING] = "embedding rows",
        [FORECAST_POSITIONS] = "positions",
        [FORECAST_BLOCKS] = "blocks",
        [FORECAST_FINAL_NORM] = "final norm",
    };
    return names[part];
}

/* ---- communication: about ---- */

#define RING_EDGE_BYTES     ((uint64_t)8 * (256 << 10)) /* RINGZERO_SLOTS · RINGZERO_SLOT_BYTES */
#define EXCHANGE_EDGE_BYTES ((uint64_t)8 * (16 << 10))  /* the same of RINGZERO_EXCHANGE_BYTES */
#define EXCHANGE_RANKS      16

static uint64_t comm_bytes(int nranks)
{
    if (nranks == 1) return 0;
    uint64_t small = nranks <= EXCHANGE_RANKS ? (uint64_t)(nranks - 1) * EXCHANGE_EDGE_BYTES : 0;
    return RING_EDGE_BYTES + small;
}

uint64_t forecast_communication_bytes(const struct grid *grid)
{
    int nranks = grid_nranks(grid), group = grid->shard_group;
    uint64_t sum = comm_bytes(nranks) + comm_bytes(grid->data_count / group);
    if (group < nranks) sum += comm_bytes(group);
    if (grid->pipeline_count > 1) sum += comm_bytes(grid->pipeline_count) + comm_bytes(2);
    return sum + comm_bytes(grid->tensor_count);
}

/* ---- the tables of a run ---- */

struct tables {
    struct train_config config; /* resolved */
    struct grid grid;           /* of the stage's first rank, as are the following */
    struct params params;
    struct layout layout;
    struct stage_config stage;
    struct model_run run;
    struct activation_config carries;
};

/* Every sum below fits 64 bits, and the tables fit a machine. Refuses generously. */
static bool is_countable(const struct train_config *config)
{
    const struct model_config *model = &config->model;
    double channels = model->channels, layers = model->layers, t = config->seq,
           rows = (double)config->batch * t;
    double wide = 12.0 * channels + 4.0 * (double)model_hidden(model) + model->heads;
    double activations = rows * (wide * layers + model->vocab) + 64.0 * t * t;
    return model->layers <= FORECAST_MOST_LAYERS && model_unit_count(model) < 1e6 &&
           64.0 * model_elements(model) < 0x1p60 &&
           16.0 * activations < 0x1p60;
}

static enum status resolve(
    struct grid *grid, struct train_config *config, int nranks, int pipeline_stage)
{
    const struct model_config *model = &config->model;
    config->data = "any"; /* nothing is read */
    TRY(train_config_check(config));
    if (config->seq == 0) config->seq = model->max_t;
    if (!is_countable(config))
        return FAIL(STATUS_INVALID,
            "L%d C%d V%d T%d, batch %d of %d tokens: more than can be reckoned with, expected at "
            "most %d layers and 2^54 parameters",
            model->layers, model->channels, model->vocab, model->max_t, config->batch, config->seq,
            FORECAST_MOST_LAYERS);
    return train_config_grid(grid, config, nranks, nranks / config->pipeline * pipeline_stage);
}

/* Free with tables_free() whatever the outcome. */
static enum status tables_make(struct tables *tables, const struct forecast_config *given)
{
    *tables = (struct tables){.config = given->train};
    struct train_config *config = &tables->config;
    TRY(resolve(&tables->grid, config, given->nranks, given->pipeline_stage));
    struct params_part part = grid_part(&tables->grid);
    TRY(params_make_part(&tables->params, &config->model, &part));
    TRY(layout_make(&tables->layout, &tables->params, config->shard_group));
    tables->stage = train_stage_config(config, &tables->params, &tables->layout, &tables->grid);
    tables->run = train_model_run(config, &tables->grid);
    tables->carries =
        train_activation_config(config, &tables->params, &tables->run, &tables->grid, NULL);
    return STATUS_OK;
}

static void tables_free(struct tables *tables)
{
    layout_free(&tables->layout);
    params_free(&tables->params);
}

/* ---- what is held ---- */

static uint64_t predict_held(uint64_t held[MEMORY_TAG_COUNT], const struct tables *tables,
    const struct forecast_config *config)
{
    struct model_memory memory = model_memory(&tables->params, &tables->run, NULL);
    ledger_predict_held(held, &memory, &tables->carries, &tables->stage);
    held[MEMORY_COMMUNICATION] = config->communication_bytes;
    if (config->communication_bytes == 0)
        held[MEMORY_COMMUNICATION] = forecast_communication_bytes(&tables->grid);
    uint64_t sum = 0;
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++)
        if (tag != MEMORY_OFFLOADED) sum += held[tag]; /* which is of another memory */
    return sum;
}

static double formula_held(const struct stage_config *stage)
{
    struct stage_keeps keeps = stage_keeps(stage);
    double optimizer = stage->dtype == DTYPE_FLOAT32 ? 8.0 : 12.0; /* K */
    if (stage->offload_optimizer) optimizer = 0.0;
    double n = stage->layout->nranks, elements = (double)stage->params->elements;
    double all = (double)dtype_bytes(stage->dtype) / (keeps.weights == KEEP_SHARD ? n : 1.0);
    all += (double)dtype_bytes(stage->gradient_dtype) / (keeps.gradients == KEEP_SHARD ? n : 1.0);
    all += optimizer / (keeps.optimizer == KEEP_SHARD ? n : 1.0);
    return all * elements;
}

/* ---- what is sent ---- */

static enum forecast_part part_of(int unit, const struct params *params)
{
    if (unit < params->embedding_units) return FORECAST_EMBEDDING;
    if (unit == params->positions_unit) return FORECAST_POSITIONS;
    return unit == params->final_norm_unit ? FORECAST_FINAL_NORM : FORECAST_BLOCKS;
}

static uint64_t sum_of(const uint64_t sent[COLLECTIVE_COUNT])
{
    uint64_t sum = 0;
    for (int c = 0; c < COLLECTIVE_COUNT; c++) sum += sent[c];
    return sum;
}

/* One unit: what a reduction and a gather of it cost, times how often a step has them. */
static void add_unit(struct forecast_wire *wire, int unit, uint64_t reductions, uint64_t gathers,
    struct tables *tables)
{
    const struct stage_config *stage = &tables->stage;
    struct bucket weights = stage_bucket(stage), gradients = weights;
    bool all_reduce = stage_keeps(stage).optimizer == KEEP_ALL;
    uint64_t reduce[COLLECTIVE_COUNT] = {0}, gather[COLLECTIVE_COUNT] = {0};
    gradients.dtype = stage->gradient_dtype;
    if (all_reduce) bucket_predict_all_reduce(reduce, unit, &gradients);
    else bucket_predict_reduce_scatter(reduce, unit, &gradients);
    bucket_predict_gather(gather, unit, stage->broadcast_gather, &weights);
    wire->units++;
    wire->elements += tables->params.unit_elements[unit];
    wire->padded += layout_padded(&tables->layout, unit);
    wire->reductions += reductions;
    wire->gathers += gathers + (all_reduce ? reductions : 0);
    wire->sent_bytes += reductions * sum_of(reduce) + gathers * sum_of(gather);
}

static enum status predict_parts(struct forecast *forecast, struct tables *tables)
{
    const struct stage_config *stage = &tables->stage;
    struct stage_keeps keeps = stage_keeps(stage);
    uint64_t trains = (uint64_t)tables->config.accumulate;
    uint64_t passes = keeps.gradients == KEEP_SHARD ? trains : 1; /* that reduce */
    int *times = calloc((size_t)tables->layout.unit_count, sizeof *times);
    if (times == NULL)
        return FAIL(
            STATUS_SYSTEM, "no memory for a forecast of %d units", tables->layout.unit_count);
    uint64_t rounds = trains / (uint64_t)stage_place(stage).micro_count;
    gather_predict_times(times, true, stage);
    for (int u = 0; u < tables->layout.unit_count; u++) {
        uint64_t gathers = rounds * (uint64_t)times[u];
        if (tables->params.unit_elements[u] == 0) continue;
        if (keeps.weights == KEEP_ALL) gathers = keeps.optimizer == KEEP_SHARD;
        add_unit(&forecast->wire[part_of(u, &tables->params)], u,
            passes * (uint64_t)stage_gradient_parts(u, stage), gathers, tables);
    }
    free(times);
    return STATUS_OK;
}

static enum status predict_sent(struct forecast *forecast, struct tables *tables)
{
    const struct stage_config *stage = &tables->stage;
    uint64_t trains = (uint64_t)tables->config.accumulate;
    bool each = stage_keeps(stage).gradients == KEEP_SHARD;
    const struct pipeline_config pipeline =
        train_pipeline_config(&tables->run, &tables->grid, NULL);
    uint64_t rows = trains * model_own_rows((size_t)tables->run.batch * (size_t)tables->run.t,
                                 &tables->params, &tables->run)
                                 .count;
    uint64_t onward[COLLECTIVE_COUNT] = {0}, ends[COLLECTIVE_COUNT] = {0};
    pipeline_predict_sent(onward, rows, rows, tables->params.config.channels, &pipeline);
    ends_predict_sent(ends, stage);
    forecast->pipeline_bytes = sum_of(onward);
    forecast->ends_bytes = sum_of(ends);
    struct ledger_events step = {.steps = 1,
        .pipeline_bytes = forecast->pipeline_bytes,
        .trains = trains,
        .reductions = each ? trains : 1,
        .updates = 1};
    tensor_predict_sent(step.tensor_sent, trains, PASS_TRAIN, tables->run.batch, tables->run.t,
        &tables->params, &tables->run, &tables->grid, NULL);
    ledger_predict(forecast->sent_bytes, &step, &tables->carries, stage);
    forecast->tensor_sum_bytes = ledger_tensor_sums(step.tensor_sent);
    forecast->tensor_gather_bytes = step.tensor_sent[COLLECTIVE_ALL_GATHER];
    forecast->tensor_paper_bytes =
        (double)trains * tensor_paper_bytes(&tables->params, &tables->run, &tables->grid, NULL);
    forecast->volume = ledger_volume(&step, stage);
    forecast->sent_sum = sum_of(forecast->sent_bytes);
    TRY(predict_parts(forecast, tables));
    uint64_t carried[COLLECTIVE_COUNT] = {0};
    activation_predict_sent(carried, tables->carries.elements, &tables->carries);
    forecast->checkpoint_bytes = trains * sum_of(carried);
    forecast->checkpoint_paper_bytes = (double)trains * activation_paper_bytes(&tables->carries);
    forecast->scalar_bytes = forecast->sent_sum - forecast->tensor_sum_bytes -
                             forecast->tensor_gather_bytes - forecast->checkpoint_bytes -
                             forecast->pipeline_bytes - forecast->ends_bytes;
    for (int p = 0; p < FORECAST_PART_COUNT; p++)
        forecast->scalar_bytes -= forecast->wire[p].sent_bytes;
    return STATUS_OK;
}

enum status forecast_make(struct forecast *forecast, const struct forecast_config *config)
{
    struct tables tables;
    *forecast = (struct forecast){0};
    enum status status;
    TRY_GOTO(tables_make(&tables, config));
    forecast->elements = tables.params.whole_elements;
    forecast->held_elements = tables.params.elements;
    forecast->padded = tables.layout.elements;
    forecast->bubble = pipeline_bubble(&tables.stage.place);
    forecast->formula_held = formula_held(&tables.stage);
    forecast->held_sum = predict_held(forecast->held_bytes, &tables, config);
    TRY_GOTO(predict_sent(forecast, &tables));
fail:
    tables_free(&tables);
    return status;
}

/* ---- what fits ---- */

/* What the fullest ranks hold, and of which stage they are. What cannot be counted fits nowhere. */
static enum status most_held(uint64_t *most, int *stage, const struct forecast_config *given)
{
    struct forecast_config config = *given;
    if (config.train.seq == 0) config.train.seq = config.train.model.max_t;
    *most = 0;
    *stage = 0;
    for (int s = 0; s < config.train.pipeline; s++) {
        struct tables tables;
        uint64_t held[MEMORY_TAG_COUNT], sum = UINT64_MAX;
        enum status status = STATUS_OK;
        config.pipeline_stage = s;
        if (is_countable(&config.train)) {
            status = tables_make(&tables, &config);
            if (status == STATUS_OK) sum = predict_held(held, &tables, &config);
            tables_free(&tables);
        }
        TRY(status);
        if (sum > *most) *stage = s;
        if (sum > *most) *most = sum;
    }
    return STATUS_OK;
}

enum status forecast_fullest_stage(int *stage, const struct forecast_config *config)
{
    uint64_t most;
    *stage = 0;
    if (config->train.pipeline <= 1) return STATUS_OK;
    return most_held(&most, stage, config);
}

static enum status held_of_layers(uint64_t *sum, int layers, const struct forecast_config *config)
{
    struct forecast_config deeper = *config;
    int stage;
    deeper.train.model.layers = layers;
    return most_held(sum, &stage, &deeper);
}

/* Depth adds the same bytes with every block, but for what is rounded up once: a straight line
 * tells about where the answer is, and the sums themselves which side of it. */
enum status forecast_largest_layers(
    int *layers, uint64_t memory, const struct forecast_config *config)
{
    uint64_t one, some, sum;
    int least = config->train.pipeline;
    *layers = 0;
    TRY(held_of_layers(&one, least, config));
    if (one > memory) return STATUS_OK;
    TRY(held_of_layers(&some, least * 65, config));
    double guess = least + (double)(memory - one) / ((double)(some - one) / (64.0 * least));
    *layers = guess < FORECAST_MOST_LAYERS ? (int)guess : FORECAST_MOST_LAYERS;
    for (; *layers > least; --*layers) {
        TRY(held_of_layers(&sum, *layers, config));
        if (sum <= memory) break;
    }
    for (; *layers < FORECAST_MOST_LAYERS; ++*layers) {
        TRY(held_of_layers(&sum, *layers + 1, config));
        if (sum > memory) break;
    }
    return STATUS_OK;
}

/* What a batch is a multiple of: tensor ranks that each hold rows of it hold as many. */
static int batch_multiple(const struct train_config *train)
{
    int seq = train->seq > 0 ? train->seq : train->model.max_t, multiple = 1;
    if (!train->sequence_parallel || train->tensor < 1 || seq < 1) return 1;
    while ((int64_t)multiple * seq % train->tensor != 0) multiple++;
    return multiple;
}

enum status forecast_largest_batch(int *batch, uint64_t memory, const struct forecast_config *given)
{
    struct forecast_config config = *given;
    int multiple = batch_multiple(&given->train);
    int fits = 0, beyond = FORECAST_MOST_BATCH / multiple + 1; /* fits < answer + 1 ≤ beyond */
    *batch = 0;
    while (beyond - fits > 1) {
        int half = fits + (beyond - fits) / 2, stage;
        uint64_t most;
        config.train.batch = half * multiple;
        TRY(most_held(&most, &stage, &config));
        if (most <= memory) fits = half;
        else beyond = half;
    }
    *batch = fits * multiple;
    return STATUS_OK;
}
