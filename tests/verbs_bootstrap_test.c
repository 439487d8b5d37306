/* bootstrap: collectives, the mailbox, deaths and aborts, and what is left behind.
 * ctest: timeout=60
 */
#include "tests/harness/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "verbs/clock.h"

#define TIMEOUT_MS 20000

/* ---- collectives and mailbox ---- */

static void gather_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    int rank = bootstrap_rank(b), nranks = bootstrap_nranks(b);
    const size_t sizes[] = {1, 8, 1000, 70000};
    for (int round = 0; round < 8; round++) {
        size_t bytes = sizes[round % 4];
        unsigned char *blobs = malloc(bytes * (size_t)nranks);
        memset(blobs, 0xee, bytes * (size_t)nranks);
        for (size_t i = 0; i < bytes; i++)
            blobs[(size_t)rank * bytes + i] = (unsigned char)((size_t)rank * 31 + i + (size_t)round);
        CHECK_OK(bootstrap_all_gather(blobs, bytes, b));
        int wrong = 0;
        for (int r = 0; r < nranks; r++)
            for (size_t i = 0; i < bytes; i++)
                wrong +=
                    blobs[(size_t)r * bytes + i] != (unsigned char)((size_t)r * 31 + i + (size_t)round);
        CHECK_MSG(wrong == 0, "%d bytes of %zu × %d", wrong, bytes, nranks);
        free(blobs);
    }
    unsigned char one = 0;
    CHECK_STATUS(bootstrap_all_gather(&one, BOOTSTRAP_GATHER_BYTES + 1, b), STATUS_INVALID);
    CHECK(bootstrap_local_nranks(b) == nranks && bootstrap_local_rank(b) == rank);
    CHECK_MSG(strcmp(bootstrap_address(b), "127.0.0.1") == 0, "address %s", bootstrap_address(b));
    CHECK(bootstrap_job(b) != 0 && !bootstrap_failed(b));
    CHECK_OK(bootstrap_check(NULL, b));
}

static void barrier_body(struct bootstrap *b, void *argument)
{
    int *entered = argument;
    int rank = bootstrap_rank(b), nranks = bootstrap_nranks(b);
    for (int round = 1; round <= 20; round++) {
        if ((round + rank) % 5 == 0) pause_ms(2);
        __atomic_add_fetch(entered, 1, __ATOMIC_RELAXED);
        CHECK_OK(bootstrap_barrier(b));
        CHECK(__atomic_load_n(entered, __ATOMIC_RELAXED) >= round * nranks);
    }
}

static void differ_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    unsigned char blobs[4 * 16] = {0};
    CHECK_STATUS(bootstrap_all_gather(blobs, bootstrap_rank(b) == 2 ? 16 : 8, b), STATUS_INVALID);
    CHECK_TEXT("rank 2");
    CHECK_TEXT("8");
    CHECK_TEXT("16");
    CHECK_OK(bootstrap_barrier(b)); /* the next one works */
}

static bool take_soon(void *blob, size_t bytes, int from, uint64_t key, struct bootstrap *b)
{
    bool found = false;
    for (int64_t begin = clock_ns(); !found && since_ms(begin) < TIMEOUT_MS;) {
        if (!CHECK_OK(bootstrap_take(blob, bytes, &found, from, key, b))) return false;
        if (!found) pause_ms(1);
    }
    return found;
}

