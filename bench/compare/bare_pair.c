/* bare_pair: see bare_pair.h. */
#include "bench/compare/bare_pair.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

void bare_relax(int *spins)
{
#ifdef __SSE2__
    _mm_pause();
#endif
    if (++*spins % 4096 == 0) sched_yield();
}

void bare_meet(struct bare_gate *gate, uint64_t *turn)
{
    int spins = 0;
    *turn += 2;
    __atomic_add_fetch(&gate->count, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&gate->count, __ATOMIC_ACQUIRE) < *turn) bare_relax(&spins);
}

static int compare_times(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

double bare_median_us(int64_t *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, compare_times);
    return (double)times[count / 2] / 1000;
}

void *bare_array(size_t bytes)
{
    size_t huge = (size_t)2 << 20, room = (bytes + huge) / huge * huge;
    void *array = bytes > 0 ? aligned_alloc(huge, room) : NULL;
    if (array == NULL) return NULL;
    madvise(array, room, MADV_HUGEPAGE);
    return memset(array, 0, room);
}

/* The rank-th of the CPUs that this process may use. */
static void bind_to_cpu(int rank)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return;
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || seen++ != rank) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0) perror("cannot bind to a CPU");
    }
}

int bare_run(int (*run)(void *world, int rank, int argc, char **argv), size_t bytes, int argc, char **argv)
{
    void *world = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (world == MAP_FAILED) {
        fprintf(stderr, "%s: no shared memory of %zu bytes\n", argv[0], bytes);
        return 1;
    }
    memset(world, 0, bytes);
    pid_t parent = getpid(), child = fork();
    if (child < 0) {
        fprintf(stderr, "%s: no second process\n", argv[0]);
        return 1;
    }
    int rank = child == 0;
    if (rank == 1) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
    }
    bind_to_cpu(rank);
    int code = run(world, rank, argc, argv), status = 0;
    if (rank == 1) _exit(code);
    if (code != 0) kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return code != 0 ? code : status != 0;
}
