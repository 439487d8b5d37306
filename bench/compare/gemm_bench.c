/* gemm_bench: GFLOP/s of float32 matrix products on one thread: what a core can do at all when it trains, and, started twice at
 * once, how much two cores of this machine slow each other down.
 *
 *   gemm_bench [SECONDS [EDGE]]     prints "gflops NUMBER": the median over batches of 100 ms
 *
 * EDGE: square products of that size, 2048 for the most that the library reaches; else the largest product of nano.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/blas.h"
#include "verbs/clock.h"

/* The largest product of a block of nano at batch 8: (B·T, C) × (C, 4C). */
static const int nano_rows = 1024, nano_cols = 512, nano_deep = 128;

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
    int edge = argc > 2 ? atoi(argv[2]) : 0, rows = edge > 0 ? edge : nano_rows, cols = edge > 0 ? edge : nano_cols;
    int deep = edge > 0 ? edge : nano_deep;
    float *a = calloc((size_t)rows * (size_t)deep, sizeof *a), *b = calloc((size_t)deep * (size_t)cols, sizeof *b);
    float *c = calloc((size_t)rows * (size_t)cols, sizeof *c);
    static double gflops[MOST_BATCHES];
    if (a == NULL || b == NULL || c == NULL) return 1;
    for (int i = 0; i < rows * deep; i++) a[i] = (float)(i % 7);
    for (int i = 0; i < deep * cols; i++) b[i] = (float)(i % 5);
    int batches = 0;
    for (int64_t begin = clock_ns(); (double)(clock_ns() - begin) < seconds * 1e9 && batches < MOST_BATCHES; batches++) {
        int64_t start = clock_ns(), products = 0, ns = 0;
        for (; ns < clock_ms_to_ns(100); ns = clock_ns() - start, products++)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, cols, deep, 1.0f, a, deep, b, cols, 0.0f, c, cols);
        gflops[batches] = 2.0 * rows * cols * deep * (double)products / (double)ns;
    }
    qsort(gflops, (size_t)batches, sizeof *gflops, compare);
    printf("gflops %.2f\n", gflops[batches / 2]);
    return 0;
}
