/* simulate: see simulate.h. What runs is ring/simulate.c; here are its options, and the formulas beside it.
 *
 *   all_reduce                    2(n−1)α + 2(n−1)/n · S/β      twice each of n−1 hops, a chunk of S/n each
 *   reduce_scatter, all_gather     (n−1)α +  (n−1)/n · S/β
 *   broadcast, reduce              (n−1)α + (S + (n−2)s)/β      slices of s bytes, down the chain
 *   scatter, gather                     α +  (n−1)/n · S/β      the root's port
 *   all_to_all                     (n−1)α +  (n−1)/n · S/β      rounds, each waits for its chunk
 *
 * They know no slices and no slots: a slice moves on while the next one comes, which hides α and makes a run
 * faster than its formula, and slots that come back α late hold it up where a chunk is short and α long.
 *
 * On nodes: β is the slower of the two links, which every chunk must pass; (n−1)α is the sum over all links of
 * the ring but one.
 */
#include "bench/simulate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/json_line.h"
#include "bench/plot.h"
#include "verbs/plural.h"

/* ---- LINKS ---- */

struct unit {
    const char *name;
    double factor;
};
static const struct unit times[] = {{"ns", 1}, {"us", 1e3}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
static const struct unit rates[] = {
    {"GB/s", 1}, {"MB/s", 1e-3}, {"KB/s", 1e-6}, {"TB/s", 1e3}, {"Gb/s", 0.125}, {"Mb/s", 0.125e-3}, {NULL, 0}};

static double parse_quantity(
    const char *key, const char *text, const struct unit *units, const struct options *options)
{
    char *end;
    double value = strtod(text, &end);
    for (const struct unit *unit = units; end != text && value >= 0 && value <= 1e12 && unit->name != NULL;
         unit++)
        if (strcmp(end, unit->name) == 0) return value * unit->factor;
    options_refuse(options, "--simulate: %s is \"%s\", expected %s", key, text,
        units == times ? "a time as 500ns, 5us or 1ms" : "a bandwidth as 50GB/s, 800MB/s or 400Gb/s");
}

static double parse_time(const char *key, const char *text, const struct options *options)
{
    return parse_quantity(key, text, times, options);
}

static double parse_rate(const char *key, const char *text, const struct options *options)
{
    double rate = parse_quantity(key, text, rates, options);
    if (rate <= 0) options_refuse(options, "--simulate: %s is \"%s\", expected more than nothing", key, text);
    return rate;
}

static void take_pair(
    struct simulate_links *links, const char *key, const char *value, const struct options *options)
{
    if (strcmp(key, "alpha") == 0) {
        links->link.latency_ns = parse_time(key, value, options);
    } else if (strcmp(key, "beta") == 0) {
        links->link.bytes_per_ns = parse_rate(key, value, options);
    } else if (strcmp(key, "alpha_node") == 0) {
        links->node_link.latency_ns = parse_time(key, value, options);
    } else if (strcmp(key, "beta_node") == 0) {
        links->node_link.bytes_per_ns = parse_rate(key, value, options);
    } else if (strcmp(key, "nodes") == 0) {
        links->nodes = (int)options_integer(value, "--simulate nodes", 1, OPTIONS_MOST_DRAWN, options);
    } else if (strcmp(key, "slot") == 0) {
        links->slot_bytes = options_bytes(value, "--simulate slot", options);
        if (links->slot_bytes == 0 || links->slot_bytes % 64 != 0)
            options_refuse(options, "--simulate slot is \"%s\", expected a multiple of 64 bytes", value);
    } else if (strcmp(key, "slots") == 0) {
        links->slot_count = (uint64_t)options_integer(value, "--simulate slots", 2, 1 << 20, options);
        if ((links->slot_count & (links->slot_count - 1)) != 0)
            options_refuse(options, "--simulate slots is \"%s\", expected a power of two", value);
    } else {
        options_refuse(options,
            "--simulate has \"%s\", expected alpha, beta, nodes, alpha_node, beta_node, slot or "
            "slots",
            key);
    }
}

struct simulate_links simulate_parse_links(const char *text, const struct options *options)
{
    struct simulate_links links = {.link = {-1, -1}, .node_link = {-1, -1}};
    char copy[512], *rest = copy, *pair;
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy)
        options_refuse(
            options, "--simulate has %zu characters, expected fewer than %zu", strlen(text), sizeof copy);
    while ((pair = strsep(&rest, ",")) != NULL) {
        char *value = strchr(pair, '=');
        if (value == NULL)
            options_refuse(options, "--simulate has \"%s\", expected KEY=VALUE, as alpha=5us", pair);
        *value = '\0';
        take_pair(&links, pair, value + 1, options);
    }
    if (links.link.latency_ns < 0 || links.link.bytes_per_ns < 0)
        options_refuse(
            options, "--simulate is \"%s\", expected alpha and beta at least, as alpha=5us,beta=50GB/s", text);
    bool node_keys = links.node_link.latency_ns >= 0 || links.node_link.bytes_per_ns >= 0;
    if (node_keys && links.nodes == 0)
        options_refuse(options, "--simulate has alpha_node or beta_node, expected nodes=N with it");
    if (links.node_link.latency_ns < 0) links.node_link.latency_ns = links.link.latency_ns;
    if (links.node_link.bytes_per_ns < 0) links.node_link.bytes_per_ns = links.link.bytes_per_ns;
    return links;
}

