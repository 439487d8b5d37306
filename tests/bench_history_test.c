/* bench/train_history and its page: constant memory whatever the steps, means that are right, values that are not finite, a run that
 * starts again after ranks were lost. Bench is a program, so its files are taken in here.
 * ctest: timeout=60
 */
#include "bench/plot.c"
#include "bench/train_history.c"
#include "bench/train_page.c"

#include <stdlib.h>
#include <unistd.h>

#include "tests/harness/harness.h"

static char page_path[] = "/tmp/ringzero_history_XXXXXX";
static struct train_options options = {.run.model = "a<b>&\"c\"", .report = page_path, .common = {.device = "host"}};
static struct params params = {.elements = 1000000, .whole_elements = 2000000}; /* of a part, and of the model */

static struct train_history *opened(void)
{
    struct train_history *history;
    const struct train_start start = {.params = &params, .nranks = 2, .shard_group = 2, .transport = "shm"};
    options.config.data = "text";
    if (history_open(&history, &options) != STATUS_OK) abort();
    history_start(history, &start);
    return history;
}

static void step(struct train_history *history, uint64_t number, double loss)
{
    const struct train_report report = {.step = number, .loss = loss, .norm = 1.0, .lr = 1e-3f, .step_ms = 2.0,
        .wait_ms = 1.0, .tokens_per_s = (double)number, .validated = number % 100 == 0, .validation_loss = loss};
    history_step(history, &report);
}

/* The page as text; freed by the caller. */
static char *page_of(struct train_history *history)
{
    CHECK_OK(history_close(history));
    FILE *file = fopen(page_path, "r");
    char *text = calloc(1, 1 << 20);
    if (file == NULL || text == NULL) abort();
    size_t bytes = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    CHECK(bytes > 2000 && bytes < (1 << 20) - 1 && strcmp(text + bytes - 15, "</body></html>\n") == 0);
    return text;
}

static void check_long_run(void)
{
    struct train_history *history = opened();
    uint64_t steps = 0, last = 300001, next = 1;
    for (uint64_t s = 1; s <= last; s++) step(history, s, (double)s);
    CHECK(history->points <= HISTORY_POINTS && history->points > HISTORY_POINTS / 2 - 1);
    CHECK(history->validations <= HISTORY_POINTS && history->validations >= HISTORY_POINTS / 2);
    for (int i = 0; i < history->points; i++) {
        const struct history_point *point = &history->point[i];
        CHECK(point->first == next && point->last >= point->first);
        CHECK_MSG(fabs(point->loss - middle_of(point)) < 1e-6 * point->loss, "point %d: mean %.9g of steps %" PRIu64 " to %" PRIu64,
            i, point->loss, point->first, point->last);
        next = point->last + 1;
        steps += steps_of(point);
    }
    CHECK(steps == last);
    char *page = page_of(history);
    CHECK(strstr(page, "A point is the mean of 256 steps") != NULL);
    CHECK(strstr(page, "did not come to its end") != NULL); /* no ledger came */
    CHECK(strstr(page, ": 2.00 million parameters") != NULL);
    CHECK(strstr(page, "a&lt;b&gt;&amp;&quot;c&quot;") != NULL && strstr(page, "a<b>") == NULL);
    free(page);
}

static void check_not_finite(void)
{
    struct train_history *history = opened();
    for (uint64_t s = 1; s <= 9; s++) step(history, s, s == 5 ? NAN : 2.0);
    char *page = page_of(history);
    CHECK(strstr(page, "nan") == NULL);
    const char *loss = strstr(page, "<polyline"), *after = loss == NULL ? NULL : strstr(loss + 1, "<polyline");
    const char *end = strstr(page, "Norm of the gradient");
    CHECK(after != NULL && after < end); /* a gap makes two lines of one */
    free(page);
}

/* One point, no range: no division by it. */
static void check_one_step(void)
{
    struct train_history *history = opened();
    step(history, 7, 3.0);
    char *page = page_of(history);
    CHECK(strstr(page, "inf") == NULL && strstr(page, "nan") == NULL);
    free(page);
}

static void check_again(void)
{
    struct train_history *history = opened();
    const struct train_start later = {.params = &params, .nranks = 1, .shard_group = 1, .transport = "shm", .first_step = 200};
    for (uint64_t s = 1; s <= 450; s++) step(history, s, 1.0);
    history_start(history, &later);
    CHECK(history->points == 200 && history->validations == 2);
    for (uint64_t s = 201; s <= 450; s++) step(history, s, 2.0);
    CHECK(history->points == 450 && history->point[200].loss == 2.0 && history->validations == 4);
    free(page_of(history));
}

int main(void)
{
    int fd = mkstemp(page_path);
    if (fd < 0) abort();
    close(fd);
    check_long_run();
    check_not_finite();
    check_one_step();
    check_again();
    unlink(page_path);
    options.report = "/nonexistent/page.html";
    struct train_history *history;
    CHECK_STATUS(history_open(&history, &options), STATUS_SYSTEM);
    CHECK_TEXT("--report /nonexistent/page.html cannot be written");
    return test_result();
}
