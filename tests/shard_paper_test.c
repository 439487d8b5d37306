/* The ZeRO paper's Table 1 and figures, to the digits that it prints; and what a GPT-2 with a tied
 * embedding makes of 3Ψ. ctest: timeout=30
 */
#include <math.h>

#include "shard/forecast.h"
#include "shard/paper.h"
#include "tests/harness/harness.h"

/* Whether x, rounded to so many digits after the point, is what is printed. A half goes either way.
 */
static bool prints_as(double x, double printed, int digits)
{
    return fabs(x - printed) <= 0.5 * pow(10.0, -digits) * (1.0 + 1e-12);
}

static void test_table_1(void)
{
    const struct paper_row *row;
    int rows = 0, cells = 0;
    for (; (row = paper_table_1((size_t)rows)) != NULL; rows++)
        for (int stage = 1; stage <= 3; stage++) {
            double gb = paper_held_bytes(stage, row->elements, row->nranks) / PAPER_GB;
            double printed = row->printed[stage - 1];
            if (printed == 0.0) continue;
            cells++;
            CHECK_MSG(prints_as(gb, printed, row->digits[stage - 1]),
                "%g parameters, %g ranks, stage %d: %g GB, the paper has %g", row->elements,
                row->nranks, stage, gb, printed);
        }
    CHECK(rows == 3 * 6 && cells == 12);
    CHECK(paper_held_bytes(0, 7.5e9, 64) == 120e9 && paper_held_bytes(1, 1e12, 1) == 16000e9);
    CHECK(paper_held_bytes(3, 1e12, 1024) == 15.625e9 && paper_held_bytes(2, 128e9, 4) == 704e9);
}

static void test_figures(void)
{
    struct paper_figure figure;
    size_t i = 0;
    for (; paper_figure(&figure, i); i++)
        CHECK_MSG(fabs(figure.value - figure.printed) <= figure.slack, "%s: %g, the paper has %g",
            figure.name, figure.value, figure.printed);
    CHECK(i == 9);
    const struct paper_shape gpt2 = {48, 1600, 32, 1024};
    CHECK(paper_activations(&gpt2) == 12.0 * 1600 * 32 * 1024 * 48);
    CHECK(2.0 * paper_activations_by_block(&gpt2) == 2.0 * 60 * 1600.0 * 32 * 1024);
}

/* Formula and forecast are two counts of the same thing: they agree where nothing is padded. */
static void test_formula_and_forecast(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        struct forecast_config config = {.train = train_config_default(), .nranks = 64};
        struct forecast forecast;
        struct train_config *train = &config.train;
        CHECK_OK(gpt2_preset(&train->model, "gpt2-1558m"));
        train->model.vocab = 50304; /* rows that 64 ranks share evenly */
        train->dtype = train->gradient_dtype = train->reduce_dtype = DTYPE_BFLOAT16;
        train->stage = stage;
        CHECK_OK(forecast_make(&forecast, &config));
        CHECK(forecast.padded == forecast.elements);
        double held = paper_held_bytes(stage, (double)forecast.elements, 64);
        uint64_t states = forecast.held_bytes[MEMORY_WEIGHTS] +
                          forecast.held_bytes[MEMORY_GRADIENTS] +
                          forecast.held_bytes[MEMORY_OPTIMIZER];
        CHECK_MSG((double)states == held && forecast.formula_held == held,
            "stage %d: %llu bytes held, %.0f by the tables, %.0f by formula", stage,
            (unsigned long long)states, forecast.formula_held, held);
        CHECK(forecast.volume.paper_psi == paper_sent_psi(stage));
    }
}

/* In Ψ(N−1)/N: gathers of stage 3, and reductions. */
static void test_tied_embedding(void)
{
    struct forecast_config config = {.train = train_config_default(), .nranks = 64};
    struct forecast forecast;
    CHECK_OK(gpt2_preset(&config.train.model, "gpt2-124m"));
    config.train.stage = 3;
    CHECK_OK(forecast_make(&forecast, &config));
    const struct forecast_wire *rows = &forecast.wire[FORECAST_EMBEDDING];
    const struct forecast_wire *blocks = &forecast.wire[FORECAST_BLOCKS];
    double psi = (double)forecast.elements, embedding = (double)rows->elements / psi;
    double once = 1.0 + 3.0 * embedding + 2.0 * (double)blocks->elements / psi +
                  (double)forecast.wire[FORECAST_POSITIONS].elements / psi;
    CHECK_MSG(fabs(once - 3.3) < 0.05, "%g, expected about 3.3", once);
    CHECK(blocks->reductions == 12 && blocks->gathers == 24);
    CHECK(rows->units == 6 && rows->reductions == 12 && rows->gathers == 3 * 6 - 2);
    double sent = (double)forecast.sent_sum / sizeof(float) / (psi * 63.0 / 64.0);
    CHECK_MSG(fabs(sent - (once + embedding - embedding / 3.0)) < 0.001, "%g times Ψ", sent);
}

int main(void)
{
    test_table_1();
    test_figures();
    test_formula_and_forecast();
    test_tied_embedding();
    return test_result();
}
