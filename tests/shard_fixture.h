/* shard_fixture: a small training job with ranks as threads, and what it told.
 *
 *     struct job_record record;
 *     run_job(&record, &config, 2, "shm");
 *     CHECK(record.rank[1].status == STATUS_OK && record.rank[0].loss[4] < 5.0);
 */
#ifndef TESTS_SHARD_FIXTURE_H
#define TESTS_SHARD_FIXTURE_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shard/shard.h"
#include "tests/harness/harness.h"

#define FIXTURE_RANKS 16
#define FIXTURE_STEPS 64

struct rank_record {
    enum status status;
    char text[STATUS_TEXT_BYTES];
    uint64_t first_step;
    int steps;
    double loss[FIXTURE_STEPS], norm[FIXTURE_STEPS]; /* [steps since the start] */
    float lr[FIXTURE_STEPS];
    double validation;                               /* the last */
    int scores; /* told */
    struct choices_score score; /* the last */
    bool text_tokens;
    int sample_count;
    int32_t sample[256];
    struct ledger ledger;
    int step_differences; /* collectives whose bytes of a step were not those predicted */
    uint64_t step_sent;   /* by all steps, where there is a step_ledger */
    int skipped;          /* steps */
    double loss_scale;    /* of the last step */
};

struct job_record {
    const struct train_config *config;
    const char *transport;
    int nranks;
    struct rank_record rank[FIXTURE_RANKS];
};

/* Hosts that are pretended, for neighbouring ranks, as many on each; 0: none. Set before a job. */
static int fixture_hosts;
static bool fixture_host_turns; /* ranks are on the hosts in turn instead */

/* The rank whose main thread this is: for tests that stand between train() and what it calls. */
static _Thread_local int fixture_own_rank;

static void fixture_start(void *context, const struct train_start *start)
{
    struct rank_record *record = context;
    record->first_step = start->first_step;
    record->text_tokens = start->text;
}

static void fixture_step(void *context, const struct train_report *report)
{
    struct rank_record *record = context;
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        record->step_differences += report->ledger.sent[c] != report->ledger.predicted_sent[c];
        record->step_sent += report->ledger.sent[c];
    }
    record->skipped += report->skipped;
    record->loss_scale = report->loss_scale;
    record->scores += report->chosen;
    if (report->chosen) record->score = report->score;
    if (record->steps == FIXTURE_STEPS) return;
    record->loss[record->steps] = report->loss;
    record->lr[record->steps] = report->lr;
    record->norm[record->steps++] = report->norm;
    if (report->validated) record->validation = report->validation_loss;
}

static void fixture_sample(
    void *context, const int32_t *tokens, int count, int prompt_count, bool text)
{
    struct rank_record *record = context;
    (void)prompt_count, (void)text;
    for (int i = 0; i < count && i < 256; i++) record->sample[record->sample_count++] = tokens[i];
}

static void fixture_ledger(void *context, const struct ledger *ledger)
{
    ((struct rank_record *)context)->ledger = *ledger;
}

static void fixture_rank(struct bootstrap *bootstrap, void *argument)
{
    struct job_record *job = argument;
    struct rank_record *record = &job->rank[bootstrap_rank(bootstrap)];
    struct train_observer observer = {
        .context = record,
        .start = fixture_start,
        .step = fixture_step,
        .sample = fixture_sample,
        .ledger = fixture_ledger,
    };
    struct ring_config ring = {.transport = job->transport, .slot_bytes = 4096};
    static const char *const hosts[] = {"h0", "h1", "h2", "h3"};
    fixture_own_rank = bootstrap_rank(bootstrap);
    if (fixture_hosts > 0)
        ring.host = hosts[fixture_host_turns ? fixture_own_rank % fixture_hosts
                                             : fixture_own_rank * fixture_hosts / job->nranks];
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    if (CHECK_OK(ring_comm_open(&comm, &ring, bootstrap, device))) {
        record->status = train(job->config, &observer, comm, bootstrap, device);
        snprintf(record->text, sizeof record->text, "%s",
            record->status == STATUS_OK ? "" : status_text());
    }
    ring_comm_close(comm);
    struct memory_account account = memory_account_read(device);
    struct memory_account beside = memory_account_read_beside(device);
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++)
        CHECK_MSG(account.now[tag] + beside.now[tag] == 0, "%s: %llu bytes left",
            memory_tag_name((enum memory_tag)tag),
            (unsigned long long)(account.now[tag] + beside.now[tag]));
    device_close(device);
}

/* Any outcome: see the record. */
static __attribute__((unused)) void run_job(
    struct job_record *record, const struct train_config *config, int nranks, const char *transport)
{
    *record = (struct job_record){.config = config, .transport = transport, .nranks = nranks};
    ranks_as_threads(nranks, 20000, fixture_rank, record);
}

/* A job in which every rank must succeed, with the same losses and norms. */
static __attribute__((unused)) void run_good_job(
    struct job_record *record, const struct train_config *config, int nranks, const char *transport)
{
    run_job(record, config, nranks, transport);
    for (int r = 0; r < nranks; r++) {
        CHECK_MSG(record->rank[r].status == STATUS_OK, "rank %d: %s", r, record->rank[r].text);
        CHECK(record->rank[r].steps == record->rank[0].steps);
        CHECK(memcmp(record->rank[r].loss, record->rank[0].loss, sizeof record->rank[0].loss) == 0);
        CHECK(memcmp(record->rank[r].norm, record->rank[0].norm, sizeof record->rank[0].norm) == 0);
    }
}

