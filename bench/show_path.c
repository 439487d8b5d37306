/* show_path: see show_path.h. */
#include "bench/show_path.h"

#include <stdlib.h>
#include <string.h>

#include "bench/json_line.h"
#include "bench/plan_print.h"
#include "bench/show_plan.h"
#include "verbs/plural.h"

#define TABLE_RANKS 4
#define CELL_BYTES  2048 /* a line of a cell: 15 messages of 8 parts */

/* ---- what is asked for ---- */

enum status show_path_open(struct path_comm **comm, const struct show_options *show)
{
    const struct path_place place = {.nranks = show->common.ranks,
        .hosts = show->hosts > 0 ? show->hosts : 1,
        .cores = show->cores,
        .own_memory = show->own_memory,
        .config = {.transport = show->common.transport}};
    return path_comm_open(comm, &place);
}

/* Whether the call's count is that of one rank's part. */
static bool counts_parts(enum collective collective)
{
    return collective != COLLECTIVE_ALL_REDUCE && collective != COLLECTIVE_BARRIER &&
           collective_chunks(collective, 2) > 1;
}

size_t show_path_unit_bytes(const struct show_options *show)
{
    size_t parts = counts_parts(show->collective) ? (size_t)show->common.ranks : 1;
    return parts * dtype_bytes(show->dtype);
}

struct ring_call show_path_call(size_t bytes, const struct show_options *show)
{
    bool is_barrier = show->collective == COLLECTIVE_BARRIER;
    return (struct ring_call){.collective = show->collective,
        .dtype = show->dtype,
        .redop = REDOP_SUM,
        .root = show->root,
        .count = is_barrier ? 0 : bytes / show_path_unit_bytes(show),
        .reduce_dtype = show->reduce_dtype};
}

const char *show_path_way(
    enum path_kind kind, const struct show_options *show, const struct path_comm *comm)
{
    if (kind != PATH_PLAN) return path_kind_name(kind);
    if (path_host_ranks(comm) > 1 && collective_has_two_levels(show->collective))
        return "two levels";
    return collective_is_on_ring(show->collective) ? "ring" : "direct";
}

bool show_path_is_by_lines(const struct path *path)
{
    bool all = path->message_count > 0;
    for (int m = 0; m < path->message_count; m++) all = all && path->messages[m].by_lines;
    return all;
}

void show_path_print_ranks(const struct show_options *show, const struct path_comm *comm)
{
    int n = show->common.ranks, hosts = show->hosts > 0 ? show->hosts : 1;
    printf("%d rank%s of ", n, PLURAL(n));
    if (hosts == 1) printf("one host over %s", path_transport(0, n - 1, comm));
    else if (hosts == n) printf("%d hosts over %s", hosts, path_transport(0, n - 1, comm));
    else
        printf("%d hosts over %s, and %s between hosts", hosts, path_transport(0, 1, comm),
            path_transport(0, n - 1, comm));
}

/* ---- what a rank does in a turn ---- */

enum doing { DOING_SENDS, DOING_RECEIVES, DOING_ADDS, DOINGS };

struct text {
    char *at;
    size_t left;
};

#define WRITE(text, ...)                                                                           \
    do {                                                                                           \
        int written = snprintf((text)->at, (text)->left, __VA_ARGS__);                             \
        (text)->at += written;                                                                     \
        (text)->left -= (size_t)written;                                                           \
    } while (0)

static void write_block(struct text *text, struct path_block block)
{
    if (block.from < 0 && block.chunk < 0) WRITE(text, " all");
    else if (block.from < 0) WRITE(text, " c%d", block.chunk);
    else if (block.chunk < 0) WRITE(text, " in%d", block.from);
    else WRITE(text, " %dc%d", block.from, block.chunk);
}

static bool hold_the_same(
    const struct path_message *a, const struct path_message *b, const struct path *path)
{
    const struct path_block *x = &path->blocks[a->first_block], *y = &path->blocks[b->first_block];
    if (a->blocks != b->blocks) return false;
    for (int i = 0; i < a->blocks; i++)
        if (x[i].from != y[i].from || x[i].chunk != y[i].chunk) return false;
    return true;
}

