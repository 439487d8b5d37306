/* options_explain: what is wrong with an option that getopt did not take: it says only that
 * something is.
 */
#ifndef BENCH_OPTIONS_EXPLAIN_H
#define BENCH_OPTIONS_EXPLAIN_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

/* "option "--rnaks" is unknown, the nearest is --ranks". argument is a word of the command line,
 * last says that no other follows; root describes all options. false: nothing is wrong with it. */
bool options_explain(
    char *text, size_t bytes, const char *argument, bool last, const struct argp *root);

#endif
