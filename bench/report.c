/* report: see report.h. */
#include "bench/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/json_line.h"
#include "verbs/plural.h"

/* What a rank says of itself. */
struct introduction {
    int pid;
    char host[64], transport[16];
};

static void print_bytes(size_t bytes)
{
    if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) printf("%zu MiB", bytes >> 20);
    else if (bytes >= 1 << 10 && bytes % (1 << 10) == 0) printf("%zu KiB", bytes >> 10);
    else printf("%zu bytes", bytes);
}

static void print_ring(const struct job *job)
{
    const struct ring_config *config = ring_comm_config(job->comm);
    const int *order = ring_comm_order(job->comm, 0);
    printf("# Ring:");
    for (int p = 0; p <= job->nranks; p++) printf("%s %d", p > 0 ? " ►" : "", order[p % job->nranks]);
    int host_ranks = ring_comm_host_ranks(job->comm);
    if (host_ranks > 1) printf("; in two levels, %d hosts of %d ranks", job->nranks / host_ranks, host_ranks);
    printf("; %d channel%s, %d slots of ", config->channels, PLURAL(config->channels),
        (int)config->slot_count);
    print_bytes(ring_comm_slot_bytes(job->comm));
    printf(" an edge, deadline %d ms\n", config->timeout_ms);
}

enum status report_ranks(const struct limit *limit, struct job *job)
{
    struct introduction *all = calloc((size_t)job->nranks, sizeof *all);
    if (all == NULL) return FAIL(STATUS_SYSTEM, "out of memory for the names of %d ranks", job->nranks);
    struct introduction *mine = &all[job->rank];
    mine->pid = (int)getpid();
    gethostname(mine->host, sizeof mine->host - 1);
    snprintf(mine->transport, sizeof mine->transport, "%s", ring_comm_transport(job->comm));
    enum status status = bootstrap_all_gather(all, sizeof *all, job->bootstrap);
    if (status == STATUS_OK && job->rank == 0) {
        printf("#\n# Using devices\n");
        for (int r = 0; r < job->nranks; r++)
            printf("#  Rank %2d Pid %6d on %10s device %s, sends over %s\n", r, all[r].pid, all[r].host,
                job->options->device, all[r].transport);
        print_ring(job);
        printf("# Limit: %s of ", limit->what);
        print_bytes(limit->bytes);
        printf(", all ranks at once: %.2f GB/s a rank", limit->gbps);
        if (limit->cached_gbps > 0)
            printf(" (of 256 KiB that stay cached: %.2f)", limit->cached_gbps);
        printf("; \"of limit\" is %s, out of place, divided by it\n#\n",
            job->nranks == 1 ? "algbw" : "busbw");
    }
    free(all);
    return status;
}

void report_columns(bool each, bool reduce_dtype)
{
    static const char spread[] = "       p50       p99      cv", units[] = "      (us)      (us)        ";
    printf("#%62s %13s %36s\n", "", "out-of-place", "in-place");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s %9s%s%s%s\n", "size", "count",
        "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong",
        "of limit", each ? spread : "", each ? spread : "", reduce_dtype ? "   sums in     most sent" : "");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s%18s%s%s%s\n", "(B)", "(elements)", "",
        "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", each ? units : "",
        each ? units : "", reduce_dtype ? "                 (B)" : "");
}

static int decimals(double us)
{
    return us >= 10000 ? 0 : us >= 100 ? 1 : 2;
}

