/* plan_print: see plan_print.h. One column per stage, one line per number.
 */
#include "bench/plan_print.h"

#include <inttypes.h>

#include "verbs/dtype.h"
#include "verbs/plural.h"

struct table {
    const struct plan_column *columns;
    int count;
};

/* The collectives that training uses. */
static const enum collective told[] = {
    COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_GATHER, COLLECTIVE_BROADCAST,
    COLLECTIVE_SEND};
#define TOLD_COUNT (sizeof told / sizeof *told)

/* ---- lines ---- */

int plan_continuation_bytes(const char *text)
{
    int count = 0;
    for (const char *c = text; *c != '\0'; c++) count += ((unsigned char)*c & 0xc0) == 0x80;
    return count;
}

static void print_label(const char *label)
{
    printf("  %-*s", 36 + plan_continuation_bytes(label), label);
}

static void print_bytes(const char *label, const struct table *table,
    uint64_t (*of)(const struct forecast *, int), int which)
{
    print_label(label);
    for (int i = 0; i < table->count; i++)
        printf("  %16" PRIu64, of(&table->columns[i].forecast, which));
    putchar('\n');
}

static void print_numbers(const char *label, const char *format, const struct table *table,
    double (*of)(const struct forecast *))
{
    print_label(label);
    for (int i = 0; i < table->count; i++) {
        char text[64];
        snprintf(text, sizeof text, format, of(&table->columns[i].forecast));
        printf("  %*s", 16 + plan_continuation_bytes(text), text);
    }
    putchar('\n');
}

static void print_heading(const char *heading, const struct table *table)
{
    printf("#\n# %-36s", heading);
    for (int i = 0; i < table->count; i++) printf("  %14s %d", "stage", table->columns[i].stage);
    putchar('\n');
}

/* ---- what is held ---- */

static uint64_t held(const struct forecast *forecast, int tag)
{
    return forecast->held_bytes[tag];
}
static uint64_t held_sum(const struct forecast *forecast, int which)
{
    return (void)which, forecast->held_sum;
}
static double held_gb(const struct forecast *forecast)
{
    return (double)forecast->held_sum * 1e-9;
}
static double formula_gb(const struct forecast *forecast)
{
    return forecast->formula_held * 1e-9;
}

static double states_gb(const struct forecast *forecast)
{
    return (double)(forecast->held_bytes[MEMORY_WEIGHTS] + forecast->held_bytes[MEMORY_GRADIENTS] +
                    forecast->held_bytes[MEMORY_OPTIMIZER]) *
           1e-9;
}

static void print_held(const struct table *table)
{
    print_heading("bytes that a rank holds", table);
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) {
        char label[48];
        snprintf(label, sizeof label, "%s%s", memory_tag_name((enum memory_tag)tag),
            tag == MEMORY_COMMUNICATION ? " (about)"
            : tag == MEMORY_OFFLOADED   ? " (of the host, not summed)"
                                        : "");
        print_bytes(label, table, held, tag);
    }
    print_bytes("sum", table, held_sum, 0);
    print_numbers("", "%.3f GB", table, held_gb);
    print_numbers("of it weights, gradients, optimizer", "%.3f GB", table, states_gb);
    print_numbers("the same by the paper's formula", "%.3f GB", table, formula_gb);
}

/* ---- what is sent ---- */

static uint64_t sent(const struct forecast *forecast, int collective)
{
    return forecast->sent_bytes[collective];
}
static uint64_t sent_sum(const struct forecast *forecast, int which)
{
    return (void)which, forecast->sent_sum;
}
static uint64_t scalars(const struct forecast *forecast, int which)
{
    return (void)which, forecast->scalar_bytes;
}
static uint64_t onward(const struct forecast *forecast, int which)
{
    return (void)which, forecast->pipeline_bytes;
}
static uint64_t ends(const struct forecast *forecast, int which)
{
    return (void)which, forecast->ends_bytes;
}
static uint64_t tensor_sums(const struct forecast *forecast, int which)
{
    return (void)which, forecast->tensor_sum_bytes;
}
static uint64_t tensor_gathers(const struct forecast *forecast, int which)
{
    return (void)which, forecast->tensor_gather_bytes;
}
static uint64_t checkpoints(const struct forecast *forecast, int which)
{
    return (void)which, forecast->checkpoint_bytes;
}
static double checkpoints_paper(const struct forecast *forecast)
{
    return forecast->checkpoint_paper_bytes;
}
static double tensor_paper(const struct forecast *forecast)
{
    return forecast->tensor_paper_bytes;
}
static double paper_bytes(const struct forecast *forecast)
{
    return forecast->volume.paper_bytes;
}
static double paper_psi(const struct forecast *forecast)
{
    return forecast->volume.paper_psi;
}
static double done_bytes(const struct forecast *forecast)
{
    return forecast->volume.done_bytes;
}
static double done_psi(const struct forecast *forecast)
{
    return forecast->volume.done_psi;
}

