/* cudasim_bugs_fixture: a bug of a program, planted in a process of its own; what the program is
 * told, and what stands in the message, is looked at. For the programs that plant them.
 */
#ifndef TESTS_CUDASIM_BUGS_FIXTURE_H
#define TESTS_CUDASIM_BUGS_FIXTURE_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cudasim/kernels.h"
#include "tests/harness/harness.h"

#if defined(__SANITIZE_THREAD__)
enum { UNDER_TSAN = 1 };
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0"; /* it would wait for a second in each process */
}
#else
enum { UNDER_TSAN = 0 };
#endif

/* Returns the error that the program sees. */
typedef cudaError_t (*bug_function)(void);

struct bug {
    const char *name;
    bug_function plant;
    const char *setting;     /* "NAME=VALUE", or NULL */
    const char *expected[3]; /* what is said: each is one of several, "this|or that" */
};

/* Runs a bug in a process of its own; its stderr, and what it returned, is the text. */
static void run_bug(char *text, size_t bytes, bug_function plant, const char *setting)
{
    int ends[2], state;
    size_t used = 0;
    fflush(NULL);
    if (!CHECK(pipe(ends) == 0)) return;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        if (setting != NULL) putenv((char *)(uintptr_t)setting);
        dprintf(2, "\nreturned %s", cudaGetErrorName(plant()));
        exit(0);
    }
    close(ends[1]);
    for (ssize_t got; used < bytes - 1 && (got = read(ends[0], text + used, bytes - 1 - used)) > 0;)
        used += (size_t)got;
    text[used] = '\0';
    close(ends[0]);
    CHECK(waitpid(child, &state, 0) == child);
    if (WIFSIGNALED(state)) snprintf(text + used, bytes - used, "\nsignal %d", WTERMSIG(state));
}

/* Whether one of "these|alternatives" stands in the text. */
static bool says(const char *text, const char *these)
{
    char words[256];
    snprintf(words, sizeof words, "%s", these);
    for (char *rest = words, *word; (word = strsep(&rest, "|")) != NULL;)
        if (strstr(text, word) != NULL) return true;
    return false;
}

static inline void check_bug(const struct bug *bug)
{
    static char text[1 << 16];
    run_bug(text, sizeof text, bug->plant, bug->setting);
    for (int i = 0; i < 3 && bug->expected[i] != NULL; i++)
        CHECK_MSG(says(text, bug->expected[i]), "%s: expected \"%s\" in: %s", bug->name,
            bug->expected[i], text);
}

static void *bytes_on_device(size_t bytes)
{
    void *p = NULL;
    if (cudaMalloc(&p, bytes) != cudaSuccess || cudaMemset(p, 0, bytes) != cudaSuccess) exit(3);
    return p;
}

static inline cudaError_t after(cudaError_t launched)
{
    return launched != cudaSuccess ? launched : cudaDeviceSynchronize();
}

#endif