/* Every rank's ledger, and each of its steps, is as predicted (I4), with all that such a job has. */
static __attribute__((unused)) void fixture_check_ledgers(
    const struct job_record *record, const char *what)
{
    for (int r = 0; r < record->nranks; r++) {
        const struct ledger *ledger = &record->rank[r].ledger;
        bool sums = false;
        int predicted = 0;
        for (int i = 0; i < ledger->count; i++) {
            const struct ledger_entry *entry = &ledger->entry[i];
            CHECK_MSG(!entry->has_prediction || entry->measured == entry->predicted,
                "%s: rank %d, %s: measured %llu, predicted %llu", what, r, entry->name,
                (unsigned long long)entry->measured, (unsigned long long)entry->predicted);
            predicted += entry->has_prediction;
            sums |= strcmp(entry->name, "tensor_sum_sent") == 0 && entry->measured > 0;
        }
        CHECK_MSG(ledger->ok, "%s: rank %d", what, r);
        CHECK_MSG(ledger->count >= MEMORY_TAG_COUNT && predicted >= (record->nranks > 1 ? 5 : 3),
            "%s: rank %d: %d entries, %d of them predicted", what, r, ledger->count, predicted);
        CHECK_MSG(ledger->nranks == record->nranks && ledger->differing_ranks == 0,
            "%s: rank %d: of %d ranks, %d differ", what, r, ledger->nranks,
            ledger->differing_ranks);
        CHECK_MSG(sums == (record->config->tensor > 1), "%s: rank %d: tensor sums", what, r);
        CHECK_MSG(record->rank[r].step_differences == 0, "%s: rank %d: steps differ", what, r);
    }
}

/* A new directory of its own; fixture_file() names files in it. */
static const char *fixture_directory(void)
{
    static char directory[64];
    if (directory[0] == '\0') {
        snprintf(directory, sizeof directory, "/tmp/ringzero-shard-%d-XXXXXX", (int)getpid());
        if (mkdtemp(directory) == NULL) abort();
    }
    return directory;
}

static void fixture_file(char path[256], const char *name)
{
    snprintf(path, 256, "%s/%s", fixture_directory(), name);
}

static void fixture_remove(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", fixture_directory());
    CHECK(system(command) == 0);
}

#ifndef FIXTURE_NO_TEXT /* for tests that bring their own data */
/* Sentences of a few words, which a small model soon knows better than chance. */
static void fixture_text(const char *path, size_t bytes)
{
    static const char *const words[] = {
        "the ", "ring ", "sends ", "a ", "chunk ", "to ", "every ", "rank ", "and ", "adds.\n"};
    FILE *file = fopen(path, "w");
    if (file == NULL) abort();
    uint64_t state = 1;
    for (size_t written = 0; written < bytes;) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const char *word = words[(state >> 33) % 10];
        fputs(word, file);
        written += strlen(word);
    }
    fclose(file);
}
#endif

/* A shard of count ids below vocab; takes ids. */
static __attribute__((unused)) void fixture_shard(const char *path, uint16_t *ids, int count)
{
    uint32_t header[256] = {20240520, 1, (uint32_t)count};
    FILE *file = fopen(path, "w");
    if (file == NULL || fwrite(header, sizeof header, 1, file) != 1) abort();
    if (fwrite(ids, sizeof *ids, (size_t)count, file) != (size_t)count) abort();
    if (fclose(file) != 0) abort();
    free(ids);
}

static __attribute__((unused)) uint16_t *fixture_room(int count)
{
    uint16_t *ids = malloc((size_t)count * sizeof *ids);
    if (ids == NULL) abort();
    return ids;
}

/* A shard whose ids are a function of their place alone. */
static __attribute__((unused)) void fixture_tokens(const char *path, int vocab, int count)
{
    uint16_t *ids = fixture_room(count);
    for (int i = 0; i < count; i++) ids[i] = (uint16_t)((i * i / 3) % vocab);
    fixture_shard(path, ids, count);
}

/* A shard whose ids have an order that can be learned, but for a little noise. */
static __attribute__((unused)) void fixture_learnable_tokens(const char *path, int vocab, int count)
{
    uint16_t *ids = fixture_room(count);
    uint32_t state = 1;
    for (int i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        ids[i] = (uint16_t)((i * 7 + (int)(state >> 30)) % vocab);
    }
    fixture_shard(path, ids, count);
}

/* L2 C20 H2 V256 T16: no unit is a multiple of 3 ranks; two units of embedding rows. */
static struct train_config fixture_config(const char *data)
{
    struct train_config config = train_config_default();
    config.model = (struct model_config){
        .max_t = 16, .vocab = 256, .layers = 2, .heads = 2, .channels = 20, .vocab_block = 100};
    config.data = data;
    config.batch = 2;
    config.steps = 6;
    config.warmup = 2;
    config.validate_every = 0;
    config.bucket_bytes = 4096;
    return config;
}

#endif
