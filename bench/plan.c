/* plan: `ringzero plan` asks shard/forecast.h about each stage and prints what it says. Nothing is
 * trained, no rank is started.
 */
#include <errno.h>
#include <string.h>

#include "bench/plan_print.h"
#include "bench/programs.h"

static void refuse_unless(enum status status, const struct options *common)
{
    if (status != STATUS_OK) options_refuse(common, "%s", status_text());
}

/* What data parallelism sends does not depend on the batch: the larger it is, the less for a token.
 * */
static double sent_per_token_of_batch(
    int batch, const struct forecast_config *config, const struct options *common)
{
    struct forecast_config with = *config;
    struct forecast forecast;
    if (batch == 0) return 0.0;
    with.train.batch = batch;
    refuse_unless(forecast_make(&forecast, &with), common);
    return plan_sent_per_token(&forecast, &with);
}

static struct plan_column make_column(int stage, const struct plan_options *options)
{
    const struct options *common = &options->common;
    struct plan_column column = {.stage = stage, .config = plan_options_of_stage(stage, options)};
    uint64_t memory = options->memory_bytes;
    refuse_unless(forecast_make(&column.forecast, &column.config), common); /* or refuses it */
    refuse_unless(forecast_fullest_stage(&column.config.pipeline_stage, &column.config), common);
    refuse_unless(forecast_make(&column.forecast, &column.config), common);
    if (memory == 0) return column;
    column.fits = column.forecast.held_sum <= memory;
    refuse_unless(forecast_largest_layers(&column.largest_layers, memory, &column.config), common);
    refuse_unless(forecast_largest_batch(&column.largest_batch, memory, &column.config), common);
    for (int keep = ACTIVATION_ALL; keep <= ACTIVATION_OFFLOADED; keep++) {
        struct forecast_config with = column.config;
        with.train.activations = (enum activation_keep)keep;
        refuse_unless(forecast_largest_batch(&column.largest_batches[keep], memory, &with), common);
    }
    column.largest_sent_per_token =
        sent_per_token_of_batch(column.largest_batch, &column.config, common);
    return column;
}

static void print_stages(FILE *json, const struct plan_options *options)
{
    struct plan_column columns[PLAN_MOST_STAGES];
    bool all = options->stage == PLAN_ALL_STAGES;
    int first = all ? 0 : options->stage, count = all ? PLAN_MOST_STAGES : 1;
    for (int i = 0; i < count; i++) columns[i] = make_column(first + i, options);
    plan_print_table(columns, count, options);
    for (int i = 0; i < count && json != NULL; i++) plan_print_json(json, &columns[i], options);
}

int plan_main(int argc, char **argv)
{
    struct plan_options options = plan_options_parse(argc, argv);
    FILE *json = options_open_json(&options.common);
    if (options.paper) plan_print_paper(json);
    else if (options.fragmentation)
        refuse_unless(plan_print_fragmentation(json, &options), &options.common);
    else print_stages(json, &options);
    bool written = json == NULL || fflush(json) == 0;
    if (json != NULL && fclose(json) != 0) written = false;
    if (!written)
        fprintf(stderr, "ringzero plan: --json %s: writing failed: %s; expected room for it\n",
            options.common.json, strerror(errno));
    return written && fflush(stdout) == 0 ? 0 : 1;
}
