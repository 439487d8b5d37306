/* show: `ringzero show COLLECTIVE --ranks N` draws the plan of a collective (show_table.c), and says what it costs. It
 * knows only ring/plan.h: what it draws is what the executors run. No rank is started.
 *   --bytes     the way that a call of that size takes (ring/path.h, show_path.c), and of a range of
 *               sizes which go which way (show_sizes.c)
 *   --simulate  the plan in virtual time (simulate.c)
 */
#include <stdio.h>

#include "bench/json_line.h"
#include "bench/programs.h"
#include "bench/show_options.h"
#include "bench/show_path.h"
#include "bench/show_plan.h"
#include "bench/show_sizes.h"
#include "bench/show_table.h"
#include "bench/simulate.h"
#include "verbs/plural.h"

/* ---- costs ---- */

/* What a rank's chunks weigh when partial sums have two elements' bytes: in own-dtype chunks. */
static void print_wide_cost(const struct show_options *show, const struct plan *plan)
{
    int partial = 0, complete = 0;
    for (int i = 0; i < plan->steps; i++) {
        struct plan_step step = plan_step_at(plan, i);
        bool is_partial = primitive_sends_partial(step.primitive, plan->collective);
        partial += step.to >= 0 && is_partial;
        complete += step.to >= 0 && !is_partial;
    }
    printf("in float32     partial sums are twice as wide as %s: %d chunk%s of 4 bytes an element, %d of 2: "
           "%g times the bytes\n",
        dtype_name(show->dtype), partial, PLURAL(partial), complete, (2.0 * partial + complete) / (partial + complete));
}

/* The laws behind the table. n: ranks. */
static const struct {
    const char *steps, *sent;
} laws[COLLECTIVE_COUNT] = {
    [COLLECTIVE_ALL_REDUCE] = {"2n − 1", "2(n−1) chunks of 1/n of the buffer: 2(n−1)/n of its bytes"},
    [COLLECTIVE_REDUCE_SCATTER] = {"n", "n−1 chunks of 1/n of the send buffer: (n−1)/n of its bytes"},
    [COLLECTIVE_ALL_GATHER] = {"n", "n−1 chunks of 1/n of the receive buffer: (n−1)/n of its bytes"},
    [COLLECTIVE_BROADCAST] = {NULL,
        "the whole buffer, by every rank but the last; slices follow one another down n−1 hops"},
    [COLLECTIVE_REDUCE] = {NULL,
        "the whole buffer, by every rank but the root; slices follow one another down n−1 hops"},
    [COLLECTIVE_SCATTER] = {"n at the root, 1 elsewhere", "all chunks but its own, by the root"},
    [COLLECTIVE_GATHER] = {"n at the root, 1 elsewhere", "its own chunk, by every rank but the root"},
    [COLLECTIVE_ALL_TO_ALL] = {"2n − 1",
        "n−1 chunks, each to another rank: (n−1)/n of the send buffer's bytes"},
    [COLLECTIVE_SEND] = {NULL, "the whole buffer, by the sender"},
    [COLLECTIVE_RECV] = {NULL, "the whole buffer, by the sender"},
    [COLLECTIVE_BARRIER] = {"2n − 1", "2(n−1) empty messages: an all-reduce of nothing"},
};

/* m ranks on each of H hosts. */
static const char *two_level_steps_law(enum collective collective)
{
    switch (collective) {
    case COLLECTIVE_REDUCE_SCATTER: return "n";
    case COLLECTIVE_ALL_GATHER: return "n + H − 1";
    case COLLECTIVE_REDUCE: return NULL;
    default: return "2n + H − 2";
    }
}

/* What two levels are for. */
static void print_border_cost(const struct show_options *show, const struct plan *plan)
{
    int m = plan->host_ranks, two_level = 0, flat = 0;
    for (int rank = 0; rank < m; rank++) {
        struct plan levels = show_plan(show, rank), ring = plan_make(plan->collective, plan->nranks, rank, plan->root);
        two_level += plan_chunks_across(&levels, m);
        flat += plan_chunks_across(&ring, m);
    }
    printf("out of a host  %d chunks by its %d ranks; round one ring of all ranks %d\n", two_level, m, flat);
}

