/* sample_options: the options of `ringzero sample`.
 */
#ifndef BENCH_SAMPLE_OPTIONS_H
#define BENCH_SAMPLE_OPTIONS_H

#include "bench/model_file.h"
#include "bench/options.h"
#include "model/draw.h"

struct sample_options {
    struct options common;
    struct model_file file;
    const char *prompt;      /* NULL: not given */
    const char *prompt_file; /* NULL: not given; "-": standard input */
    const char *vocabulary;  /* NULL: bytes */
    int tokens, count;
    struct draw_config draw;
    bool goes_on; /* past the end of text */
};

/* Ends the process after --help, and with 2 after bad input. */
struct sample_options sample_options_parse(int argc, char **argv);

#endif