/* The rank's next message of a turn after the m-th of the path; −1: it has no more. */
static int next_of(int m, bool sends, int turn, int rank, const struct path *path)
{
    while (++m < path->message_count) {
        const struct path_message *message = &path->messages[m];
        if (message->turn == turn && (sends ? message->from : message->to) == rank) return m;
    }
    return -1;
}

/* "►1,2,3 in0", "◄1 c1  ◄2 c2": what is alike once. */
static void write_messages(
    struct text *text, bool sends, int turn, int rank, const struct path *path)
{
    const char *gap = "";
    int m = next_of(-1, sends, turn, rank, path);
    while (m >= 0) {
        const struct path_message *first = &path->messages[m], *message;
        WRITE(text, "%s%s%d", gap, sends ? "►" : "◄", sends ? first->to : first->from);
        for (;;) {
            m = next_of(m, sends, turn, rank, path);
            message = m >= 0 ? &path->messages[m] : NULL;
            if (message == NULL || !hold_the_same(first, message, path)) break;
            WRITE(text, ",%d", sends ? message->to : message->from);
        }
        for (int b = 0; b < first->blocks; b++)
            write_block(text, path->blocks[first->first_block + b]);
        gap = "  ";
    }
}

static void write_sums(struct text *text, int turn, int rank, const struct path *path)
{
    bool first = true;
    for (int s = 0; s < path->sum_count; s++) {
        const struct path_sum *sum = &path->sums[s];
        if (sum->turn != turn || sum->rank != rank) continue;
        if (first) WRITE(text, "adds");
        write_block(text, (struct path_block){-1, sum->chunk});
        first = false;
    }
}

/* Empty: it does nothing of the kind. */
static void describe(
    char cell[CELL_BYTES], enum doing doing, int turn, int rank, const struct path *path)
{
    struct text text = {cell, CELL_BYTES};
    cell[0] = '\0';
    if (doing == DOING_ADDS) write_sums(&text, turn, rank, path);
    else write_messages(&text, doing == DOING_SENDS, turn, rank, path);
}

/* ---- the table ---- */

static int columns(const char *text)
{
    return (int)strlen(text) - plan_continuation_bytes(text);
}

static int widest(const struct path *path, int n)
{
    char cell[CELL_BYTES];
    int width = 6; /* "rank 0" */
    for (int turn = 0; turn < path->turns; turn++)
        for (int rank = 0; rank < n; rank++)
            for (int doing = 0; doing < DOINGS; doing++) {
                describe(cell, (enum doing)doing, turn, rank, path);
                if (columns(cell) > width) width = columns(cell);
            }
    return width;
}

/* The last of a line is not padded. */
static void print_cell(const char *cell, int width, bool last)
{
    if (last && cell[0] == '\0') printf(" │\n");
    else if (last) printf(" │ %s\n", cell);
    else printf(" │ %-*s", width + plan_continuation_bytes(cell), cell);
}

static void print_rule(int n, int width)
{
    printf("─────");
    for (int rank = 0; rank < n; rank++) {
        printf("┼");
        for (int i = 0; i < width + 2; i++) printf("─");
    }
    printf("\n");
}

static void print_table(const struct path *path, int n)
{
    char cell[CELL_BYTES];
    int width = widest(path, n);
    printf("turn");
    for (int rank = 0; rank < n; rank++) {
        snprintf(cell, sizeof cell, "rank %d", rank);
        print_cell(cell, width, rank == n - 1);
    }
    print_rule(n, width);
    for (int turn = 0; turn < path->turns; turn++) {
        bool first = true;
        for (int doing = 0; doing < DOINGS; doing++) {
            bool any = false;
            for (int rank = 0; rank < n; rank++) {
                describe(cell, (enum doing)doing, turn, rank, path);
                any |= cell[0] != '\0';
            }
            if (!any) continue;
            if (first) printf("%4d", turn);
            else printf("%4s", "");
            first = false;
            for (int rank = 0; rank < n; rank++) {
                describe(cell, (enum doing)doing, turn, rank, path);
                print_cell(cell, width, rank == n - 1);
            }
        }
    }
}

