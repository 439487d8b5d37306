/* plan_paper: `ringzero plan --paper`: the ZeRO paper's Table 1 and figures, by formula, beside
 * what it prints; and what its 3Ψ becomes for a GPT-2 with a tied embedding.
 */
#include "bench/plan_print.h"
#include "shard/paper.h"

/* ---- Table 1 ---- */

static void print_cell(double gb, double printed, int digits)
{
    char paper[32] = "";
    if (printed > 0.0) snprintf(paper, sizeof paper, "(%.*f)", digits, printed);
    printf("  %9.2f %-7s", gb, paper);
}

static void json_cell(FILE *json, int stage, const struct paper_row *row, double gb)
{
    double printed = row->printed[stage - 1];
    if (json == NULL) return;
    fprintf(json,
        "{\"parameters\":%.0f,\"ranks\":%.0f,\"stage\":%d,\"gb\":%.6g,\"paper_gb\":", row->elements,
        row->nranks, stage, gb);
    if (printed > 0.0) fprintf(json, "%.4g}\n", printed);
    else fputs("null}\n", json);
}

static void print_row(const struct paper_row *row, FILE *json)
{
    printf("  %6.4ge9  %5.0f", row->elements * 1e-9, row->nranks);
    for (int stage = 1; stage <= 3; stage++) {
        double gb = paper_held_bytes(stage, row->elements, row->nranks) / PAPER_GB;
        print_cell(gb, row->printed[stage - 1], row->digits[stage - 1]);
        json_cell(json, stage, row, gb);
    }
    putchar('\n');
}

static void print_table(FILE *json)
{
    printf("# arXiv 1910.02054, Table 1: model states of a rank in GB (1e9 bytes); in brackets "
           "what it prints\n"
           "# 16-bit weights and gradients, float32 optimizer: K = 12\n"
           "#   stage 1  P_os       4Ψ + KΨ/N\n"
           "#   stage 2  P_os+g     2Ψ + (2 + K)Ψ/N\n"
           "#   stage 3  P_os+g+p   (4 + K)Ψ/N\n"
           "#\n"
           "#       Ψ      N            stage 1            stage 2            stage 3\n");
    const struct paper_row *row;
    for (size_t i = 0; (row = paper_table_1(i)) != NULL; i++) print_row(row, json);
}

/* ---- figures ---- */

static void print_figures(FILE *json)
{
    struct paper_figure figure;
    printf("#\n# figures: Ψ = 1.5e9, h = 1600, L = 48, b = 32, s = 1024; the 100 B example h = "
           "8192, L = 125\n");
    for (size_t i = 0; paper_figure(&figure, i); i++) {
        printf("  %-*s %-*s %8.2f %-3s  (%.4g)\n", 54 + plan_continuation_bytes(figure.name),
            figure.name, 22 + plan_continuation_bytes(figure.formula), figure.formula, figure.value,
            figure.unit, figure.printed);
        if (json != NULL)
            fprintf(json,
                "{\"figure\":\"%s\",\"formula\":\"%s\",\"unit\":\"%s\",\"value\":%.6g,"
                "\"paper\":%.4g}\n",
                figure.name, figure.formula, figure.unit, figure.value, figure.printed);
    }
}

/* ---- beside a real model ---- */

/* Units of Ψ(N−1)/N, without padding. */
static void print_volume(void)
{
    struct forecast_config config = {.train = train_config_default(), .nranks = 64};
    struct forecast forecast;
    config.train.stage = 3;
    if (model_preset(&config.train.model, "gpt2-124m") != STATUS_OK ||
        forecast_make(&forecast, &config) != STATUS_OK)
        return;
    const struct forecast_wire *rows = &forecast.wire[FORECAST_EMBEDDING];
    double gathers = 0.0, reductions = 0.0, psi = (double)forecast.elements;
    for (int part = 0; part < FORECAST_PART_COUNT; part++) {
        const struct forecast_wire *wire = &forecast.wire[part];
        double unit = (double)wire->elements / (double)wire->units / psi;
        gathers += unit * (double)wire->gathers;
        reductions += unit * (double)wire->reductions;
    }
    double kept = 3.0 - (double)rows->gathers / (double)rows->units;
    double embedding = (double)rows->elements / psi;
    printf(
        "#\n# gpt2-124m in stage 3, in Ψ(N-1)/N on the wire: the paper's 3 becomes\n"
        "  %.2f  the tied embedding is gathered for the input, the head and the head's backward\n"
        "  %.2f  less the rows that are still there when the backward begins\n"
        "  %.2f  its gradient is reduced in two parts: what a run sends, %.2f + %.2f\n",
        gathers + 1.0 + kept * embedding, gathers + 1.0, gathers + reductions, gathers, reductions);
}

void plan_print_paper(FILE *json)
{
    print_table(json);
    print_figures(json);
    print_volume();
    const struct paper_shape gpt2 = {48, 1600, 32, 1024};
    printf(
        "#\n# Here stage 3 holds the unit in use and the next, 3/64 in place of 2/64, and there is "
        "a checkpoint\n# per block: 2 · (L + 12)·b·s·h = %.2f GB.\n",
        2.0 * paper_activations_by_block(&gpt2) / PAPER_GB);
    plan_print_residual(json);
}