static double times_the_formula(const struct forecast *forecast)
{
    double formula = forecast->volume.done_bytes;
    return formula > 0.0 ? (double)forecast->sent_sum / formula : 1.0;
}

double plan_sent_per_token(const struct forecast *forecast, const struct forecast_config *config)
{
    const struct train_config *train = &config->train;
    double seq = train->seq > 0 ? train->seq : train->model.max_t;
    return (double)forecast->sent_sum / (train->accumulate * (double)train->batch * seq);
}

static double sent_per_token(const struct plan_column *column)
{
    return plan_sent_per_token(&column->forecast, &column->config);
}
static double largest_sent_per_token(const struct plan_column *column)
{
    return column->largest_sent_per_token;
}

static void print_per_token(
    const char *label, const struct table *table, double (*of)(const struct plan_column *))
{
    print_label(label);
    for (int i = 0; i < table->count; i++) printf("  %16.1f", of(&table->columns[i]));
    putchar('\n');
}

static void print_sent(const struct table *table)
{
    bool staged = table->columns[0].config.train.pipeline > 1;
    print_heading(staged ? "bytes its first rank sends in a step"
                         : "bytes that rank 0 sends in a step",
        table);
    for (size_t c = 0; c < TOLD_COUNT; c++)
        print_bytes(collective_name(told[c]), table, sent, (int)told[c]);
    if (table->columns[0].config.train.tensor > 1) {
        print_bytes("of it sums over M ranks", table, tensor_sums, 0);
        if (table->columns[0].config.train.sequence_parallel)
            print_bytes("of it rows put together", table, tensor_gathers, 0);
        print_numbers("of blocks, by the paper's formula", "%.0f", table, tensor_paper);
        print_bytes("of it checkpoints put together (P_a)", table, checkpoints, 0);
        print_numbers("by the formula b·s·h(M-1)/M a block", "%.0f", table, checkpoints_paper);
    }
    if (staged) {
        print_bytes("of it to other stages", table, onward, 0);
        print_bytes("of it embedding, between both ends", table, ends, 0);
    }
    print_bytes("sum", table, sent_sum, 0);
    print_numbers("the paper's formula", "%.0fΨ(N-1)/N", table, paper_psi);
    print_numbers("", "%.0f", table, paper_bytes);
    if (table->columns[0].config.train.accumulate > 1) {
        print_numbers("the same of A micro-batches", "%.0fΨ(N-1)/N", table, done_psi);
        print_numbers("", "%.0f", table, done_bytes);
    }
    print_numbers("sum / formula", "%.4f", table, times_the_formula);
    print_per_token("sum / token of the rank", table, sent_per_token);
}

static void print_part(enum forecast_part part, const struct table *table)
{
    const struct forecast_wire *wire = &table->columns[0].forecast.wire[part];
    char label[96];
    snprintf(label, sizeof label, "%" PRIu64 " %s of %" PRIu64, wire->units,
        forecast_part_name(part), wire->elements / wire->units);
    print_label(label);
    for (int i = 0; i < table->count; i++) {
        char text[64];
        wire = &table->columns[i].forecast.wire[part];
        snprintf(text, sizeof text, "%.3g + %.3g", (double)wire->reductions / (double)wire->units,
            (double)wire->gathers / (double)wire->units);
        printf("  %16s", text);
    }
    putchar('\n');
}

static void print_why(const struct table *table)
{
    const struct forecast *forecast = &table->columns[0].forecast;
    print_heading("why: a unit is reduced + gathered", table);
    for (int part = 0; part < FORECAST_PART_COUNT; part++)
        if (forecast->wire[part].elements > 0) print_part((enum forecast_part)part, table);
    print_bytes("bytes for tokens, loss and norm", table, scalars, 0);
    printf(
        "# The paper counts every parameter 1 + 1 times, in stage 3 1 + 2; an all-reduce is both.\n"
        "# The tied embedding is used at both ends of the model: its gradient comes in two parts,\n"
        "# and stage 3 gathers it for the input, the head and the head's backward, less the rows\n"
        "# that are still there. Positions are not needed backward. Each of A micro-batches\n"
        "# reduces in stages 2 and 3, and gathers in stage 3. Padding travels too: %" PRIu64 "\n"
        "# elements beside %" PRIu64 ".\n",
        forecast->padded - forecast->held_elements, forecast->held_elements);
}

/* ---- what fits ---- */

static void print_most(int value, int most)
{
    char text[32];
    snprintf(text, sizeof text, "%d%s", value, value >= most ? " or more" : "");
    printf("  %16s", value == 0 ? "none" : text);
}

