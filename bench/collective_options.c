/* collective_options: see collective_options.h. */
#include "bench/collective_options.h"

#include <limits.h>
#include <string.h>

#include "verbs/plural.h"

#define DEFAULT_BYTES ((size_t)32 << 20)
#define DEFAULT_STEP  ((size_t)1 << 20)
#define MOST_GROUPED  1024

#define COLLECTIVES                                                                                                    \
    "all_reduce, reduce_scatter, all_gather, broadcast, reduce, scatter, gather, all_to_all or send_recv"

bool collective_reduces(enum collective collective) { return collective_is_reduction(collective); }

bool collective_has_parts(enum collective collective)
{
    return collective == COLLECTIVE_REDUCE_SCATTER || collective == COLLECTIVE_ALL_GATHER || collective == COLLECTIVE_SCATTER ||
           collective == COLLECTIVE_GATHER || collective == COLLECTIVE_ALL_TO_ALL;
}

bool collective_has_root(enum collective collective)
{
    return collective_is_rooted(collective) && collective != COLLECTIVE_SEND;
}

bool collective_works_in_place(enum collective collective)
{
    return collective != COLLECTIVE_ALL_TO_ALL && collective != COLLECTIVE_SEND;
}

const char *collective_title(const struct bench_options *bench)
{
    return bench->collective == COLLECTIVE_SEND ? "send_recv" : collective_name(bench->collective);
}

/* Bytes of one element, of every rank where there are parts: what sizes are rounded down to. */
static size_t unit_bytes(enum collective collective, enum dtype dtype, int nranks)
{
    return dtype_bytes(dtype) * (collective_has_parts(collective) ? (size_t)nranks : 1);
}

size_t count_of_bytes(size_t bytes, enum collective collective, enum dtype dtype, int nranks)
{
    return bytes / unit_bytes(collective, dtype, nranks);
}

const char *nccl_type_name(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_FLOAT16: return "half";
    case DTYPE_FLOAT32: return "float";
    case DTYPE_FLOAT64: return "double";
    default: return dtype_name(dtype);
    }
}

const char *nccl_op_name(enum redop redop)
{
    return redop == REDOP_PREMUL_SUM ? "mulsum" : redop_name(redop);
}

static void take_dtype(const char *text, struct bench_options *bench)
{
    enum dtype dtype = DTYPE_FLOAT32;
    bool all = strcmp(text, "all") == 0;
    if (!all && dtype_from_name(&dtype, text) != 0)
        options_refuse(
            &bench->common, "-d is \"%s\", expected all or one of %s", text, dtype_names());
    for (int i = 0; i < DTYPE_COUNT; i++) bench->dtypes[i] = all || i == (int)dtype;
}

static void take_redop(const char *text, struct bench_options *bench)
{
    enum redop redop = REDOP_SUM;
    bool all = strcmp(text, "all") == 0;
    if (strcmp(text, "mulsum") == 0) text = redop_name(REDOP_PREMUL_SUM);
    if (!all && redop_from_name(&redop, text) != 0)
        options_refuse(&bench->common,
            "-o is \"%s\", expected all or one of sum, prod, min, max, avg, premul_sum (mulsum)", text);
    for (int i = 0; i < REDOP_COUNT; i++) bench->redops[i] = all || i == (int)redop;
}

static void take_reduce_dtype(const char *text, struct bench_options *bench)
{
    if (reduce_dtype_from_name(&bench->reduce_dtype, text) != 0)
        options_refuse(&bench->common, "--reduce-dtype is \"%s\", expected own or float32", text);
    bench->reduce_dtype_given = true;
}

static void take_collective(const char *text, struct bench_options *bench)
{
    if (bench->collective_given)
        options_refuse(&bench->common, "found a second collective \"%s\", expected one", text);
    bool known = collective_from_name(&bench->collective, text) == 0;
    if (strcmp(text, "send_recv") == 0) {
        bench->collective = COLLECTIVE_SEND;
    } else if (!known || bench->collective == COLLECTIVE_BARRIER || bench->collective == COLLECTIVE_SEND ||
               bench->collective == COLLECTIVE_RECV) {
        options_refuse(&bench->common, "collective is \"%s\", expected " COLLECTIVES, text);
    }
    bench->collective_given = true;
}

