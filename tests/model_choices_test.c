/* Questions with endings: rows are contexts and endings, whatever the passes; their losses are those of each row alone; who is right; every
 * field that can be wrong is named. ctest: timeout=60
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "model/choices.h"
#include "model/model.h"
#include "tests/choices_fixture.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

#define T        20
#define VOCAB    37
#define EXAMPLES 11
#define ENDINGS  4

static char path[] = "/tmp/ringzero_choices_XXXXXX";
static struct questions questions;

/* ---- rows ---- */

/* The lists of tokens of an example, read as the layout says: the context, then the endings. */
static const uint16_t *list_of(int example, int number)
{
    const uint16_t *at = questions.word;
    for (int i = 0; i < example; i++) at += at[1] / 2;
    at += 5;
    for (int i = 0; i < number; i++) at += at[0] + 1;
    return at;
}

static void check_row(const int32_t *inputs, const int32_t *targets, size_t row, int t)
{
    const uint16_t *context = list_of((int)row / ENDINGS, 0), *ending = list_of((int)row / ENDINGS, 1 + (int)row % ENDINGS);
    int32_t whole[2 * T] = {0}, from = context[0], end = from + ending[0];
    for (int i = 0; i < end; i++) whole[i] = i < from ? context[1 + i] : ending[1 + i - from];
    for (int i = 0; i < t; i++) {
        bool is_input = i + 1 < end, counts = is_input && i + 1 >= from;
        CHECK_MSG(inputs[i] == (is_input ? whole[i] : 0), "row %zu, input %d is %d", row, i, inputs[i]);
        CHECK_MSG(targets[i] == (counts ? whole[i + 1] : -1), "row %zu, target %d is %d", row, i, targets[i]);
    }
}

static void check_passes(int batch, const struct choices *choices)
{
    static int32_t inputs[64 * T], targets[64 * T];
    size_t blocks = choices_blocks(batch, choices), next = 0;
    for (size_t b = 0; b < blocks + 1; b++) {
        int rows = 0;
        for (int p = 0; p < choices_passes(batch, choices); p++) {
            struct choices_pass pass = choices_pass(b, p, batch, choices);
            CHECK(pass.rows <= batch && pass.t >= 1 && pass.t <= T && (pass.rows == 0 || pass.first == next));
            choices_fill(inputs, targets, &pass, choices);
            CHECK(pass.rows > 0 || (pass.t == 1 && inputs[0] == 0 && targets[0] == -1));
            for (int r = 0; r < pass.rows; r++) check_row(inputs + r * pass.t, targets + r * pass.t, next++, pass.t);
            rows += pass.rows;
        }
        CHECK(b < blocks ? rows > 0 && rows % ENDINGS == 0 : rows == 0); /* whole examples; nothing behind the last */
    }
    CHECK_MSG(next == EXAMPLES * ENDINGS, "batch %d: %zu rows", batch, next);
}

/* ---- losses ---- */

static void check_losses(const struct choices *choices)
{
    const struct model_config config = {.max_t = T, .vocab = VOCAB, .layers = 2, .heads = 2, .channels = 16, .vocab_block = 10};
    struct model_host host = model_host_make(&config, 3);
    struct model_hooks hooks = model_host_hooks(&host);
    struct model_run run = model_host_run(8, T);
    struct model *model;
    struct device *device;
    int32_t inputs[8 * T], targets[8 * T];
    double sums[8], alone, all, expected = 0.0;
    size_t counted;
    for (size_t i = 0; i < host.params.elements; i++) host.weights[i] *= 5.0f;
    if (!CHECK_OK(device_open(&device, "host")) || !CHECK_OK(model_open(&model, &host.params, &hooks, &run, device))) return;
    struct choices_pass pass = choices_pass(1, 0, 8, choices);
    CHECK(pass.rows == 8);
    choices_fill(inputs, targets, &pass, choices);
    CHECK_OK(model_forward(&all, &counted, inputs, targets, 8, pass.t, model));
    CHECK_OK(model_sequence_losses(sums, model));
    for (int r = 0; r < 8; r++) {
        struct choices_pass row = {pass.first + (size_t)r, 1, pass.t};
        choices_fill(inputs, targets, &row, choices);
        CHECK_OK(model_forward(&alone, &counted, inputs, targets, 1, pass.t, model));
        CHECK_MSG(fabs(sums[r] - alone) < 1e-5 * alone, "row %d has %.9g, alone %.9g", r, sums[r], alone);
        expected += sums[r];
    }
    CHECK_MSG(fabs(expected - all) < 1e-9 * all, "together %.17g, expected %.17g", expected, all);
    model_close(model);
    device_close(device);
    model_host_free(&host);
}

/* ---- judging ---- */

static void check_judge(const double losses[3], unsigned by_mean, unsigned by_sum, const struct choices *choices)
{
    struct choices_score score = {0};
    choices_judge(&score, losses, 0, choices);
    CHECK_MSG(score.by_mean == by_mean && score.by_sum == by_sum, "%g %g %g: %u by mean, %u by sum", losses[0], losses[1],
        losses[2], (unsigned)score.by_mean, (unsigned)score.by_sum);
}