static void print_measurement(const struct measurement *measurement)
{
    double us = measurement->time_us;
    if (us < 0) {
        printf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    printf("  %7.*f  %6.2f  %6.2f  ", decimals(us), us, measurement->alg_bw, measurement->bus_bw);
    if (measurement->wrong < 0) printf("%6s", "N/A");
    else printf("%6" PRId64, measurement->wrong);
}

static void print_each(const struct measurement *measurement)
{
    const struct statistics *each = &measurement->each;
    if (measurement->time_us < 0) printf("  %8s  %8s  %6s", "N/A", "N/A", "N/A");
    else
        printf("  %8.*f  %8.*f  %6.3f", decimals(each->p50_us), each->p50_us, decimals(each->p99_us),
            each->p99_us, each->cv);
}

void report_row(const struct row *row)
{
    printf("%12zu  %12zu  %8s  %6s  %6d", row->bytes, row->count, row->type, row->redop, row->root);
    print_measurement(&row->out_of_place);
    print_measurement(&row->in_place);
    printf(" %8.1f%%", 100 * row->of_limit);
    if (row->each) print_each(&row->out_of_place);
    if (row->each) print_each(&row->in_place);
    if (row->reduce_dtype != NULL) printf("  %8s  %12" PRIu64, row->reduce_dtype, row->sent_bytes);
    printf("\n");
}

void report_row_data(const struct row *row, const struct limit *limit, FILE *file)
{
    fprintf(file, "%zu %g ", row->bytes, row->out_of_place.bus_bw);
    if (row->in_place.time_us < 0) fprintf(file, "?");
    else fprintf(file, "%g", row->in_place.bus_bw);
    fprintf(file, " %g\n", limit->gbps);
}

static void add_measurement(cJSON *object, const char *name, const struct measurement *measurement, bool each)
{
    if (measurement->time_us < 0) {
        cJSON_AddNullToObject(object, name);
        return;
    }
    cJSON *part = cJSON_AddObjectToObject(object, name);
    cJSON_AddNumberToObject(part, "time", measurement->time_us);
    cJSON_AddNumberToObject(part, "alg_bw", measurement->alg_bw);
    cJSON_AddNumberToObject(part, "bus_bw", measurement->bus_bw);
    if (measurement->wrong < 0) cJSON_AddNullToObject(part, "nwrong");
    else cJSON_AddNumberToObject(part, "nwrong", (double)measurement->wrong);
    if (!each) return;
    cJSON_AddNumberToObject(part, "p50_us", measurement->each.p50_us);
    cJSON_AddNumberToObject(part, "p99_us", measurement->each.p99_us);
    cJSON_AddNumberToObject(part, "cv", measurement->each.cv);
}

enum status report_row_json(const struct row *row, const struct limit *limit, FILE *file)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "size", (double)row->bytes);
    cJSON_AddNumberToObject(object, "count", (double)row->count);
    cJSON_AddStringToObject(object, "type", row->type);
    cJSON_AddStringToObject(object, "redop", row->redop);
    cJSON_AddNumberToObject(object, "root", row->root);
    if (row->reduce_dtype != NULL) {
        cJSON_AddStringToObject(object, "reduce_dtype", row->reduce_dtype);
        cJSON_AddNumberToObject(object, "sent_bytes", (double)row->sent_bytes);
    }
    if (row->group > 1) cJSON_AddNumberToObject(object, "group", row->group);
    add_measurement(object, "out_of_place", &row->out_of_place, row->each);
    add_measurement(object, "in_place", &row->in_place, row->each);
    cJSON_AddNumberToObject(object, "limit_bw", limit->gbps);
    if (limit->cached_gbps > 0) cJSON_AddNumberToObject(object, "limit_cached_bw", limit->cached_gbps);
    cJSON_AddStringToObject(object, "memory", row->memory);
    return json_line_write(file, object);
}

struct sent {
    uint64_t measured, predicted;
};

enum status report_bytes(bool *equal, const char *where, uint64_t measured, uint64_t predicted, struct job *job)
{
    *equal = true;
    struct sent *all = calloc((size_t)job->nranks, sizeof *all);
    if (all == NULL) return FAIL(STATUS_SYSTEM, "out of memory for the bytes of %d ranks", job->nranks);
    all[job->rank] = (struct sent){measured, predicted};
    enum status status = bootstrap_all_gather(all, sizeof *all, job->bootstrap);
    bool same = true, any = false;
    for (int r = 0; r < job->nranks && status == STATUS_OK; r++) {
        *equal &= all[r].measured == all[r].predicted;
        same &= memcmp(&all[r], &all[0], sizeof *all) == 0;
        any |= all[r].measured + all[r].predicted > 0;
    }
    for (int r = 0; r < job->nranks && status == STATUS_OK && job->rank == 0 && (any || strcmp(where, "sent") == 0); r++) {
        char who[32];
        snprintf(who, sizeof who, same ? "per rank" : "by rank %d", r);
        printf("# Bytes %s %-11s : %" PRIu64 " measured, %" PRIu64 " predicted %s\n", where, who, all[r].measured,
            all[r].predicted, all[r].measured == all[r].predicted ? "OK" : "FAILED");
        if (same) break;
    }
    free(all);
    return status;
}