static void take_algorithm(const char *text, struct bench_options *bench)
{
    static const char *const names[] = {
        [ALGORITHM_AUTO] = "auto", [ALGORITHM_RING] = "ring", [ALGORITHM_TWO_LEVEL] = "two_level", [ALGORITHM_NAIVE] = "naive"};
    int a = ALGORITHM_NAIVE;
    while (a >= 0 && strcmp(text, names[a]) != 0) a--;
    if (a < 0) options_refuse(&bench->common, "--algo is \"%s\", expected auto, ring, two_level or naive", text);
    bench->algorithm = (enum algorithm)a;
}

enum { KEY_ALGORITHM = 0x200, KEY_PLOT, KEY_TRACE, KEY_REDUCE_DTYPE, KEY_ON_DEATH, KEY_MEMORY };

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct bench_options *bench = state->input;
    const struct options *common = &bench->common;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &bench->common; return 0;
    case ARGP_KEY_ARG: take_collective(text, bench); return 0;
    case 'b':
        bench->min_bytes = options_bytes(text, "-b", common);
        bench->min_given = true;
        return 0;
    case 'e':
        bench->max_bytes = options_bytes(text, "-e", common);
        bench->max_given = true;
        return 0;
    case 'i':
        bench->step_bytes = options_bytes(text, "-i", common);
        if (bench->step_bytes == 0)
            options_refuse(common, "-i is \"%s\", expected at least 1 byte", text);
        return 0;
    case 'f': bench->factor = (size_t)options_integer(text, "-f", 1, 1 << 20, common); return 0;
    case 'n': bench->iterations = (int)options_integer(text, "-n", 1, INT_MAX, common); return 0;
    case 'w': bench->warmups = (int)options_integer(text, "-w", 0, INT_MAX, common); return 0;
    case 'm': bench->group = (int)options_integer(text, "-m", 1, MOST_GROUPED, common); return 0;
    case 'c': bench->checks = (int)options_integer(text, "-c", 0, INT_MAX, common); return 0;
    case 'o':
        take_redop(text, bench);
        bench->redop_given = true;
        return 0;
    case 'd': take_dtype(text, bench); return 0;
    case KEY_REDUCE_DTYPE: take_reduce_dtype(text, bench); return 0;
    case 'r':
        bench->root_given = true;
        bench->root = ALL_ROOTS;
        if (strcmp(text, "all") != 0)
            bench->root = (int)options_integer(text, "-r", 0, INT_MAX, common);
        return 0;
    case 'I': bench->each = true; return 0;
    case 'z': bench->blocking = options_integer(text, "-z", 0, 1, common) != 0; return 0;
    case KEY_ALGORITHM: take_algorithm(text, bench); return 0;
    case KEY_ON_DEATH: bench->shrinks = options_shrinks(text, common); return 0;
    case KEY_MEMORY: bench->own_memory = options_word(text, "--memory", "plain", "own", common); return 0;
    case KEY_PLOT: bench->plot = options_stem(text, "--plot", common); return 0;
    case KEY_TRACE: bench->trace = options_stem(text, "--trace", common); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"minbytes", 'b', "BYTES", 0, "smallest size (32M); suffixes K, M, G are binary", 1},
    {"maxbytes", 'e', "BYTES", 0, "largest size (32M)", 1},
    {"stepfactor", 'f', "N", 0, "multiply the size by N from row to row", 1},
    {"stepbytes", 'i', "BYTES", 0, "or add so many bytes (1M)", 1},
    {"iters", 'n', "N", 0, "operations that are timed, for each row and half (20)", 2},
    {"warmup_iters", 'w', "N", 0, "operations before each measurement, not counted (5)",
        2},
    {"group", 'm', "N", 0, "issue N operations, on buffers of their own, as one group call; size, time and bandwidth are "
        "those of one of them (1)", 2},
    {"agg_iters", 0, NULL, OPTION_ALIAS, NULL, 2},
    {"check", 'c', "N", 0, "check every element of N outputs of each row and half; 0: none (1)", 2},
    {"op", 'o', "OP", 0,
        "sum (the default), prod, min, max, avg, premul_sum (every even rank's input times 2) or all",
        3},
    {"datatype", 'd', "DTYPE", 0,
        "float32 or float (the default), float64 (double), float16 (half), bfloat16, int8, uint8, "
        "int32, uint32, int64, uint64 or all",
        3},
    {"reduce-dtype", KEY_REDUCE_DTYPE, "DTYPE", 0,
        "in what 16-bit sums travel: own (the default), rounded at every rank; or float32, rounded once: on the ring 4 bytes an "
        "element until its owner has the sum, so an all_reduce sends half as much again, a reduce_scatter twice as much. Adds "
        "columns: the dtype, and the most bytes that a rank sends for one operation",
        3},
    {"root", 'r', "RANK", 0, "of broadcast, reduce, scatter and gather (0), or all", 3},
    {"algo", KEY_ALGORITHM, "NAME", 0,
        "ring: one ring of all ranks; two_level: inside each host, then between hosts; auto (the default): two levels where several "
        "hosts have several ranks each, the same number; of all_reduce also naive: Reduce to rank 0, then Broadcast", 3},
    {"memory", KEY_MEMORY, "plain|own", 0,
        "own: buffers from ring_alloc(), which the other ranks of a host read where they are, so that large operations over shm copy "
        "less; plain: any memory (the default)",
        3},
    {"each", 'I', NULL, 0, "time operations one by one: adds columns p50, p99 and coefficient of variation", 4},
    {"blocking", 'z', "0|1", 0, "1: a barrier before each operation, outside its time (0)", 4},
    {"on-death", KEY_ON_DEATH, "end|shrink", 0,
        "when a rank is lost: end the job (the default), or go on with those that are left, from the row in hand; not without rank "
        "0", 4},
    {"plot", KEY_PLOT, "FILE.svg", 0, "draw busbw against size, and the limit, by gnuplot; the numbers stay beside, "
        "in FILE.dat", 4},
    {"trace", KEY_TRACE, "FILE", 0,
        "write what each rank did when in one more operation of the last size: for ui.perfetto.dev and "
            "chrome://tracing, and "
        "drawn, as FILE.svg", 4},
    {0},
};
static const struct argp_child children[] = {{&options_common, 0, "Common options:", 9}, {0}};
static const struct argp argp = {
    options,
    parse_option,
    "COLLECTIVE",
    "Measures a collective: time, bandwidth, right results, and bytes on the wire. COLLECTIVE is " COLLECTIVES
    " (each rank sends to the next and receives from the one before). Starts 2 ranks "
    "unless --ranks says otherwise, or joins those that a launcher started."
    "\vColumns are those of nccl-tests. Size is the whole array, also where count "
    "is one rank's part (reduce_scatter, all_gather, scatter, gather, all_to_all); counts are not rounded. algbw is "
        "size / time, "
    "busbw what each rank's link carries of it. The last column compares busbw (of one rank: "
    "algbw) with what this machine could do at best, measured in the same run: a memory copy by "
    "all ranks at once, or a raw two-way TCP stream through buffers as large as the largest message.\n\n"
    "Exit code: 0, or 1 when an operation failed, a result was wrong, or bytes sent differ from "
    "the prediction; 2 for bad input; 128 + signal when a rank was killed. With --on-death shrink it is rank 0's, so 0 when those "
    "that are left have finished.\n\n"
    "Examples:\n  ringzero bench all_reduce --ranks 4 -b 8 -e 128M -f 2\n"
    "  ringzero bench all_reduce --ranks 4 -b 1K -e 64M -f 4 -I --plot busbw.svg\n"
    "  ringzero bench all_reduce --ranks 4 -b 8M -e 8M --trace ring.json",
    children,
    options_help_filter,
    NULL,
};