static void print_costs(const struct show_options *show, const struct plan *plan)
{
    int n = plan->nranks, least = plan->chunks * n, most = 0;
    for (int rank = 0; rank < n; rank++) {
        struct plan other = show_plan(show, rank);
        int sent = plan_chunks_sent(&other);
        if (sent < least) least = sent;
        if (sent > most) most = sent;
    }
    const char *law = n > 1 ? laws[show->collective].steps : NULL;
    if (plan->host_ranks > 1) law = two_level_steps_law(show->collective);
    printf("\nsteps          %d%s%s\n", show_most_steps(show), law != NULL ? " = " : "", law != NULL ? law : "");
    printf("sent per rank  ");
    if (least != most) printf("%d or ", least);
    printf("%d chunk%s", most, PLURAL(most));
    printf(n > 1 ? " = %s\n" : "\n", laws[show->collective].sent);
    if (plan->host_ranks > 1 && !collective_is_rooted(show->collective)) print_border_cost(show, plan);
    struct plan sender = show_plan(show, (show->root + 1) % n); /* of reduce all but the root send */
    if (show_sums_are_wide(show)) print_wide_cost(show, &sender);
    if (show->count < 0) return;
    printf("sent bytes     --count %lld, %s:", (long long)show->count, dtype_name(show->dtype));
    size_t first = show_sent_bytes(show, 0);
    bool all_same = true;
    for (int rank = 1; rank < n; rank++) all_same &= show_sent_bytes(show, rank) == first;
    if (all_same) {
        printf(" %zu by every rank\n", first);
        return;
    }
    printf("\n");
    for (int rank = 0; rank < n; rank++)
        printf("               rank %-4d %zu\n", rank, show_sent_bytes(show, rank));
}

/* ---- JSON: one object per step and rank, then one with the sums ---- */

static enum status write_json(FILE *file, const struct show_options *show, const struct plan *plan)
{
    for (int i = 0, steps = show_most_steps(show); i < steps; i++)
        for (int rank = 0; rank < plan->nranks; rank++) {
            struct plan_step step = show_step(show, rank, i);
            if (step.primitive == PRIMITIVE_NONE) continue;
            cJSON *object = cJSON_CreateObject();
            cJSON_AddNumberToObject(object, "step", i);
            cJSON_AddNumberToObject(object, "rank", rank);
            cJSON_AddStringToObject(object, "primitive", primitive_name(step.primitive));
            cJSON_AddNumberToObject(object, "chunk", step.chunk);
            cJSON_AddNumberToObject(object, "from", step.from);
            cJSON_AddNumberToObject(object, "to", step.to);
            if (step.joins >= 0) cJSON_AddNumberToObject(object, "joins", step.joins);
            TRY(json_line_write(file, object));
        }
    cJSON *sums = cJSON_CreateObject();
    cJSON_AddStringToObject(sums, "collective", collective_name(show->collective));
    cJSON_AddNumberToObject(sums, "ranks", plan->nranks);
    cJSON_AddNumberToObject(sums, "root", show->root);
    cJSON_AddNumberToObject(sums, "steps", show_most_steps(show));
    if (show->level_hosts > 0) cJSON_AddNumberToObject(sums, "hosts", show->level_hosts);
    cJSON *border = show->level_hosts > 0 ? cJSON_AddArrayToObject(sums, "border_chunks") : NULL;
    cJSON *chunks = cJSON_AddArrayToObject(sums, "sent_chunks");
    cJSON *bytes = show->count >= 0 ? cJSON_AddArrayToObject(sums, "sent_bytes") : NULL;
    for (int rank = 0; rank < plan->nranks; rank++) {
        struct plan other = show_plan(show, rank);
        cJSON_AddItemToArray(chunks, cJSON_CreateNumber(plan_chunks_sent(&other)));
        if (border != NULL) cJSON_AddItemToArray(border, cJSON_CreateNumber(plan_chunks_across(&other, show_host_ranks(show))));
        if (bytes != NULL) cJSON_AddItemToArray(bytes, cJSON_CreateNumber((double)show_sent_bytes(show, rank)));
    }
    return json_line_write(file, sums);
}