static void print_at_most(
    const char *label, const struct table *table, int (*of)(const struct plan_column *), int most)
{
    print_label(label);
    for (int i = 0; i < table->count; i++) print_most(of(&table->columns[i]), most);
    putchar('\n');
}

static int largest_layers(const struct plan_column *column)
{
    return column->largest_layers;
}
static int largest_batch(const struct plan_column *column)
{
    return column->largest_batch;
}

static void print_largest_batches(const struct table *table)
{
    for (int keep = ACTIVATION_ALL; keep <= ACTIVATION_OFFLOADED; keep++) {
        char label[64];
        snprintf(label, sizeof label, "largest batch, %s",
            activation_keep_name((enum activation_keep)keep));
        print_label(label);
        for (int i = 0; i < table->count; i++)
            print_most(table->columns[i].largest_batches[keep], FORECAST_MOST_BATCH);
        putchar('\n');
    }
}

static void print_fits(const struct table *table, uint64_t memory)
{
    char heading[64];
    snprintf(heading, sizeof heading, "in %" PRIu64 " bytes a rank", memory);
    print_heading(heading, table);
    print_label("it fits");
    for (int i = 0; i < table->count; i++) printf("  %16s", table->columns[i].fits ? "yes" : "no");
    putchar('\n');
    print_at_most("most layers, else the same", table, largest_layers, FORECAST_MOST_LAYERS);
    print_at_most("largest batch, else the same", table, largest_batch, FORECAST_MOST_BATCH);
    print_per_token("bytes sent / token with that batch", table, largest_sent_per_token);
    print_largest_batches(table);
}

/* ---- all of it ---- */

static const char *activation_words(enum activation_keep keep)
{
    static const char *const words[] = {[ACTIVATION_ALL] = "kept",
        [ACTIVATION_INPUT] = "checkpointed",
        [ACTIVATION_PART] = "checkpointed in parts (P_a)",
        [ACTIVATION_OFFLOADED] = "checkpointed in parts in host memory (P_a+cpu)"};
    return words[keep];
}

static void print_run(const struct plan_column *column, const struct plan_options *options)
{
    const struct train_config *train = &column->config.train;
    const struct model_config *model = &train->model;
    int nranks = column->config.nranks;
    char shape[MODEL_SHAPE_BYTES];
    model_shape(shape, model);
    printf("# model  %s: Ψ = %.2f M parameters, %s\n", options->run.model,
        (double)column->forecast.elements * 1e-6, shape);
    int data = nranks / train->tensor / train->pipeline;
    if (train->tensor > 1)
        printf(
            "# tensor M = %d ranks share every tensor: each has %.2f M parameters; rank = data x "
            "%d + tensor\n",
            train->tensor, (double)column->forecast.held_elements * 1e-6, train->tensor);
    if (train->tensor > 1 && train->sequence_parallel)
        printf("# rows   each of them holds 1/M of the rows of norms, residuals, inputs of blocks\n");
    if (train->pipeline > 1)
        printf("# pipe   P = %d stages share the blocks; told of is stage %d, which holds the most; "
               "bubble (P-1)/(A+P-1) = %.1f %%\n",
            train->pipeline, column->config.pipeline_stage, 100.0 * column->forecast.bubble);
    printf("# run    N = %d %srank%s, sharded over %d; weights %s, gradients %s; activations %s\n",
        data, data < nranks ? "data " : "", PLURAL(data),
        train->shard_group > 0 ? train->shard_group : data, dtype_name(train->dtype),
        dtype_name(train->gradient_dtype), activation_words(train->activations));
    printf("# step   A = %d micro-batch%s of %d x %d tokens a rank\n", train->accumulate,
        train->accumulate == 1 ? "" : "es", train->batch,
        train->seq > 0 ? train->seq : model->max_t);
}

void plan_print_table(
    const struct plan_column *columns, int count, const struct plan_options *options)
{
    const struct table table = {columns, count};
    print_run(&columns[0], options);
    print_held(&table);
    print_sent(&table);
    print_why(&table);
    if (options->memory_bytes > 0) print_fits(&table, options->memory_bytes);
}

/* ---- JSON ---- */