/* Options that would change nothing: whoever gives them expects that they do. */
static void refuse_idle_options(const struct bench_options *bench)
{
    const struct options *common = &bench->common;
    const char *title = collective_title(bench);
    bool reduces = collective_reduces(bench->collective);
    if (bench->root_given && !collective_has_root(bench->collective))
        options_refuse(common, "-r is given, expected none: %s has no root; broadcast, reduce, scatter and gather have one", title);
    if (bench->redop_given && !reduces)
        options_refuse(common, "-o is given, expected none: %s adds nothing up; all_reduce, reduce_scatter and reduce do", title);
    if (bench->reduce_dtype_given && !reduces)
        options_refuse(common, "--reduce-dtype is given, expected none: %s adds nothing up; all_reduce, reduce_scatter and reduce do",
            title);
}

struct bench_options bench_options_parse(int argc, char **argv)
{
    struct bench_options bench = {
        .common = options_default("ringzero bench"),
        .min_bytes = DEFAULT_BYTES,
        .max_bytes = DEFAULT_BYTES,
        .factor = 1,
        .step_bytes = DEFAULT_STEP,
        .iterations = 20,
        .warmups = 5,
        .checks = 1,
        .group = 1,
        .dtypes = {[DTYPE_FLOAT32] = true},
        .redops = {[REDOP_SUM] = true},
    };
    bench.common.takes_device = true;
    options_parse(&argp, argc, argv, &bench.common, &bench);
    if (!bench.collective_given)
        options_refuse(&bench.common, "no collective given, expected " COLLECTIVES ": see `ringzero bench --help`");
    refuse_idle_options(&bench);
    if (bench.algorithm == ALGORITHM_NAIVE && bench.collective != COLLECTIVE_ALL_REDUCE)
        options_refuse(&bench.common, "--algo is \"naive\", expected ring: only all_reduce has another");
    if (bench.algorithm == ALGORITHM_TWO_LEVEL && !collective_has_two_levels(bench.collective))
        options_refuse(&bench.common, "--algo is \"two_level\", expected ring: %s has no other", collective_title(&bench));
    if (bench.algorithm == ALGORITHM_NAIVE && bench.group > 1)
        options_refuse(&bench.common,
            "-m is %d with --algo naive, expected 1: its two operations follow one another, a group's may overlap", bench.group);
    return bench;
}