/* ---- formulas ---- */

/* α per hop of the chain or ring, and the part of S that the slowest link carries, both in the units of the
 * head's table. */
struct law {
    double hops, parts; /* times (n−1)α; times S/β */
    bool chain;
};

static struct law law_of(enum collective collective, int nranks)
{
    double n = nranks, share = (n - 1) / n;
    if (nranks == 1) return (struct law){0};
    if (collective == COLLECTIVE_ALL_REDUCE) return (struct law){2, 2 * share, false};
    if (collective == COLLECTIVE_BARRIER) return (struct law){2, 0, false};
    bool chain = collective == COLLECTIVE_BROADCAST || collective == COLLECTIVE_REDUCE;
    bool direct = collective == COLLECTIVE_SCATTER || collective == COLLECTIVE_GATHER;
    return (struct law){direct ? 1 / (n - 1) : 1, chain ? 1 : share, chain};
}

/* Sum of α over the links of the ring, without the fastest. */
static double round_latency_ns(const struct simulate_config *config)
{
    int n = config->nranks, node = config->node_ranks > 1 ? config->node_ranks : 1;
    int nodes = (n + node - 1) / node, between = nodes > 1 ? nodes : 0, within = n - between;
    double slow = config->link.latency_ns, fast = config->node_link.latency_ns;
    return between * slow + within * fast - (within > 0 && (fast < slow || between == 0) ? fast : slow);
}

/* ---- rows ---- */

struct row {
    int ranks;
    double bytes, time_ns, latency_ns, formula_ns;
    double tree_ns, star_ns; /* all_reduce only, else -1 */
    double two_level_ns;     /* of full nodes, else -1 */
    double alg_bw, bus_bw;
};

/* As ranks on such hosts would choose. */
static bool has_two_levels(const struct simulate_config *config)
{
    int m = config->node_ranks;
    return m > 1 && config->nranks > m && config->nranks % m == 0 && collective_has_two_levels(config->collective);
}

static enum status run_row(struct row *row, const struct simulate_request *request, int ranks, int64_t bytes)
{
    const struct simulate_links *links = &request->links;
    struct simulate_config config = {
        .collective = request->collective,
        .nranks = ranks,
        .root = request->root < ranks ? request->root : 0,
        .element_bytes = request->element_bytes,
        .link = links->link,
        .node_link = links->node_link,
        .node_ranks = links->nodes > 0 ? (ranks + links->nodes - 1) / links->nodes : 0,
        .slot_bytes = links->slot_bytes,
        .slot_count = links->slot_count,
    };
    struct plan plan = plan_make(request->collective, ranks, 0, config.root);
    bool parts = plan.chunks > 1 && request->collective != COLLECTIVE_ALL_REDUCE; /* count is one rank's part */
    config.count =
        bytes < 0 ? (size_t)request->count * (parts ? (size_t)ranks : 1) : (size_t)bytes / config.element_bytes;
    if (request->collective == COLLECTIVE_BARRIER) config.count = 0;

