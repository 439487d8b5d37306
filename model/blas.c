/* blas: see blas.h. Invariant: at most one restart, since the restarted program finds the variable set. */
#include "model/blas.h"

#include <cblas.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "verbs/log.h"

static const char variable[] = "OPENBLAS_CORETYPE";

const char *blas_core(void) { return openblas_get_corename(); }

#if defined(__x86_64__)
/* Kernels without AVX: right for processors of their time only. */
static bool is_old(const char *core)
{
    static const char *const old[] = {"Katmai", "Coppermine", "Northwood", "Prescott", "Banias", "Atom", "Core2",
        "Penryn", "Dunnington", "Nehalem", "Athlon", "Opteron", "Opteron_SSE3", "Barcelona", "Bobcat", "Nano",
        "Generic"};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        if (strcasecmp(core, old[i]) == 0) return true;
    return false;
}

const char *blas_better_core(void)
{
    if (getenv(variable) != NULL || !is_old(blas_core())) return NULL;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
    return NULL;
}
#else
const char *blas_better_core(void) { return NULL; }
#endif

void blas_use_better_core(char **argv)
{
    const char *better = blas_better_core();
    if (better == NULL) return;
    char path[PATH_MAX] = "/proc/self/exe";
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1); /* so that ps shows the program's name */
    if (length > 0) path[length] = 0;
    if (setenv(variable, better, 1) == 0) {
        execv(path, argv);
        unsetenv(variable);
    }
    LOG_WARN("model", "OpenBLAS uses its %s kernels, which are slow on this processor, and starting again with its %s "
        "kernels failed (%s): set %s=%s", blas_core(), better, strerror(errno), variable, better);
}

void blas_set_threads(int threads) { openblas_set_num_threads(threads); }