static void json_run(
    FILE *json, const struct plan_column *column, const struct plan_options *options)
{
    const struct train_config *train = &column->config.train;
    const struct model_config *model = &train->model;
    int nranks = column->config.nranks;
    fprintf(json,
        "{\"model\":\"%s\",\"architecture\":\"%s\",\"layers\":%d,\"heads\":%d,\"kv_heads\":%d,"
        "\"channels\":%d,\"hidden\":%lld,\"vocab\":%d,\"positions\":%d,\"ranks\":%d,\"tensor\":%d,"
        "\"sequence_parallel\":%s,\"pipeline\":%d,\"pipeline_stage\":%d,\"stage\":%d,"
        "\"shard_group\":%d,\"dtype\":\"%s\",\"gradient_dtype\":\"%s\","
        "\"batch\":%d,\"seq\":%d,\"accumulate\":%d,\"checkpoint_activations\":\"%s\","
        "\"offload\":\"%s\"",
        options->run.model, architecture_name(model->architecture), model->layers, model->heads,
        model_kv_heads(model), model->channels, (long long)model_hidden(model), model->vocab,
        model->max_t, nranks, train->tensor, train->sequence_parallel ? "true" : "false",
        train->pipeline, column->config.pipeline_stage, column->stage,
        train->shard_group > 0 ? train->shard_group : nranks / train->tensor / train->pipeline,
        dtype_name(train->dtype), dtype_name(train->gradient_dtype), train->batch,
        train->seq > 0 ? train->seq : model->max_t, train->accumulate,
        activation_keep_name(train->activations), train->offload_optimizer ? "optimizer" : "none");
}

static void json_held(FILE *json, const struct forecast *forecast)
{
    fprintf(json, ",\"parameters\":%" PRIu64 ",\"padded\":%" PRIu64, forecast->elements,
        forecast->padded);
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++)
        fprintf(json, ",\"%s_held\":%" PRIu64, memory_tag_name((enum memory_tag)tag),
            forecast->held_bytes[tag]);
    fprintf(json, ",\"held_sum\":%" PRIu64 ",\"formula_held\":%.0f", forecast->held_sum,
        forecast->formula_held);
}

static void json_sent(FILE *json, const struct forecast *forecast)
{
    static const char *const names[FORECAST_PART_COUNT] = {
        "embedding", "positions", "blocks", "final_norm"};
    for (size_t c = 0; c < TOLD_COUNT; c++)
        fprintf(
            json, ",\"%s_sent\":%" PRIu64, collective_name(told[c]), forecast->sent_bytes[told[c]]);
    fprintf(json,
        ",\"tensor_sum_sent\":%" PRIu64 ",\"tensor_gather_sent\":%" PRIu64
        ",\"tensor_paper_bytes\":%.0f,\"checkpoints_sent\":%" PRIu64
        ",\"pipeline_sent\":%" PRIu64 ",\"ends_sent\":%" PRIu64 ",\"bubble\":%.6f"
        ",\"sent_sum\":%" PRIu64 ",\"scalars_sent\":%" PRIu64
        ",\"paper_psi\":%.0f,\"paper_bytes\":%.0f,\"formula_psi\":%.0f,\"formula_bytes\":%.0f,"
        "\"wire\":{",
        forecast->tensor_sum_bytes, forecast->tensor_gather_bytes, forecast->tensor_paper_bytes,
        forecast->checkpoint_bytes, forecast->pipeline_bytes, forecast->ends_bytes, forecast->bubble, forecast->sent_sum,
        forecast->scalar_bytes, forecast->volume.paper_psi,
        forecast->volume.paper_bytes, forecast->volume.done_psi, forecast->volume.done_bytes);
    for (int part = 0; part < FORECAST_PART_COUNT; part++) {
        const struct forecast_wire *wire = &forecast->wire[part];
        fprintf(json,
            "%s\"%s\":{\"units\":%" PRIu64 ",\"elements\":%" PRIu64 ",\"padded\":%" PRIu64
            ",\"reductions\":%" PRIu64 ",\"gathers\":%" PRIu64 ",\"sent\":%" PRIu64 "}",
            part == 0 ? "" : ",", names[part], wire->units, wire->elements, wire->padded,
            wire->reductions, wire->gathers, wire->sent_bytes);
    }
    fputc('}', json);
}

void plan_print_json(
    FILE *json, const struct plan_column *column, const struct plan_options *options)
{
    json_run(json, column, options);
    json_held(json, &column->forecast);
    json_sent(json, &column->forecast);
    fprintf(json, ",\"sent_per_token\":%.6g", sent_per_token(column));
    if (options->memory_bytes == 0) {
        fputs(",\"memory\":null,\"fits\":null,\"largest_layers\":null,\"largest_batch\":null,"
              "\"largest_sent_per_token\":null,\"largest_batches\":null}\n",
            json);
        return;
    }
    fprintf(json,
        ",\"memory\":%zu,\"fits\":%s,\"largest_layers\":%d,\"largest_batch\":%d,"
        "\"largest_sent_per_token\":%.6g,\"largest_batches\":{",
        options->memory_bytes, column->fits ? "true" : "false", column->largest_layers,
        column->largest_batch, column->largest_sent_per_token);
    for (int keep = ACTIVATION_ALL; keep <= ACTIVATION_OFFLOADED; keep++)
        fprintf(json, "%s\"%s\":%d", keep == 0 ? "" : ",",
            activation_keep_name((enum activation_keep)keep), column->largest_batches[keep]);
    fputs("}}\n", json);
}
