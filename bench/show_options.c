/* show_options: see show_options.h. */
#include "bench/show_options.h"

#include <stdio.h>
#include <unistd.h>

#include "bench/show_path.h"

enum { KEY_ROOT = 'r', KEY_DTYPE = 'd', KEY_BYTES = 'b', KEY_COUNT = 0x200, KEY_SIMULATE, KEY_PLOT, KEY_REDUCE_DTYPE, KEY_HOSTS, KEY_MEMORY, KEY_CORES };

/* "all_reduce, reduce_scatter, … or barrier" */
static const char *collective_list(char text[256])
{
    size_t used = 0;
    text[0] = '\0';
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        const char *before = c == 0 ? "" : c == COLLECTIVE_COUNT - 1 ? " or " : ", ";
        used += (size_t)snprintf(text + used, 256 - used, "%s%s", before, collective_name((enum collective)c));
    }
    return text;
}

static void take_collective(const char *text, struct show_options *show)
{
    char list[256];
    if (show->collective_given)
        options_refuse(&show->common, "found a second collective \"%s\", expected one", text);
    if (collective_from_name(&show->collective, text) != 0)
        options_refuse(&show->common, "collective is \"%s\", expected %s", text, collective_list(list));
    show->collective_given = true;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct show_options *show = state->input;
    const struct options *common = &show->common;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &show->common; return 0;
    case KEY_ROOT:
        show->root = (int)options_integer(text, "--root", 0, OPTIONS_MOST_DRAWN - 1, common);
        return 0;
    case KEY_HOSTS:
        show->hosts = (int)options_integer(text, "--hosts", 2, SHOW_MOST_RANKS / 2, common);
        return 0;
    case KEY_COUNT:
        show->count = options_integer(text, "--count", 0, INT64_MAX / 8 / SHOW_MOST_RANKS, common);
        return 0;
    case KEY_DTYPE:
        if (dtype_from_name(&show->dtype, text) != 0)
            options_refuse(common, "--dtype is \"%s\", expected one of %s", text, dtype_names());
        return 0;
    case KEY_REDUCE_DTYPE:
        if (reduce_dtype_from_name(&show->reduce_dtype, text) != 0)
            options_refuse(common, "--reduce-dtype is \"%s\", expected own or float32", text);
        show->reduce_dtype_given = true;
        return 0;
    case KEY_MEMORY:
        show->own_memory = options_word(text, "--memory", "plain", "own", common);
        show->place_given = true;
        return 0;
    case KEY_CORES:
        show->cores = options_count(text, "--cores", common);
        show->place_given = true;
        return 0;
    case KEY_SIMULATE: show->simulate = text; return 0;
    case KEY_BYTES: show->bytes = options_range(text, "--bytes", true, 0, (int64_t)1 << 50, common); return 0;
    case KEY_PLOT: show->plot = options_stem(text, "--plot", common); return 0;
    case ARGP_KEY_ARG: take_collective(text, show); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"root", KEY_ROOT, "R", 0, "of a collective that has one (0); the other side of send and recv (1)", 1},
    {"hosts", KEY_HOSTS, "H", 0, "draw the plan of two levels, for H hosts of equally many ranks", 1},
    {"bytes", KEY_BYTES, "BYTES", 0,
        "of the whole array, as in bench: draw the way that this size takes; of a range, as 4..64M, tell "
        "which sizes go which way. With --simulate (1G): of what is run", 1},
    {"memory", KEY_MEMORY, "KIND", 0, "with --bytes: plain, or own: buffers of ring_alloc() (plain)", 1},
    {"cores", KEY_CORES, "N", 0,
        "with --bytes: of each host; ranks that share them may take a star (this machine's)", 1},
    {"count", KEY_COUNT, "COUNT", 0, "elements, as in the call: adds the bytes that each rank sends", 1},
    {"dtype", KEY_DTYPE, "DTYPE", 0, "of an element (float32)", 1},
    {"reduce-dtype", KEY_REDUCE_DTYPE, "DTYPE", 0,
        "in what 16-bit sums travel: own (the default), or float32, which makes partial sums twice as wide", 1},
    {"simulate", KEY_SIMULATE, "LINKS", 0,
        "run the plan in virtual time instead, on links of alpha=TIME,beta=BANDWIDTH; nodes=N puts equal runs "
        "of "
        "ranks on N "
        "nodes, with links of alpha_node, beta_node within; slot=BYTES and slots=N of an edge (256K, 8)",
        2},
    {"plot", KEY_PLOT, "FILE.svg", 0, "draw the simulated range, by gnuplot", 2},
    {0},
};
static const struct argp_child children[] = {{&options_common, 0, "Common options:", 9}, {0}};
static const struct argp argp = {
    options,
    parse_option,
    "COLLECTIVE",
    "Draws the steps of a collective: ranks across, steps down. No rank is started (--ranks says how many "
    "to draw, 4 unless given; --device and --seed change nothing, --transport only with --bytes). COLLECTIVE is all_reduce, "
    "reduce_scatter, all_gather, broadcast, reduce, scatter, gather, all_to_all, send, recv or barrier."
    "\vA small operation does not go round the ring, but by hops, rounds, a star or a chain; a large "
    "one among ranks of one host may go by windows, in which each reads the others' memory. With --bytes "
    "the way is drawn that a call takes, with this transport, these ranks, and RINGZERO_'s variables as "
    "they are here. In a group, and on CUDA memory, it takes the plan.\n\n"
    "Two levels (--hosts) are what ranks on several hosts get where each host has the same number of them, at least two: inside "
    "each host, between hosts the ranks with the same place, inside again. RINGZERO_HIERARCHY forces either.\n\n"
    "A simulation prints a row for each number of ranks (--ranks 2..1024) or size (--bytes 1K..1G), doubled "
    "from "
    "row to row. "
    "alpha is a link's latency, beta its bandwidth; computing costs nothing. Beside it stand the formula, "
    "2(n-1) "
    "alpha + "
    "2(n-1)/n bytes/beta for an all-reduce, the plan of two levels where nodes are full, and the textbooks' all-reduce, Reduce "
    "and then Broadcast, of whole buffers.\n\n"
    "Examples:\n  ringzero show all_reduce --ranks 4 --count 1000000\n"
    "  ringzero show all_reduce --ranks 4 -b 8\n"
    "  ringzero show all_gather --ranks 4 --transport tcp -b 4..64M\n"
    "  ringzero show all_reduce --ranks 8 --hosts 2\n"
    "  ringzero show all_reduce --ranks 2..1024 --bytes 1G --plot ring.svg \\\n"
    "      --simulate alpha=5us,beta=50GB/s\n"
    "  ringzero show all_reduce --ranks 64 --bytes 1K..1G --simulate \\\n"
    "      alpha=5us,beta=50GB/s,nodes=8,alpha_node=1us,beta_node=300GB/s",
    children,
    options_help_filter,
    NULL,
};

