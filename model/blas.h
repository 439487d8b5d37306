/* blas: what the program must arrange with OpenBLAS before it computes.
 *
 * OpenBLAS picks its kernels when it is loaded, by the processors that it knows. One that is newer than the
 * library it takes for a machine of 2004 and runs SSE3 kernels on, at a sixth of the speed. The environment
 * variable OPENBLAS_CORETYPE overrules it, but is read at loading only, so the program starts itself again
 * with it set.
 */
#ifndef MODEL_BLAS_H
#define MODEL_BLAS_H

/* The kernels in use, "SkylakeX"; never NULL. */
const char *blas_core(void);

/* The name of kernels that this processor can run and that are much faster than those in use, for
 * OPENBLAS_CORETYPE; NULL: there are none, or the user has set the variable and thus chosen. */
const char *blas_better_core(void);

/* Where blas_better_core() knows better, replaces this process by the same program with the same arguments and
 * the variable set: then it does not return. Else, and where that fails (with a warning), does nothing. Call
 * first in main(): nothing of the process but its environment and descriptors survives. */
void blas_use_better_core(char **argv);

/* Threads of each matrix product of this process: 1 unless the user asked (cores / ranks). The bits of a
 * product may depend on it. */
void blas_set_threads(int threads);

#endif
