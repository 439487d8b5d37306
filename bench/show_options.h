/* show_options: the options of `ringzero show`.
 */
#ifndef BENCH_SHOW_OPTIONS_H
#define BENCH_SHOW_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/options.h"
#include "ring/ring.h"

#define SHOW_DEFAULT_RANKS 4
#define SHOW_MOST_RANKS    1024 /* that are drawn */

struct show_options {
    struct options common;
    bool collective_given;
    enum collective collective;
    int hosts;     /* --hosts; 0: not given */
    int level_hosts; /* of the plan of two levels that is drawn; 0: a flat one */
    int root;      /* -1: not given */
    int64_t count; /* -1: not given */
    enum dtype dtype;
    enum reduce_dtype reduce_dtype;
    bool reduce_dtype_given;
    const char *simulate, *plot; /* NULL: not given */
    struct options_range bytes;  /* first -1: not given */
    int cores;       /* of a host */
    bool own_memory; /* ring_alloc() has been called */
    bool place_given; /* either of them */
};

/* Ends the process with one line and 2 where the input is bad. */
struct show_options show_options_parse(int argc, char **argv);

#endif