/* What can only be judged when all options are known. */
static void check_options(struct show_options *show)
{
    const struct options *common = &show->common;
    char list[256];
    if (!show->collective_given)
        options_refuse(common, "no collective given, expected %s: see `ringzero show --help`", collective_list(list));
    bool pair = show->collective == COLLECTIVE_SEND || show->collective == COLLECTIVE_RECV;
    if (common->ranks == 0) show->common.ranks = show->common.ranks_last = SHOW_DEFAULT_RANKS;
    if (show->simulate == NULL && common->ranks != common->ranks_last)
        options_refuse(common, "--ranks is a range, expected one number to draw: ranges are for --simulate");
    if (show->simulate == NULL && common->ranks > SHOW_MOST_RANKS)
        options_refuse(common, "--ranks is %d, expected at most %d to draw", common->ranks, SHOW_MOST_RANKS);
    if (show->simulate == NULL && show->plot != NULL)
        options_refuse(common, "--plot is for a simulation, expected --simulate alpha=5us,beta=50GB/s with it");
    bool ways = show->simulate == NULL && show->bytes.first >= 0;
    if (show->place_given && !ways)
        options_refuse(common,
            "--memory and --cores are for --bytes, expected it and no --simulate with them");
    if (show->simulate != NULL && pair)
        options_refuse(common, "--simulate of %s, expected a collective that all ranks call",
            collective_name(show->collective));
    if (show->hosts > 0 && !ways && !collective_has_two_levels(show->collective))
        options_refuse(common, "--hosts is given with %s, expected a collective that has two levels: all_reduce, reduce_scatter, "
            "all_gather, reduce or barrier", collective_name(show->collective));
    if (show->hosts > 0 && show->simulate != NULL)
        options_refuse(common, "--hosts is given with --simulate, expected nodes=%d among its links", show->hosts);
    if (show->hosts > 0 && (common->ranks % show->hosts != 0 || (common->ranks == show->hosts && !ways)))
        options_refuse(common, "--hosts is %d, expected a number by which --ranks %d divides, with at least two ranks on each",
            show->hosts, common->ranks);
    if (show->count >= 0 && show->bytes.first >= 0)
        options_refuse(common, "--count and --bytes are both given, expected one of them");
    if (show->root >= 0 && !collective_is_rooted(show->collective))
        options_refuse(common, "--root is %d, expected none: %s has no root", show->root,
            collective_name(show->collective));
    if (show->reduce_dtype_given && !collective_is_reduction(show->collective))
        options_refuse(common, "--reduce-dtype is given, expected none: %s adds nothing up", collective_name(show->collective));
    if (show->root < 0) show->root = pair ? 1 : 0;
    if (show->root >= common->ranks)
        options_refuse(common, "--root is %d, expected a rank below --ranks %d", show->root, common->ranks);
    if (show->simulate != NULL && show->reduce_dtype != REDUCE_DTYPE_OWN)
        options_refuse(common, "--reduce-dtype is given with --simulate, expected one of them: elements of one width are simulated");
    if (pair && show->root == 0)
        options_refuse(
            common, "--root is 0, expected another rank: rank 0 calls %s", collective_name(show->collective));
}

/* Sizes whose way is drawn. */
static void check_bytes(const struct show_options *show)
{
    size_t unit = show_path_unit_bytes(show), last = (size_t)show->bytes.last;
    if (show->collective == COLLECTIVE_BARRIER && last > 0)
        options_refuse(&show->common, "--bytes is %zu, expected 0: a barrier carries nothing", last);
    if (show->collective != COLLECTIVE_BARRIER && last < unit)
        options_refuse(&show->common, "--bytes is %zu, expected at least %zu: one %s%s", last, unit,
            dtype_name(show->dtype), unit > dtype_bytes(show->dtype) ? " of every rank" : "");
}

struct show_options show_options_parse(int argc, char **argv)
{
    struct show_options show = {.common = options_default("ringzero show"),
        .root = -1,
        .count = -1,
        .dtype = DTYPE_FLOAT32,
        .bytes = {-1, -1}};
    show.common.takes_range = true;
    options_parse(&argp, argc, argv, &show.common, &show);
    check_options(&show);
    if (show.simulate == NULL && show.bytes.first >= 0) check_bytes(&show);
    show.level_hosts = show.hosts;
    if (show.cores == 0) show.cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return show;
}