static void print_list(const struct path *path, int n)
{
    char cell[CELL_BYTES];
    for (int turn = 0; turn < path->turns; turn++)
        for (int rank = 0; rank < n; rank++)
            for (int doing = 0; doing < DOINGS; doing++) {
                describe(cell, (enum doing)doing, turn, rank, path);
                if (cell[0] != '\0') printf("turn %-3d  rank %-3d  %s\n", turn, rank, cell);
            }
}

static void print_key(const struct path *path)
{
    bool adds = path->sum_count > 0, input = false, part = false, chunk = false, all = false;
    for (int b = 0; b < path->block_count; b++) {
        const struct path_block *block = &path->blocks[b];
        input |= block->from >= 0 && block->chunk < 0;
        part |= block->from >= 0 && block->chunk >= 0;
        chunk |= block->from < 0 && block->chunk >= 0;
        all |= block->from < 0 && block->chunk < 0;
    }
    for (int s = 0; s < path->sum_count; s++) {
        chunk |= path->sums[s].chunk >= 0;
        all |= path->sums[s].chunk < 0;
    }
    printf(path->kind == PATH_WINDOWS ? "\n►1 lets rank 1 read it   ◄1 reads it from rank 1"
                                      : "\n►1 sends to rank 1   ◄1 receives from rank 1");
    printf(adds ? "   adds everyone's inputs, in the order of large ones\n" : "\n");
    if (input) printf("in2: the input of rank 2\n");
    if (part) printf("2c1: rank 2's input to chunk 1\n");
    if (chunk) printf("c1: chunk 1, complete\n");
    if (all) printf("all: the whole array, complete\n");
}

/* ---- what it is, and what it costs ---- */

static const char *const whys[PATH_KIND_COUNT] = {
    [PATH_HOPS] = "everyone tells everyone at once: what a few bytes cost is the turns they take",
    [PATH_ROUNDS] = "each turn reaches twice as far: messages cost system calls, so there are few",
    [PATH_STAR] =
        "all by way of rank 0: ranks that share cores take turns on them too, so few messages",
    [PATH_CHAIN] =
        "each rank tells the next: with shared cores a row of broadcasts goes as fast as one sends",
    [PATH_WINDOWS] = "who needs data reads them where they lie, once: nothing is passed on",
};

/* The way of large ones. */
static const char *plan_words(const struct show_options *show)
{
    return show_host_ranks(show) > 1 ? "in two levels" : "round the ring";
}

/* Of what ranks send: "24 by every rank", "8 to 24 by a rank". */
static void print_spread(uint64_t least, uint64_t most)
{
    if (least == most) printf("%llu by every rank", (unsigned long long)most);
    else printf("%llu to %llu by a rank", (unsigned long long)least, (unsigned long long)most);
}

static int sent_messages(int rank, const struct path *path)
{
    int count = 0;
    for (int m = 0; m < path->message_count; m++) count += path->messages[m].from == rank;
    return count;
}

static void print_messages(const struct path *path, const struct show_options *show)
{
    int n = show->common.ranks, least = path->message_count, most = 0, ring = 0;
    for (int rank = 0; rank < n; rank++) {
        int count = sent_messages(rank, path);
        if (count < least) least = count;
        if (count > most) most = count;
        struct plan plan = show_plan(show, rank);
        ring += plan_chunks_sent(&plan);
    }
    int steps = show_most_steps(show);
    printf(
        "turns          %d; %s %d step%s\n", path->turns, plan_words(show), steps, PLURAL(steps));
    printf("messages       ");
    print_spread((uint64_t)least, (uint64_t)most);
    printf(", %d in all; %s %d\n", path->message_count, plan_words(show), ring);
}