/* Endings of 4, 2 and 1 tokens; the second is right. */
static void test_judge(void)
{
    struct choices *choices;
    questions_begin(&questions);
    questions_example(&questions, 1, 3);
    const int counts[] = {3, 4, 2, 1};
    for (int i = 0; i < 4; i++) questions_tokens(&questions, counts[i], VOCAB);
    questions_write(&questions, path);
    if (!CHECK_OK(choices_open(&choices, path, VOCAB, T))) return;
    check_judge((double[]){8.0, 2.0, 3.0}, 1, 1, choices);
    check_judge((double[]){8.0, 5.0, 3.0}, 0, 0, choices);
    check_judge((double[]){8.0, 3.9, 3.8}, 1, 0, choices); /* 2, 1.95 and 3.8 by the token */
    check_judge((double[]){3.0, 2.5, 4.0}, 0, 1, choices);
    check_judge((double[]){4.0, 2.0, 1.0}, 0, 0, choices); /* equal means: the first */
    check_judge((double[]){2.0, 2.0, 2.0}, 0, 0, choices); /* equal sums: the first */
    check_judge((double[]){NAN, 9.0, NAN}, 1, 1, choices);
    check_judge((double[]){INFINITY, 9.0, NAN}, 1, 1, choices);
    check_judge((double[]){NAN, NAN, NAN}, 0, 0, choices);
    struct choices_score score = {0};
    choices_judge_block(&score, (double[]){8.0, 2.0, 3.0}, 0, 16, choices);
    CHECK(score.by_mean == 1 && score.by_sum == 1);
    choices_judge_block(&score, NULL, 1, 16, choices); /* there is none */
    choices_close(choices);
}

/* ---- what is refused ---- */

static void refused(const struct questions *damaged, const char *words)
{
    struct choices *choices;
    questions_write(damaged, path);
    CHECK_STATUS(choices_open(&choices, path, VOCAB, T), STATUS_DATA);
    CHECK(choices == NULL);
    CHECK_TEXT(path);
    CHECK_TEXT(words);
}

static void test_faults(void)
{
    static struct questions damaged;
    struct choices *choices;
    questions_fill(&questions, EXAMPLES, ENDINGS, VOCAB, T);
    const struct {
        int word, value;
        const char *words;
    } headers[] = {{0, 20240520, "header[0] (magic) is 20240520, expected 20240522"}, {1, 2, "header[1] (version) is 2, expected 1"},
        {2, 0, "header[2] (examples) is 0"}, {2, -5, "header[2] (examples) is -5"}, {2, 1 << 30, "was cut short"},
        {2, EXAMPLES + 1, "11 examples, expected 12: the file was cut short"}, {2, EXAMPLES - 1, "expected 0: it is the last"}};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        damaged = questions;
        damaged.header[headers[i].word] = headers[i].value;
        refused(&damaged, headers[i].words);
    }
    size_t second = questions.word[1] / 2;
    const struct {
        size_t word;
        int value;
        const char *words;
    } fields[] = {{second, 7, "example 1: its delimiter is 7, expected 65535"}, {second + 1, 21, "example 1: its number of bytes is 21, expected even"},
        {second + 1, 10, "its number of bytes is 10, expected even, at least 12"}, {second + 1, 65534, "its number of bytes is 65534, expected"},
        {second + 2, 0, "example 1: its number is 0, expected 1"}, {second + 3, 4, "its label is 4, expected one of 4 endings"},
        {second + 4, 3, "its number of endings is 3, expected 4 as before"}, {4, 1, "example 0: its number of endings is 1, expected 2 to 64"},
        {4, 65, "its number of endings is 65"}, {second + 5, 0, "the length of its context is 0, expected 1 to"},
        {second + 5, 60000, "the length of its context is 60000, expected 1 to"}, {second + 6, VOCAB, "a token is 37, expected an id below 37"},
        {second + 6 + questions.word[second + 5], 0, "the length of an ending is 0, expected 1 to"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        damaged = questions;
        damaged.word[fields[i].word] = (uint16_t)fields[i].value;
        refused(&damaged, fields[i].words);
    }
    damaged = questions;
    damaged.word[1] = (uint16_t)(damaged.word[1] + 2);
    refused(&damaged, "example 0: bytes behind its endings is 2, expected 0");
    questions_fill(&damaged, EXAMPLES, ENDINGS, VOCAB, T + 1);
    refused(&damaged, "the length of a row is 21, expected at most 20: take longer sequences");
    CHECK_STATUS(choices_open(&choices, "/none/none", VOCAB, T), STATUS_DATA);
    CHECK_TEXT("/none/none: cannot be read");
    questions_write(&questions, path);
    if (truncate(path, 100) != 0) abort();
    CHECK_STATUS(choices_open(&choices, path, VOCAB, T), STATUS_DATA);
    CHECK_TEXT("header has 100 bytes, expected 1024");
    questions_write(&questions, path);
    if (truncate(path, (off_t)(1024 + 2 * questions.words - 1)) != 0) abort();
    CHECK_STATUS(choices_open(&choices, path, VOCAB, T), STATUS_DATA);
    CHECK_TEXT("expected an even number");
}

int main(void)
{
    struct choices *choices;
    int fd = mkstemp(path);
    if (fd < 0 || close(fd) != 0) abort();
    questions_fill(&questions, EXAMPLES, ENDINGS, VOCAB, T);
    questions_write(&questions, path);
    if (!CHECK_OK(choices_open(&choices, path, VOCAB, T))) return test_result();
    CHECK(choices_count(choices) == EXAMPLES && choices_endings(choices) == ENDINGS);
    for (int batch = 1; batch <= 64; batch++) check_passes(batch, choices);
    check_losses(choices);
    choices_close(choices);
    test_judge();
    test_faults();
    unlink(path);
    return test_result();
}
