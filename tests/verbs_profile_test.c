/* verbs_profile: rows add up to the outermost spans; groups and wholes; what is kept; marks in a
 * stream are those of its own time. Counts and sums judge, never how long something took.
 * ctest: timeout=30
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/harness.h"
#include "verbs/clock.h"
#include "verbs/profile.h"

static const struct profile_row *row(const char *name, const struct profile *profile)
{
    static const struct profile_row none;
    int count;
    const struct profile_row *rows = profile_rows(&count, profile);
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    fprintf(stderr, "no row %s\n", name);
    CHECK(false);
    return &none;
}

/* A step of three blocks of two operations, with a wait, and a validation that nobody looks into. */
static void one_step(struct profile *profile)
{
    profile_begin(profile, "step", 0);
    for (int block = 0; block < 3; block++) {
        profile_begin_group(profile, "block # forward", block);
        profile_begin(profile, "qkv", 0);
        profile_end(profile, 100, 10);
        profile_begin(profile, "wait for # others", block);
        profile_end(profile, 0, 0);
        profile_end(profile, 0, 0);
    }
    profile_begin_whole(profile, "validation", 0);
    profile_begin(profile, "qkv", 0);
    profile_begin_group(profile, "block # forward", 7);
    profile_end(profile, 0, 0);
    profile_end(profile, 1000, 1000);
    profile_end(profile, 0, 5);
    profile_end(profile, 0, 0);
}

static int64_t sum_ns(const struct profile *profile)
{
    int count;
    int64_t sum = 0;
    const struct profile_row *rows = profile_rows(&count, profile);
    for (int i = 0; i < count; i++) sum += rows[i].ns;
    return sum;
}

static void check_rows(const struct profile *profile, uint64_t steps)
{
    int count;
    (void)profile_rows(&count, profile);
    CHECK_MSG(count == 4, "%d rows", count);
    CHECK(row("step", profile)->calls == steps);
    CHECK(row("qkv", profile)->calls == 3 * steps);
    CHECK(row("qkv", profile)->flops == 300.0 * (double)steps);
    CHECK(row("qkv", profile)->bytes == 30.0 * (double)steps);
    CHECK(row("wait for others", profile)->calls == 3 * steps);
    CHECK(row("validation", profile)->calls == steps);
    CHECK(row("validation", profile)->bytes == 5.0 * (double)steps);
}

/* What a stream does between two marks is not this thread's time, but some must pass. */
static enum status nap(void *arguments)
{
    (void)arguments;
    pause_ms(1);
    return STATUS_OK;
}

/* Spans that are kept: each inside that which was around it, and together what the rows have. */
static void check_spans(const struct profile *profile, size_t expected, uint64_t expected_dropped)
{
    size_t count;
    uint64_t dropped;
    const struct profile_span *spans = profile_spans(&count, &dropped, profile);
    CHECK_MSG(count == expected && dropped == expected_dropped, "%zu kept, %llu dropped", count,
        (unsigned long long)dropped);
    for (size_t i = 0; i < count; i++) {
        CHECK(spans[i].begin_ns <= spans[i].end_ns);
        if (spans[i].depth == 0) continue;
        size_t around = i + 1; /* spans end before what is around them */
        while (around < count && spans[around].depth >= spans[i].depth) around++;
        if (around == count) continue; /* dropped */
        CHECK(spans[around].depth == spans[i].depth - 1);
        CHECK(
            spans[around].begin_ns <= spans[i].begin_ns && spans[i].end_ns <= spans[around].end_ns);
    }
}

static void check_profile(struct stream *stream, struct device *device)
{
    struct profile *profile;
    int64_t begin_ns = clock_ns();
    CHECK_OK(profile_open(&profile, device));
    one_step(profile); /* nobody looks yet */
    CHECK_OK(profile_start(stream, profile));
    one_step(profile);
    profile_clear(profile);
    for (int i = 0; i < 200; i++) { /* more marks than there is room for */
        if (stream != NULL && i < 3) CHECK_OK(stream_call(stream, nap, NULL, 0, device));
        one_step(profile);
    }
    CHECK_OK(profile_settle(profile));
    check_rows(profile, 200);
    int64_t sum = sum_ns(profile), all = clock_ns() - begin_ns;
    CHECK_MSG(sum > 0 && sum <= all, "%lld of %lld ns", (long long)sum, (long long)all);
    check_spans(profile, 0, 0);

    profile_clear(profile);
    CHECK_OK(profile_keep(12, profile));
    one_step(profile); /* 3 groups, 6 rows in them, the validation, the step */
    CHECK_OK(profile_settle(profile));
    check_spans(profile, 11, 0);
    check_rows(profile, 1);
    size_t count;
    uint64_t dropped;
    const struct profile_span *spans = profile_spans(&count, &dropped, profile);
    CHECK(strcmp(spans[8].name, "block 2 forward") == 0 && spans[8].depth == 1);
    CHECK(strcmp(spans[7].name, "wait for 2 others") == 0 && spans[7].depth == 2);
    CHECK(spans[9].bytes == 5.0 && strcmp(spans[9].name, "validation") == 0);
    CHECK(spans[10].begin_ns >= begin_ns);
    CHECK(sum_ns(profile) == spans[10].end_ns - spans[10].begin_ns); /* rows add up, to the ns */
    one_step(profile);
    CHECK_OK(profile_settle(profile));
    check_spans(profile, 12, 10);
    CHECK_OK(profile_keep(0, profile));
    one_step(profile);
    CHECK_OK(profile_settle(profile));
    check_spans(profile, 12, 10);
    check_rows(profile, 3);
    stream_close(stream, device);
    profile_close(profile);
}

/* More names than there are rows: nothing is lost. */
static void check_many(void)
{
    static char names[200][8];
    struct profile *profile;
    int count;
    uint64_t calls = 0;
    CHECK_OK(profile_open(&profile, NULL));
    CHECK_OK(profile_start(NULL, profile));
    for (int i = 0; i < 200; i++) {
        snprintf(names[i], sizeof names[i], "n%d", i);
        profile_begin(profile, names[i], 0);
        profile_end(profile, 1, 0);
    }
    const struct profile_row *rows = profile_rows(&count, profile);
    for (int i = 0; i < count; i++) calls += rows[i].calls;
    CHECK(count == PROFILE_ROWS_MOST && calls == 200);
    CHECK(strcmp(rows[count - 1].name, "other") == 0 && rows[count - 1].calls == 73);
    profile_close(profile);
}

/* Nobody asks. */
static void check_none(void)
{
    one_step(NULL);
    profile_clear(NULL);
    CHECK_OK(profile_start(NULL, NULL));
    CHECK_OK(profile_keep(3, NULL));
    CHECK_OK(profile_settle(NULL));
    profile_close(NULL);
}

static void check_device(const char *name)
{
    struct device *device;
    struct stream *stream;
    CHECK_OK(device_open(&device, name));
    CHECK_OK(stream_open(&stream, device, "test"));
    check_profile(stream, device);
    device_close(device);
}

int main(void)
{
    if (test_has_device("cudasim")) check_device("cudasim"); /* before there are threads */
    check_device("host");
    check_profile(NULL, NULL);
    check_many();
    check_none();
    return test_result();
}