static void draw(const struct show_options *show, const struct plan *plan)
{
    int n = plan->nranks;
    printf("%s, %d rank%s", collective_name(show->collective), n, PLURAL(n));
    if (show->level_hosts > 0) {
        printf(", %d hosts of %d, in two levels", show->level_hosts, show_host_ranks(show));
    } else if (n > 1 && n <= 8 && collective_is_on_ring(show->collective)) {
        printf(", ring ");
        for (int rank = 0; rank < n; rank++) printf("%d ► ", rank);
        printf("0");
    }
    if (plan->chunks > 1) printf(": %d chunks, chunk c belongs to rank c", plan->chunks);
    else if (n > 1) printf(": one chunk");
    if (collective_is_rooted(show->collective)) printf(", root %d", show->root);
    printf("\n\n");
    show_table_print(show);
    print_costs(show, plan);
}

static int simulate(const struct show_options *show)
{
    struct simulate_request request = {
        .common = &show->common,
        .collective = show->collective,
        .root = show->root,
        .ranks = {show->common.ranks, show->common.ranks_last},
        .bytes = show->bytes,
        .count = show->count,
        .element_bytes = dtype_bytes(show->dtype),
        .links = simulate_parse_links(show->simulate, &show->common),
        .plot = show->plot,
    };
    if (show->count < 0 && show->bytes.first < 0) request.bytes = (struct options_range){1 << 30, 1 << 30};
    return simulate_print(&request);
}

/* ---- the way of a size ---- */

/* One way: as a plan, or as what goes beside it. */
static enum status show_one(FILE *json, struct show_options *show, struct path_comm *comm)
{
    struct path path;
    const struct ring_call call = show_path_call((size_t)show->bytes.first, show);
    enum status status;
    TRY_GOTO(path_make(&path, &call, comm));
    printf("%s of %zu bytes (%zu %s%s), ", collective_name(show->collective), call.count * show_path_unit_bytes(show), call.count,
        dtype_name(show->dtype), show_path_unit_bytes(show) > dtype_bytes(show->dtype) ? " of every rank" : "");
    show_path_print_ranks(show, comm);
    if (path.kind != PATH_PLAN) {
        show_path_print(&path, &call, show, comm);
        if (json != NULL) TRY_GOTO(show_path_write_json(json, &path, &call, show, comm));
    } else {
        struct plan plan = show_plan(show, 0);
        show->count = (int64_t)call.count;
        printf(": %s\n\n", show_path_way(path.kind, show, comm));
        draw(show, &plan);
        if (json != NULL) TRY_GOTO(write_json(json, show, &plan));
    }
    TRY_GOTO(show_sizes_print_line(show, comm));
fail:
    path_free(&path);
    return status;
}

static enum status show_ways(FILE *json, struct show_options *show)
{
    struct path_comm *comm;
    TRY(show_path_open(&comm, show));
    show->level_hosts = path_host_ranks(comm) > 1 && collective_has_two_levels(show->collective) ? show->hosts : 0;
    enum status status = show->bytes.first == show->bytes.last ? show_one(json, show, comm)
                                                               : show_sizes_print_table(json, show, comm);
    path_comm_close(comm);
    return status;
}

/* A count may be one that does not take the plan. */
static enum status tell_way(const struct show_options *show)
{
    struct path_comm *comm;
    if (show->count < 0) return STATUS_OK;
    TRY(show_path_open(&comm, show));
    size_t bytes = (size_t)show->count * show_path_unit_bytes(show);
    const struct ring_call call = show_path_call(bytes, show);
    enum path_kind kind = path_kind_of(&call, comm);
    if (kind != PATH_PLAN)
        printf("another way    over %s such a call goes by %s: --bytes %zu draws that\n",
            path_transport(0, show->common.ranks - 1, comm), show_path_way(kind, show, comm), bytes);
    path_comm_close(comm);
    return STATUS_OK;
}

static enum status show_plans(FILE *json, const struct show_options *show)
{
    struct plan plan = show_plan(show, 0);
    draw(show, &plan);
    TRY(tell_way(show));
    return json != NULL ? write_json(json, show, &plan) : STATUS_OK;
}

int show_main(int argc, char **argv)
{
    struct show_options show = show_options_parse(argc, argv);
    if (show.simulate != NULL) return simulate(&show);
    FILE *json = options_open_json(&show.common);
    enum status status = show.bytes.first >= 0 ? show_ways(json, &show) : show_plans(json, &show);
    status = options_close_json(json, status, &show.common);
    if (status != STATUS_OK) fprintf(stderr, "ringzero show: %s\n", status_text());
    if (status == STATUS_INVALID) return 2;
    return status == STATUS_OK && fflush(stdout) == 0 ? 0 : 1;
}
