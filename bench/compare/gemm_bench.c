/* gemm_bench: GFLOP/s of float32 matrix products on one thread: what a core can do at all when it trains, and, started twice at
 * once, how much two cores of this machine slow each other down.
 *
 *   gemm_bench [SECONDS]     prints "gflops NUMBER": the median over batches of 100 ms
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/blas.h"
#include "verbs/clock.h"

/* The largest product of a block of nano at batch 8: (B·T, C) × (C, 4C). */
#define ROWS 1024
#define COLS 512
#define DEEP 128
#define MOST_BATCHES 1000

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    blas_use_better_core(argv);
    blas_set_threads(1);
    double seconds = argc > 1 ? atof(argv[1]) : 3.0;
    float *a = calloc((size_t)ROWS * DEEP, sizeof *a), *b = calloc((size_t)DEEP * COLS, sizeof *b);
    float *c = calloc((size_t)ROWS * COLS, sizeof *c);
    static double gflops[MOST_BATCHES];
    if (a == NULL || b == NULL || c == NULL) return 1;
    for (int i = 0; i < ROWS * DEEP; i++) a[i] = (float)(i % 7);
    for (int i = 0; i < DEEP * COLS; i++) b[i] = (float)(i % 5);
    int batches = 0;
    for (int64_t begin = clock_ns(); (double)(clock_ns() - begin) < seconds * 1e9 && batches < MOST_BATCHES; batches++) {
        int64_t start = clock_ns(), products = 0, ns = 0;
        for (; ns < clock_ms_to_ns(100); ns = clock_ns() - start, products++)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, ROWS, COLS, DEEP, 1.0f, a, DEEP, b, COLS, 0.0f, c, COLS);
        gflops[batches] = 2.0 * ROWS * COLS * DEEP * (double)products / (double)ns;
    }
    qsort(gflops, (size_t)batches, sizeof *gflops, compare);
    printf("gflops %.2f\n", gflops[batches / 2]);
    return 0;
}