/* Where the data of a message are meanwhile. */
static const char *by_what(const struct path *path, const struct show_options *show)
{
    if (path->kind != PATH_WINDOWS)
        return show_path_is_by_lines(path) ? "by lines: the flag is in the data's own cache lines"
                                           : "in a slot";
    if (show->own_memory) return "in the sender's buffer, of ring_alloc(), where it is read";
    if (show->common.ranks == 2 && show->collective == COLLECTIVE_ALL_GATHER)
        return "in the sender's buffer, from which the kernel copies it (if it may; else round the "
               "ring)";
    return "piece by piece in a stage, into which it is copied for all readers (--memory own: not)";
}

static void print_bytes(const struct path *path, const struct ring_call *call,
    const struct show_options *show, struct path_comm *comm)
{
    struct show_options counted = *show;
    counted.count = (int64_t)call->count;
    uint64_t least = UINT64_MAX, most = 0, plan_least = UINT64_MAX, plan_most = 0, largest = 0;
    for (int rank = 0; rank < show->common.ranks; rank++) {
        uint64_t sent = path_sent_bytes(call, rank, comm), plan = show_sent_bytes(&counted, rank);
        if (sent < least) least = sent;
        if (sent > most) most = sent;
        if (plan < plan_least) plan_least = plan;
        if (plan > plan_most) plan_most = plan;
    }
    for (int m = 0; m < path->message_count; m++)
        if (path->messages[m].bytes > largest) largest = path->messages[m].bytes;
    printf("sent bytes     ");
    print_spread(least, most);
    printf("; %s ", plan_words(show));
    print_spread(plan_least, plan_most);
    printf("\nlargest        %llu bytes, %s\n", (unsigned long long)largest, by_what(path, show));
}

void show_path_print(const struct path *path, const struct ring_call *call,
    const struct show_options *show, struct path_comm *comm)
{
    int n = show->common.ranks;
    printf(": %s\n%s\n\n", show_path_way(path->kind, show, comm), whys[path->kind]);
    if (n <= TABLE_RANKS) print_table(path, n);
    else print_list(path, n);
    print_key(path);
    printf("\n");
    print_messages(path, show);
    print_bytes(path, call, show, comm);
}

/* ---- JSON ---- */

static cJSON *json_of(const struct path_message *message, const struct path *path)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "turn", message->turn);
    cJSON_AddNumberToObject(object, "from", message->from);
    cJSON_AddNumberToObject(object, "to", message->to);
    cJSON_AddNumberToObject(object, "bytes", (double)message->bytes);
    cJSON_AddBoolToObject(object, "by_lines", message->by_lines);
    cJSON *holds = cJSON_AddArrayToObject(object, "holds");
    for (int b = 0; b < message->blocks; b++) {
        char name[32];
        struct text text = {name, sizeof name};
        write_block(&text, path->blocks[message->first_block + b]);
        cJSON_AddItemToArray(holds, cJSON_CreateString(name + 1));
    }
    return object;
}

enum status show_path_write_json(FILE *json, const struct path *path, const struct ring_call *call,
    const struct show_options *show, struct path_comm *comm)
{
    for (int m = 0; m < path->message_count; m++)
        TRY(json_line_write(json, json_of(&path->messages[m], path)));
    cJSON *sums = cJSON_CreateObject();
    cJSON_AddStringToObject(sums, "collective", collective_name(show->collective));
    cJSON_AddNumberToObject(sums, "ranks", show->common.ranks);
    cJSON_AddNumberToObject(sums, "root", show->root);
    cJSON_AddNumberToObject(sums, "count", (double)call->count);
    cJSON_AddStringToObject(sums, "way", show_path_way(path->kind, show, comm));
    cJSON_AddNumberToObject(sums, "turns", path->turns);
    cJSON *messages = cJSON_AddArrayToObject(sums, "sent_messages");
    cJSON *bytes = cJSON_AddArrayToObject(sums, "sent_bytes");
    for (int rank = 0; rank < show->common.ranks; rank++) {
        cJSON_AddItemToArray(messages, cJSON_CreateNumber(sent_messages(rank, path)));
        cJSON_AddItemToArray(bytes, cJSON_CreateNumber((double)path_sent_bytes(call, rank, comm)));
    }
    return json_line_write(json, sums);
}
