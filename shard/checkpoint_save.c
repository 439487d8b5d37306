/* checkpoint_save: writing a checkpoint: see checkpoint.h.
 *
 *   rank 0                every rank                       rank 0
 *   make tmp-step-…   ►   write and synchronize own file   ►   manifest, synchronize, rename   ►
 *                   agree                                agree                              agree
 *
 * A failure at any stage is agreed on, and rank 0 removes tmp-step-… again; not where a rank has died:
 * others may still be writing, and would meet a directory that is gone before they hear why. The next
 * save removes it then.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "shard/checkpoint_manifest.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
    "checkpoints are little-endian and are written as they lie in memory");

#define KEPT_CHECKPOINTS 2

/* What a rank tells rank 0 about its file. */
struct written {
    uint64_t bytes;
    uint64_t crc;
};

enum status checkpoint_prepare(struct trainer *trainer)
{
    const char *directory = trainer->config.checkpoint_dir;
    enum status status = STATUS_OK;
    if (trainer->rank == 0) {
        uint64_t newest = 0;
        bool found = false;
        status = make_directory(directory);
        if (status == STATUS_OK) status = newest_step(&newest, &found, UINT64_MAX, directory);
        if (status == STATUS_OK && found && newest > trainer->step)
            status = FAIL(STATUS_INVALID,
                "%s holds a checkpoint of step %llu, this run starts at step %llu: resume from it, "
                "take another directory, or "
                "move it away",
                directory, (unsigned long long)newest, (unsigned long long)trainer->step);
    }
    return agree(status, trainer->bootstrap);
}

/* ---- every rank ---- */

#define PIECE_ELEMENTS ((size_t)64 << 10)

/* The file of this rank: the state goes through `piece`, of PIECE_ELEMENTS on the host. */
struct writer {
    const char *path;
    FILE *file;
    float *piece;
    struct written *written;
};

static enum status fail_write(const struct writer *writer)
{
    return FAIL(STATUS_SYSTEM,
        "%s: cannot be written: %s: make room (or raise ulimit -f); the checkpoint before this one "
        "is whole",
        writer->path, strerror(errno));
}

/* What is owned of a part. */
static enum status write_part(const struct writer *writer, const struct stage_part *part,
    struct layout_range owned, const struct stage *stage)
{
    struct written *written = writer->written;
    size_t end = owned.begin + owned.count;
    for (size_t at = owned.begin; at < end; at += PIECE_ELEMENTS) {
        size_t count = end - at < PIECE_ELEMENTS ? end - at : PIECE_ELEMENTS;
        size_t bytes = count * sizeof(float);
        TRY(stage_read_part(writer->piece, part, at, count, stage));
        written->crc = crc32_z((uLong)written->crc, (const Bytef *)writer->piece, bytes);
        written->bytes += bytes;
        if (fwrite(writer->piece, 1, bytes, writer->file) != bytes) return fail_write(writer);
    }
    return STATUS_OK;
}

static enum status write_range(
    const struct writer *writer, const struct manifest_range *range, const struct trainer *trainer)
{
    const struct layout_range elements = {range->begin, range->count};
    for (int state = 0; state < STAGE_STATE_COUNT; state++) {
        struct stage_part part = stage_part(trainer->stage, range->unit, (enum stage_state)state);
        TRY(write_part(writer, &part, elements, trainer->stage));
    }
    return STATUS_OK;
}

