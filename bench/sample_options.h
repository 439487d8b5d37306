/* sample_options: the options of `ringzero sample`.
 */
#ifndef BENCH_SAMPLE_OPTIONS_H
#define BENCH_SAMPLE_OPTIONS_H

#include "bench/options.h"
#include "model/draw.h"

struct sample_options {
    struct options common;
    const char *model;          /* --checkpoint: a directory or a file */
    const char *prompt;         /* NULL: not given */
    const char *prompt_file;    /* NULL: not given; "-": standard input */
    const char *vocabulary;     /* NULL: bytes */
    int tokens, count, threads; /* threads 0: one a core */
    int heads;                  /* 0: as the file says */
    struct draw_config draw;
    enum dtype dtype;
    bool goes_on; /* past the end of text */
};

/* Ends the process after --help, and with 2 after bad input. */
struct sample_options sample_options_parse(int argc, char **argv);

#endif