    struct simulate_result result;
    TRY(simulate_run(&result, &config));
    struct law law = law_of(request->collective, ranks);
    bool has_nodes = config.node_ranks > 1;
    double slowest = !has_nodes ? links->link.bytes_per_ns
                     : ranks <= config.node_ranks || links->node_link.bytes_per_ns < links->link.bytes_per_ns
                         ? links->node_link.bytes_per_ns
                         : links->link.bytes_per_ns;
    *row = (struct row){.ranks = ranks,
        .bytes = (double)config.count * (double)config.element_bytes,
        .time_ns = result.time_ns,
        .tree_ns = -1,
        .star_ns = -1,
        .two_level_ns = -1};
    row->latency_ns = ranks > 1 ? law.hops * round_latency_ns(&config) : 0;
    double fill = law.chain && result.slices > 1 ? (double)(ranks - 2) * (double)result.slice_bytes : 0;
    row->formula_ns = row->latency_ns + (law.parts * row->bytes + fill) / slowest;
    row->alg_bw = result.time_ns > 0 ? row->bytes / result.time_ns : 0;
    row->bus_bw = row->alg_bw * law.parts;
    config.two_level = true;
    if (has_two_levels(&config)) {
        TRY(simulate_run(&result, &config));
        row->two_level_ns = result.time_ns;
    }
    config.two_level = false;
    if (request->collective != COLLECTIVE_ALL_REDUCE) return STATUS_OK;
    config.algorithm = SIMULATE_TREE;
    TRY(simulate_run(&result, &config));
    row->tree_ns = result.time_ns;
    config.algorithm = SIMULATE_STAR;
    TRY(simulate_run(&result, &config));
    row->star_ns = result.time_ns;
    return STATUS_OK;
}

/* ---- output ---- */

static void print_us(double ns)
{
    if (ns < 0) return;
    double us = ns / 1e3;
    printf("  %13.*f", us >= 10000 ? 0 : us >= 100 ? 1 : 2, us);
}

/* In a column, where some row may have them. */
static bool shows_two_levels(const struct simulate_request *request)
{
    return request->links.nodes > 1 && collective_has_two_levels(request->collective);
}

static void print_head(const struct simulate_request *request)
{
    const struct simulate_links *links = &request->links;
    bool naive = request->collective == COLLECTIVE_ALL_REDUCE, levels = shows_two_levels(request);
    printf("# %s in virtual time: α %g us, β %g GB/s", collective_name(request->collective),
        links->link.latency_ns / 1e3, links->link.bytes_per_ns);
    if (links->nodes > 0)
        printf(" between %d node%s; %g us, %g GB/s within one", links->nodes, PLURAL(links->nodes),
            links->node_link.latency_ns / 1e3,
            links->node_link.bytes_per_ns);
    printf("\n#%9s  %13s  %13s  %8s  %8s  %13s  %13s%s%s\n", "ranks", "size", "time", "algbw", "busbw", "formula",
        "of it α", levels ? "     two levels" : "", naive ? "  Reduce + Broadcast:" : "");
    printf("#%9s  %13s  %13s  %8s  %8s  %13s  %13s", "", "(B)", "(us)", "(GB/s)", "(GB/s)", "(us)", "(us)");
    printf("%s", levels ? "           (us)" : "");
    printf(naive ? "  %13s  %13s\n" : "\n", "tree (us)", "star (us)");
}

static void print_row(const struct row *row, bool levels)
{
    printf("%10d  %13.0f", row->ranks, row->bytes);
    print_us(row->time_ns);
    printf("  %8.2f  %8.2f", row->alg_bw, row->bus_bw);
    print_us(row->formula_ns);
    print_us(row->latency_ns);
    if (levels && row->two_level_ns < 0) printf("  %13s", "-");
    print_us(row->two_level_ns);
    print_us(row->tree_ns);
    print_us(row->star_ns);
    printf("\n");
}

static enum status write_json(const struct row *row, enum collective collective, FILE *file)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "collective", collective_name(collective));
    cJSON_AddNumberToObject(object, "ranks", row->ranks);
    cJSON_AddNumberToObject(object, "size", row->bytes);
    cJSON_AddNumberToObject(object, "time", row->time_ns / 1e3);
    cJSON_AddNumberToObject(object, "alg_bw", row->alg_bw);
    cJSON_AddNumberToObject(object, "bus_bw", row->bus_bw);
    cJSON_AddNumberToObject(object, "formula", row->formula_ns / 1e3);
    cJSON_AddNumberToObject(object, "latency", row->latency_ns / 1e3);
    if (row->tree_ns >= 0) cJSON_AddNumberToObject(object, "tree", row->tree_ns / 1e3);
    if (row->star_ns >= 0) cJSON_AddNumberToObject(object, "star", row->star_ns / 1e3);
    if (row->two_level_ns >= 0) cJSON_AddNumberToObject(object, "two_level", row->two_level_ns / 1e3);
    return json_line_write(file, object);
}