static enum status write_ranges(const struct writer *writer, const struct trainer *trainer)
{
    const struct params *params = &trainer->params;
    struct manifest_range *ranges = calloc((size_t)params->param_count, sizeof *ranges);
    if (ranges == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory for its ranges", writer->path);
    uint64_t bytes;
    int count = manifest_plan(ranges, &bytes, params, &trainer->layout, trainer->grid.data);
    enum status status = STATUS_OK;
    for (int i = 0; i < count && status == STATUS_OK; i++)
        status = write_range(writer, &ranges[i], trainer);
    free(ranges);
    TRY(status);
    bool kept = fflush(writer->file) == 0 && fsync(fileno(writer->file)) == 0;
    return kept ? STATUS_OK : fail_write(writer);
}

static enum status write_shard(
    const char *directory, struct written *written, struct trainer *trainer)
{
    char name[CHECKPOINT_NAME_BYTES], path[CHECKPOINT_PATH_BYTES];
    *written = (struct written){.crc = crc32_z(0, Z_NULL, 0)};
    int file = manifest_file_of(&trainer->grid);
    if (file < 0) return STATUS_OK; /* the first group has it all */
    shard_name(name, file, manifest_file_count(&trainer->grid));
    TRY(path_join(path, directory, name));
    TRY(stage_settle(trainer->stage));
    struct writer writer = {path, fopen(path, "wxe"), NULL, written};
    if (writer.file == NULL) return fail_write(&writer);
    enum status status = STATUS_OK;
    writer.piece = malloc(PIECE_ELEMENTS * sizeof *writer.piece);
    if (writer.piece == NULL) status = FAIL(STATUS_SYSTEM, "%s: no memory to write it", path);
    if (status == STATUS_OK) status = write_ranges(&writer, trainer);
    free(writer.piece);
    if (fclose(writer.file) != 0 && status == STATUS_OK) status = fail_write(&writer);
    return status;
}

/* ---- rank 0 ---- */

/* A file that another rank has written must be the one seen here. */
static enum status check_visible(
    const char *directory, const struct written *written, const struct trainer *trainer)
{
    for (int i = 0; i < manifest_file_count(&trainer->grid); i++) {
        char name[CHECKPOINT_NAME_BYTES], path[CHECKPOINT_PATH_BYTES];
        struct stat about = {0};
        int r = manifest_file_rank(i, &trainer->grid);
        shard_name(name, i, manifest_file_count(&trainer->grid));
        TRY(path_join(path, directory, name));
        if (stat(path, &about) == 0 && (uint64_t)about.st_size == written[r].bytes) continue;
        return FAIL(STATUS_SYSTEM,
            "%s: rank %d has written %llu bytes, rank 0 sees %lld: the checkpoint directory must "
            "be one place for all ranks",
            path, r, (unsigned long long)written[r].bytes, (long long)about.st_size);
    }
    return STATUS_OK;
}

static enum status finish(const char *temporary, const char *directory,
    const struct written *written, const struct trainer *trainer)
{
    size_t n = (size_t)manifest_file_count(&trainer->grid);
    uint64_t *bytes = calloc(n, sizeof *bytes);
    uint32_t *crc = calloc(n, sizeof *crc);
    enum status status = STATUS_OK;
    if (bytes == NULL || crc == NULL)
        status = FAIL(STATUS_SYSTEM, "no memory for a checkpoint's list of %zu files", n);
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        const struct written *of = &written[manifest_file_rank((int)i, &trainer->grid)];
        bytes[i] = of->bytes;
        crc[i] = (uint32_t)of->crc;
    }
    if (status == STATUS_OK) status = check_visible(temporary, written, trainer);
    if (status == STATUS_OK) status = manifest_write(
        temporary, bytes, crc, &trainer->config.model, &trainer->grid, trainer);
    if (status == STATUS_OK) status = synchronize_directory(temporary);
    if (status == STATUS_OK) status = rename_directory(temporary, directory);
    if (status == STATUS_OK) status = synchronize_directory(trainer->config.checkpoint_dir);
    if (status == STATUS_OK)
        prune_directory(trainer->config.checkpoint_dir, trainer->step, KEPT_CHECKPOINTS);
    free(bytes);
    free(crc);
    return status;
}

static enum status begin(const char *temporary, const struct trainer *trainer)
{
    TRY(make_directory(trainer->config.checkpoint_dir));
    remove_directory(temporary); /* of an interrupted run */
    return make_directory(temporary);
}

static enum status save_all(
    const char *temporary, const char *directory, struct written *written, struct trainer *trainer)
{
    enum status status = trainer->rank == 0 ? begin(temporary, trainer) : STATUS_OK;
    TRY(agree(status, trainer->bootstrap));

    TRY(agree(write_shard(temporary, &written[trainer->rank], trainer), trainer->bootstrap));
    TRY(bootstrap_all_gather(written, sizeof *written, trainer->bootstrap));
    status = trainer->rank == 0 ? finish(temporary, directory, written, trainer) : STATUS_OK;
    return agree(status, trainer->bootstrap);
}

enum status checkpoint_save(char directory[CHECKPOINT_PATH_BYTES], struct trainer *trainer)
{
    char name[CHECKPOINT_NAME_BYTES],
        temporary_name[CHECKPOINT_NAME_BYTES + sizeof TEMPORARY_PREFIX];
    char temporary[CHECKPOINT_PATH_BYTES];
    step_name(name, trainer->step);
    snprintf(temporary_name, sizeof temporary_name, TEMPORARY_PREFIX "%s", name);
    TRY(path_join(directory, trainer->config.checkpoint_dir, name));
    TRY(path_join(temporary, trainer->config.checkpoint_dir, temporary_name));
    struct written *written = calloc((size_t)trainer->nranks, sizeof *written);
    if (written == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for a checkpoint of %d ranks", trainer->nranks);
    enum status status = save_all(temporary, directory, written, trainer);
    free(written);
    bool all_know = status != STATUS_PEER && status != STATUS_TIMEOUT && status != STATUS_ABORTED;
    if (status != STATUS_OK && all_know && trainer->rank == 0) remove_directory(temporary);
    return status;
}
