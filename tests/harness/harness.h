/* harness: checks that count failures, and ranks as threads or processes.
 *
 * A test program calls CHECK as often as it likes and ends with `return test_result();`: 0 passed, 1 failed. It prints each failed check
 * with file and line. `return test_skip("what is missing")` gives 77.
 */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/bootstrap.h"
#include "verbs/status.h"

/* Counts and prints; goes on. True when the condition held. */
#define CHECK(condition) check_((condition), __FILE__, __LINE__, #condition, NULL)
/* With a printf-style remark: values found. */
#define CHECK_MSG(condition, ...) ((condition) ? true : check_text_(__FILE__, __LINE__, #condition, __VA_ARGS__))
/* A call that must return STATUS_OK; prints the status text if not. */
#define CHECK_OK(call) check_status_((call), STATUS_OK, __FILE__, __LINE__, #call)
/* A call that must return this status. */
#define CHECK_STATUS(call, expected) check_status_((call), (expected), __FILE__, __LINE__, #call)

bool check_(bool held, const char *file, int line, const char *condition, const char *remark);
bool check_text_(const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool check_status_(enum status found, enum status expected, const char *file, int line, const char *call);
bool check_text_has_(const char *part, const char *file, int line);
int test_result(void);
int test_skip(const char *why);

/* The text of the failure that this thread has seen last has these words. */
#define CHECK_TEXT(part) check_text_has_((part), __FILE__, __LINE__)

void pause_ms(int ms);
int64_t since_ms(int64_t begin_ns); /* by clock_ns() */

/* Files in a directory whose names have this part: what is left in "/dev/shm", or "" for what is open in "/proc/self/fd", where it counts a
 * few of its own, always as many. -1: there is no such directory. */
int count_files(const char *directory, const char *part);

/* Whether a suite that runs over every transport takes this one: if it is there; and, where RINGZERO_TEST_TRANSPORTS names some ("verbs", or "shm,tcp"), if
 * it is one of them, and then not being there is a failure. Any other name, or NULL (a transport of the test's own): unless the variable is set. */
bool test_takes(const char *transport);

/* The device on which a test of CUDA runs: the one that RINGZERO_TEST_DEVICE names, else the
 * simulator. */
const char *test_device_name(void);

/* Whether a device that a module brings ("cuda", "cudasim") can be tested: if not, says why. */
bool test_has_device(const char *name);

/* The same program can be run on two hosts at once, each of which runs a part of every job's ranks: RINGZERO_TEST_HOST="SELF/HOSTS ADDRESS PORT" makes
 * it run the ranks r with r mod HOSTS == SELF; rank 0 is on host 0, at that address, and each job has a port of its own from PORT on. */

/* Runs body on nranks threads, each a rank of one job over loopback with an opened bootstrap. The timeout is the job's. */
typedef void (*rank_body)(struct bootstrap *bootstrap, void *argument);
void ranks_as_threads(int nranks, int timeout_ms, rank_body body, void *argument);

/* The same on nranks processes (fork: call before any thread exists). Returns the number of ranks that failed: a child fails when a check failed
 * in it, when it exits non-zero, or by a signal. expected_dead (or -1): that rank is expected to die by SIGKILL. */
int ranks_as_processes(int nranks, int timeout_ms, rank_body body, void *argument, int expected_dead);

#endif