/* x, ring, formula, two levels (or ?), tree, star. */
static void write_data(const struct row *row, bool over_ranks, FILE *data)
{
    fprintf(data, "%.0f %.9g %.9g", over_ranks ? (double)row->ranks : row->bytes, row->time_ns / 1e9,
        row->formula_ns / 1e9);
    if (row->two_level_ns >= 0) fprintf(data, " %.9g", row->two_level_ns / 1e9);
    else fprintf(data, " ?"); /* gnuplot's word for no value */
    if (row->tree_ns >= 0) fprintf(data, " %.9g %.9g", row->tree_ns / 1e9, row->star_ns / 1e9);
    fprintf(data, "\n");
}

/* Doubles, but ends with the last. */
static bool range_next(int64_t *value, const struct options_range *range)
{
    if (*value >= range->last) return false;
    *value = *value == 0 ? 1 : *value > range->last / 2 ? range->last : 2 * *value;
    return true;
}

static enum status print_rows(const struct simulate_request *request, bool over_ranks, FILE *json, FILE *data)
{
    int64_t ranks = request->ranks.first, bytes;
    do {
        bytes = request->bytes.first;
        do {
            struct row row = {0};
            TRY(run_row(&row, request, (int)ranks, bytes));
            print_row(&row, shows_two_levels(request));
            if (json != NULL) TRY(write_json(&row, request->collective, json));
            if (data != NULL) write_data(&row, over_ranks, data);
        } while (range_next(&bytes, &request->bytes));
    } while (range_next(&ranks, &request->ranks));
    return STATUS_OK;
}

static struct plot plot_of(const struct simulate_request *request, bool over_ranks, char title[256])
{
    const struct simulate_links *links = &request->links;
    int used = snprintf(title, 256, "%s, simulated: α %g us, β %g GB/s", collective_name(request->collective),
        links->link.latency_ns / 1e3, links->link.bytes_per_ns);
    if (over_ranks && request->bytes.first >= 0)
        snprintf(title + used, 256 - (size_t)used, ", %lld byte%s", (long long)request->bytes.first,
            PLURAL(request->bytes.first));
    else if (!over_ranks)
        snprintf(title + used, 256 - (size_t)used, ", %lld rank%s", (long long)request->ranks.first,
            PLURAL(request->ranks.first));
    struct plot plot = {
        .file = request->plot,
        .title = title,
        .x_label = over_ranks ? "ranks" : "bytes",
        .y_label = "seconds",
        .x_bytes = !over_ranks,
        .y_log = true,
        .series = {{"ring", 2, PLOT_LINE}, {"formula", 3, PLOT_THIN}},
    };
    int next = 2;
    if (shows_two_levels(request)) plot.series[next++] = (struct plot_series){"two levels", 4, PLOT_LINE};
    if (request->collective != COLLECTIVE_ALL_REDUCE) return plot;
    plot.series[next++] = (struct plot_series){"Reduce + Broadcast, binomial tree", 5, PLOT_LINE};
    plot.series[next] = (struct plot_series){"Reduce + Broadcast, all with rank 0", 6, PLOT_LINE};
    return plot;
}

static enum status print_all(const struct simulate_request *request, FILE *json)
{
    bool over_ranks = request->ranks.first < request->ranks.last;
    char title[256];
    struct plot plot = plot_of(request, over_ranks, title);
    FILE *data = NULL;
    if (request->plot != NULL) data = plot_open(&plot);
    if (request->plot != NULL && data == NULL) return STATUS_SYSTEM;
    print_head(request);
    enum status status = print_rows(request, over_ranks, json, data);
    if (data == NULL) return status;
    if (status == STATUS_OK) return plot_close(data, &plot);
    fclose(data);
    return status;
}

int simulate_print(const struct simulate_request *request)
{
    const struct options *common = request->common;
    bool ranges = request->ranks.first < request->ranks.last || request->bytes.first < request->bytes.last;
    if (request->plot != NULL && !ranges)
        options_refuse(common, "--plot draws a range, found none: use --ranks 2..1024 or --bytes 1K..1G");
    FILE *json = options_open_json(common);
    enum status status = print_all(request, json);
    if (json != NULL && fclose(json) != 0 && status == STATUS_OK)
        status = FAIL(STATUS_SYSTEM, "--json %s: writing failed: %s", common->json, strerror(errno));
    if (status == STATUS_OK) return fflush(stdout) == 0 ? 0 : 1;
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", common->program, status_text());
    return status == STATUS_INVALID ? 2 : 1;
}
