/* options: what the options of all programs share: the common ones, the values, and how bad input
 * ends: one line on standard error (what, found, expected, what to do), exit code 2.
 *
 * A program describes its own options as a struct argp, with options_common as a child:
 *
 *     static error_t parse_option(int key, char *text, struct argp_state *state)
 *     {
 *         struct bench_options *options = state->input;
 *         switch (key) {
 *         case ARGP_KEY_INIT: state->child_inputs[0] = &options->common; return 0;
 *         case 'n': options->iterations = (int)options_integer(text, "-n", 1, INT_MAX, …); return 0;
 *         …
 *     static const struct argp_child children[] = {{&options_common, 0, "Common options:", 9}, {0}};
 */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "shard/activation.h"
#include "verbs/dtype.h"

#define OPTIONS_MOST_RANKS 4096  /* that can be started */
#define OPTIONS_MOST_DRAWN 65536 /* that can be reckoned with: where takes_range */

/* The common options, given or not. */
struct options {
    const char *program;   /* "ringzero bench": starts every message */
    int ranks;             /* --ranks; 0: not given */
    int ranks_last;        /* of a range A..B, where the program takes one; else as ranks */
    bool takes_range;      /* set by the program before parsing; then up to most_ranks */
    const char *transport; /* --transport; NULL: not given, so RINGZERO_TRANSPORT or auto */
    bool takes_device;     /* set by the program before parsing: it can use others than the host */
    const char *device;    /* --device; "host" */
    const char *json;      /* --json; NULL: not given */
    uint64_t seed;         /* --seed; 1 */
};

/* Their values when not given. program lives as long as the process. */
struct options options_default(const char *program);

/* The argp child of every program. Its input is a struct options. --log takes effect at once. */
extern const struct argp options_common;

/* Parses all of argv, where input is the program's struct and common lies in it. Ends the process:
 * with 0 after --help, with 2 after bad input. */
void options_parse(const struct argp *argp, int argc, char **argv, struct options *common, void *input);

/* The help_filter of every program's argp: leaves out a note about getopt's grammar. */
char *options_help_filter(int key, const char *text, void *input);

/* "ringzero bench: <text>", then exit(2). */
_Noreturn void options_refuse(const struct options *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* --json's file, opened for writing; NULL: none was asked for. Refuses a path that cannot be. */
FILE *options_open_json(const struct options *options);

/* Closes it; NULL is accepted. `status`, or, where that is OK, SYSTEM naming it when not all was written. */
MUST_CHECK enum status options_close_json(FILE *json, enum status status, const struct options *options);

/* The path of a file beside which others are written, each with an ending more, as x.svg of x:
 * refuses one that leaves no room for that. */
#define OPTIONS_ENDING_BYTES 4 /* .svg, .dat */
const char *options_stem(const char *text, const char *option, const struct options *options);

/* The value of an option: a whole number within [min, max]; or refuses it by the option's name. */
int64_t options_integer(
    const char *text, const char *option, int64_t min, int64_t max, const struct options *options);

/* The same for any finite number. */
float options_number(
    const char *text, const char *option, float min, float max, const struct options *options);

/* The same for bytes, with an optional suffix: K, M, G are 2^10, 2^20, 2^30. */
size_t options_bytes(const char *text, const char *option, const struct options *options);

/* One of two words: true for the second. */
bool options_word(const char *text, const char *option, const char *first, const char *second, const struct options *options);

/* A number of things: from 1 on. */
int options_count(const char *text, const char *option, const struct options *options);

/* What --checkpoint-activations says. */
enum activation_keep options_activations(const char *text, const struct options *options);

/* A dtype that weights and gradients can have. */
enum dtype options_training_dtype(const char *text, const char *option, const struct options *options);

/* --on-death end|shrink: whether those that are left go on when a rank is lost. */
bool options_shrinks(const char *text, const struct options *options);

/* "1024", or "2..1024": whole numbers within [min, max], or bytes with suffixes. */
struct options_range {
    int64_t first, last;
};
struct options_range options_range(
    const char *text, const char *option, bool bytes, int64_t min, int64_t max, const struct options *options);

#endif
