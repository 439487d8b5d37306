/* The ZeRO paper's Table 1 and figures, to the digits that it prints; and what a GPT-2 with a tied
 * embedding makes of 3Ψ. ctest: timeout=30
 */
#include <math.h>
#include <string.h>

#include "shard/forecast.h"
#include "shard/paper.h"
#include "shard/paper_residual.h"
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
    CHECK(i == 12);
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
        CHECK_OK(model_preset(&train->model, "gpt2-1558m"));
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
    CHECK_OK(model_preset(&config.train.model, "gpt2-124m"));
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

/* ZeRO-R on the 100 B example, each number from its own factors. */
static void test_configurations(void)
{
    static const struct {
        const char *name;
        double states, checkpoints, host, sent;
    } expected[] = {
        /* Ψ/M = 6.2914560e9; 2 and 2 and 12 bytes, what is sharded over 25 */
        {"C1", 6.291456 * (4 + 12 / 25.0), 67.1, 0, 12},
        {"C2", 6.291456 * (4 + 12 / 25.0), 4.19, 0, 13},
        {"C3", 6.291456 * (2 + 14 / 25.0), 67.1, 0, 12},
        {"C4", 6.291456 * (2 + 14 / 25.0), 4.19, 0, 13},
        {"C5", 6.291456 * (2 + 14 / 25.0), 0, 4.19, 13},
    };
    const struct paper_run run = paper_run_100b();
    const struct paper_configuration *c;
    size_t i = 0;
    CHECK(prints_as(run.elements * 1e-9, 100.7, 1));
    for (; (c = paper_configuration(i)) != NULL; i++) {
        double states = paper_states_bytes(c, &run) / PAPER_GB;
        double checkpoints = paper_checkpoint_bytes(c, &run) / PAPER_GB;
        double host = paper_host_bytes(c, &run) / PAPER_GB;
        CHECK(strcmp(c->name, expected[i].name) == 0);
        CHECK_MSG(fabs(states - expected[i].states) < 1e-5, "%s: %g GB", c->name, states);
        CHECK_MSG(prints_as(checkpoints, expected[i].checkpoints, i % 2 == 0 ? 1 : 2), "%s: %g GB",
            c->name, checkpoints);
        CHECK_MSG(prints_as(host, expected[i].host, 2), "%s: %g GB", c->name, host);
        CHECK(paper_tensor_sent(c) == expected[i].sent);
    }
    CHECK(i == 5 && prints_as(paper_fused_bytes(&run) / PAPER_GB, 25.2, 1));
}

/* The largest batch is the last that fits; P_a makes it nearly M times as large, +cpu larger still;
 * and what data parallelism sends per token falls in proportion. */
static void test_largest_batch(void)
{
    const struct paper_run run = paper_run_100b();
    double batch[5];
    for (size_t i = 0; i < 5; i++) {
        const struct paper_configuration *c = paper_configuration(i);
        struct paper_run with = run;
        with.shape.batch = batch[i] = paper_largest_batch(c, &run, 32e9);
        CHECK_MSG(
            batch[i] >= 1 && paper_device_bytes(c, &with) <= 32e9, "%s: %g", c->name, batch[i]);
        double per_token = paper_data_bytes_per_token(&with);
        with.shape.batch += 1.0;
        CHECK(paper_device_bytes(c, &with) > 32e9);
        double more = paper_data_bytes_per_token(&with);
        CHECK(fabs(more / per_token - batch[i] / (batch[i] + 1.0)) < 1e-12);
        CHECK(paper_largest_batch(c, &run, paper_states_bytes(c, &run)) == 0.0);
    }
    CHECK_MSG(
        batch[3] / batch[2] > 12 && batch[3] / batch[2] <= 16, "%g and %g", batch[3], batch[2]);
    CHECK(batch[4] > 10 * batch[3] && batch[2] > batch[0]);
}

/* "≥ 10K" and linear in h. */
static void test_intensity(void)
{
    struct paper_shape shape = paper_run_100b().shape;
    double intensity = paper_offload_intensity(&shape);
    CHECK(intensity == 24.0 * 8192 && intensity >= 10e3);
    shape.hidden /= 2.0;
    shape.batch = 1.0;
    CHECK(paper_offload_intensity(&shape) == intensity / 2.0);
}

/* The store holds and sends what the formulas say, to the byte. */
static void test_formula_and_store(void)
{
    const struct paper_run run = paper_run_100b();
    for (size_t i = 0; i < 5; i++) {
        const struct paper_configuration *c = paper_configuration(i);
        const struct activation_config store = {.keep = c->activations,
            .block_count = 125,
            .pass_count = 1,
            .elements = (size_t)32 * 1024 * 8192,
            .dtype = DTYPE_BFLOAT16,
            .nranks = 16};
        if (!activation_is_carried(store.keep)) continue;
        uint64_t sent[COLLECTIVE_COUNT] = {0};
        double bsh = (double)store.elements, bytes = (double)activation_predict_bytes(&store);
        CHECK(bytes == paper_checkpoint_bytes(c, &run) + paper_host_bytes(c, &run));
        activation_predict_sent(sent, store.elements, &store);
        CHECK((double)sent[COLLECTIVE_ALL_GATHER] ==
              125.0 * 2.0 * (paper_tensor_sent(c) - 12.0) * bsh * 15.0 / 16.0);
    }
}

int main(void)
{
    test_configurations();
    test_largest_batch();
    test_intensity();
    test_formula_and_store();
    test_table_1();
    test_figures();
    test_formula_and_forecast();
    test_tied_embedding();
    return test_result();
}