static void post_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    enum { COUNT = 200, KEYS = 3 };
    int rank = bootstrap_rank(b), nranks = bootstrap_nranks(b);
    for (int i = 0; i < COUNT; i++)
        for (int to = 0; to < nranks; to++) {
            int blob[3] = {rank, to, i};
            CHECK_OK(bootstrap_post(to, (uint64_t)(i % KEYS) + UINT64_MAX - 2, blob, sizeof blob, b));
        }
    for (int from = nranks - 1; from >= 0; from--)
        for (int key = KEYS - 1; key >= 0; key--)
            for (int i = key; i < COUNT; i += KEYS) {
                int blob[3] = {-1, -1, -1};
                CHECK(take_soon(blob, sizeof blob, from, (uint64_t)key + UINT64_MAX - 2, b));
                CHECK_MSG(blob[0] == from && blob[1] == rank && blob[2] == i, "found %d %d %d", blob[0],
                    blob[1], blob[2]);
            }
    bool found = true;
    char blob[BOOTSTRAP_BLOB_BYTES + 1] = {0};
    CHECK_OK(bootstrap_take(blob, 1, &found, rank, 0, b));
    CHECK(!found);
    /* Told anew: only the newest is kept, whatever its size, and other keys stay. */
    for (int to = 0; to < nranks; to++) {
        CHECK_OK(bootstrap_post(to, 6, &rank, sizeof rank, b));
        for (char i = 1; i <= 3; i++) CHECK_OK(bootstrap_post_anew(to, 7, &i, 1, b));
        CHECK_OK(bootstrap_post_anew(to, 7, &(int[]){rank, to}, 2 * sizeof rank, b));
        CHECK_OK(bootstrap_post(to, 8, &rank, sizeof rank, b));
    }
    for (int from = nranks - 1; from >= 0; from--) {
        int pair[2] = {-1, -1}, word = -1;
        CHECK(take_soon(&word, sizeof word, from, 8, b) && word == from); /* all of its mail has come */
        CHECK(take_soon(pair, sizeof pair, from, 7, b) && pair[0] == from && pair[1] == rank);
        CHECK_OK(bootstrap_take(pair, 1, &found, from, 7, b));
        CHECK(!found);
        CHECK(take_soon(&word, sizeof word, from, 6, b) && word == from);
    }
    CHECK_STATUS(bootstrap_post(0, 0, blob, sizeof blob, b), STATUS_INVALID);
    CHECK_STATUS(bootstrap_post(nranks, 0, blob, 1, b), STATUS_INVALID);
    CHECK_OK(bootstrap_post(rank, 5, blob, 4, b));
    CHECK_STATUS(bootstrap_take(blob, 8, &found, rank, 5, b), STATUS_DATA);
    CHECK_TEXT("expected 8");
    CHECK_OK(bootstrap_take(blob, 4, &found, rank, 5, b));
    CHECK(found);
    CHECK_OK(bootstrap_barrier(b));
}

static void test_single(void)
{
    struct bootstrap_config config = bootstrap_config_single();
    struct bootstrap *b = NULL;
    CHECK_OK(bootstrap_open(&b, &config));
    if (b == NULL) return;
    gather_body(b, NULL);
    post_body(b, NULL);
    bootstrap_abort("enough", b);
    int rank = -1;
    CHECK_STATUS(bootstrap_check(&rank, b), STATUS_ABORTED);
    CHECK_TEXT("rank 0: enough");
    CHECK(rank == 0 && bootstrap_failed(b));
    CHECK_STATUS(bootstrap_barrier(b), STATUS_ABORTED);
    bootstrap_close(b);
    bootstrap_close(NULL);
}

/* ---- failures ---- */

static enum status wait_for_failure(int *rank, struct bootstrap *b)
{
    for (int64_t begin = clock_ns(); !bootstrap_failed(b) && since_ms(begin) < 10000;) pause_ms(1);
    return bootstrap_check(rank, b);
}

static void abort_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    int rank = -1;
    CHECK_OK(bootstrap_barrier(b));
    if (bootstrap_rank(b) == 1) bootstrap_abort("the file\nis broken", b);
    CHECK_STATUS(wait_for_failure(&rank, b), STATUS_ABORTED);
    CHECK(rank == 1);
    CHECK_TEXT("rank 1: the file is broken");
    CHECK_STATUS(bootstrap_barrier(b), STATUS_ABORTED);
    char blob[4] = {0};
    bool found;
    CHECK_STATUS(bootstrap_post(0, 1, blob, 4, b), STATUS_ABORTED);
    CHECK_STATUS(bootstrap_take(blob, 4, &found, 0, 1, b), STATUS_ABORTED);
}

static void death_body(struct bootstrap *b, void *argument)
{
    int dead = *(int *)argument, rank = -1;
    char expected[80];
    snprintf(expected, sizeof expected, "rank %d died (its control connection closed)", dead);
    CHECK_OK(bootstrap_barrier(b));
    if (bootstrap_rank(b) == dead) {
        pause_ms(100); /* the others are within the barrier */
        kill(getpid(), SIGKILL);
    }
    int64_t begin = clock_ns();
    CHECK_STATUS(bootstrap_barrier(b), STATUS_PEER);
    CHECK_TEXT(expected);
    CHECK_STATUS(wait_for_failure(&rank, b), STATUS_PEER);
    CHECK_MSG(rank == dead, "rank %d", rank);
    CHECK_MSG(since_ms(begin) < 5000, "%lld ms", (long long)since_ms(begin));
}