void bench_options_check(struct bench_options *bench, int nranks)
{
    const struct options *common = &bench->common;
    size_t *min = &bench->min_bytes, *max = &bench->max_bytes;
    if (*min > *max && !bench->max_given) *max = *min;
    if (*min > *max && !bench->min_given) *min = *max;
    if (*min > *max)
        options_refuse(common, "-b is %zu byte%s, expected at most -e, which is %zu", *min, PLURAL(*min), *max);
    if (bench->root >= nranks)
        options_refuse(common, "-r is %d, expected a rank below %d", bench->root, nranks);
    for (int d = 0; d < DTYPE_COUNT; d++) {
        size_t unit = unit_bytes(bench->collective, (enum dtype)d, nranks);
        if (!bench->dtypes[d] || *min == 0 || *max >= unit) continue;
        options_refuse(common, "-e is %zu byte%s, expected at least %zu: one %s%s", *max, PLURAL(*max), unit,
            nccl_type_name((enum dtype)d),
            collective_has_parts(bench->collective) ? " for every rank" : "");
    }
}

bool bench_options_next(size_t *bytes, const struct bench_options *bench)
{
    size_t max = bench->max_bytes;
    if (bench->factor > 1) {
        if (*bytes > max / bench->factor) return false;
        *bytes = *bytes == 0 ? 1 : *bytes * bench->factor;
    } else {
        if (bench->step_bytes > max - *bytes) return false;
        *bytes += bench->step_bytes;
    }
    return *bytes <= max;
}