/* Ends without a BYE, as a rank does that meets an error and exits. */
static void exit_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    CHECK_OK(bootstrap_barrier(b));
    if (bootstrap_rank(b) == 1) {
        bootstrap_abort("gives up at once", b);
        _exit(0);
    }
    CHECK_STATUS(wait_for_failure(NULL, b), STATUS_ABORTED);
    CHECK_TEXT("rank 1: gives up at once");
}

static void late_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    if (bootstrap_rank(b) == 2) {
        pause_ms(1200);
        return;
    }
    int64_t begin = clock_ns();
    CHECK_STATUS(bootstrap_barrier(b), STATUS_TIMEOUT);
    CHECK_TEXT("rank 2 did not come within 600 ms");
    CHECK_MSG(since_ms(begin) >= 300 && since_ms(begin) < 5000, "%lld ms", (long long)since_ms(begin));
    CHECK_STATUS(bootstrap_barrier(b), STATUS_TIMEOUT); /* and stays so */
}

static void left_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    if (bootstrap_rank(b) == 1) return; /* to its close */
    CHECK_STATUS(bootstrap_barrier(b), STATUS_PEER);
    CHECK_TEXT("rank 1 has left the job");
}

/* A rank that waited for the others in vain, and left with a BYE, has not died. */
static void early_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    if (bootstrap_rank(b) == 1) return; /* its close waits 400 ms */
    pause_ms(1000);
    CHECK_OK(bootstrap_check(NULL, b));
}

/* A rank that is stopped for a while is not dead. */
static void stop_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    if (bootstrap_rank(b) == 1) {
        pid_t self = getpid();
        pid_t waker = fork();
        if (waker == 0) {
            pause_ms(1500);
            kill(self, SIGCONT);
            _exit(0);
        }
        kill(self, SIGSTOP);
        waitpid(waker, NULL, 0);
    }
    CHECK_OK(bootstrap_barrier(b));
    CHECK(!bootstrap_failed(b));
}

static void test_failures_as_processes(void)
{
    for (int dead = 0; dead < 4; dead += 2)
        CHECK(ranks_as_processes(4, TIMEOUT_MS, death_body, &dead, dead) == 0);
    CHECK(ranks_as_processes(3, TIMEOUT_MS, exit_body, NULL, -1) == 0);
    CHECK(ranks_as_processes(3, TIMEOUT_MS, stop_body, NULL, -1) == 0);
}

/* ---- limits ---- */

static void nothing_body(struct bootstrap *b, void *argument)
{
    (void)b, (void)argument;
}

static void test_no_leak(void)
{
    int before = count_files("/proc/self/fd", "");
    for (int i = 0; i < 300; i++) ranks_as_threads(2, TIMEOUT_MS, nothing_body, NULL);
    CHECK_MSG(
        count_files("/proc/self/fd", "") == before, "%d descriptors before, %d after", before, count_files("/proc/self/fd", ""));
}

static void test_few_descriptors(void)
{
    struct rlimit before, few;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    few.rlim_cur = 64;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    CHECK(ranks_as_processes(16, TIMEOUT_MS, gather_body, NULL, -1) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

int main(void)
{
    /* Processes first: a fork wants no threads beside it. */
    CHECK(ranks_as_processes(4, TIMEOUT_MS, gather_body, NULL, -1) == 0);
    CHECK(ranks_as_processes(3, TIMEOUT_MS, post_body, NULL, -1) == 0);
    test_failures_as_processes();
    test_few_descriptors();

    test_single();
    for (int nranks = 2; nranks <= 8; nranks += nranks == 2 ? 1 : 5) {
        int entered = 0;
        ranks_as_threads(nranks, TIMEOUT_MS, gather_body, NULL);
        ranks_as_threads(nranks, TIMEOUT_MS, barrier_body, &entered);
        ranks_as_threads(nranks, TIMEOUT_MS, post_body, NULL);
    }
    ranks_as_threads(4, TIMEOUT_MS, differ_body, NULL);
    ranks_as_threads(3, TIMEOUT_MS, abort_body, NULL);
    ranks_as_threads(3, 600, late_body, NULL);
    ranks_as_threads(3, TIMEOUT_MS, left_body, NULL);
    ranks_as_threads(3, 400, early_body, NULL);
    test_no_leak();
    return test_result();
}
