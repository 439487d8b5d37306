/* checkpoint_load: reading a checkpoint: see checkpoint.h.
 *
 * The files are checked by all ranks together, each taking every N-th; then each rank reads what
 * its stage keeps, from whatever files hold it. Nothing of the state is touched before all checks
 * have passed on all ranks.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "shard/checkpoint_manifest.h"
#include "verbs/log.h"

#define READ_BYTES ((size_t)1 << 20)

struct checkpoint {
    char directory[CHECKPOINT_PATH_BYTES];
    char older[CHECKPOINT_PATH_BYTES]; /* "" if there is none */
    struct manifest manifest;
};

/* resume_dir itself, if it is a checkpoint; else the newest in it. */
static enum status find(struct checkpoint *checkpoint, const char *resume_dir)
{
    char path[CHECKPOINT_PATH_BYTES], name[CHECKPOINT_NAME_BYTES];
    TRY(path_join(path, resume_dir, MANIFEST_NAME));
    if (access(path, F_OK) == 0) {
        snprintf(checkpoint->directory, sizeof checkpoint->directory, "%s", resume_dir);
        return STATUS_OK;
    }
    uint64_t step, older;
    bool found;
    TRY(newest_step(&step, &found, UINT64_MAX, resume_dir));
    if (!found)
        return FAIL(STATUS_DATA,
            "%s: found no checkpoint, expected a directory " STEP_PREFIX "… with a " MANIFEST_NAME
            ": check the path, or start without resuming",
            resume_dir);
    step_name(name, step);
    TRY(path_join(checkpoint->directory, resume_dir, name));
    TRY(newest_step(&older, &found, step, resume_dir));
    if (!found) return STATUS_OK;
    step_name(name, older);
    return path_join(checkpoint->older, resume_dir, name);
}

static enum status check_size(int fd, const char *path, const struct manifest_shard *shard)
{
    struct stat about = {0};
    if (fd < 0 || fstat(fd, &about) != 0)
        return FAIL(STATUS_DATA, "%s: cannot be opened: %s", path, strerror(errno));
    if ((uint64_t)about.st_size == shard->bytes) return STATUS_OK;
    return FAIL(STATUS_DATA,
        "%s: size is %lld bytes, expected %llu (" MANIFEST_NAME "): the file is damaged", path,
        (long long)about.st_size, (unsigned long long)shard->bytes);
}

static enum status check_crc(int fd, const char *path, const struct manifest_shard *shard)
{
    unsigned char *buffer = malloc(READ_BYTES);
    if (buffer == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory to read it", path);
    uLong crc = crc32_z(0, Z_NULL, 0);
    ssize_t bytes;
    while ((bytes = read(fd, buffer, READ_BYTES)) > 0) crc = crc32_z(crc, buffer, (size_t)bytes);
    free(buffer);
    if (bytes < 0) return FAIL(STATUS_DATA, "%s: cannot be read: %s", path, strerror(errno));
    if ((uint32_t)crc == shard->crc) return STATUS_OK;
    return FAIL(STATUS_DATA,
        "%s: crc32 is %08x, expected %08x (" MANIFEST_NAME "): the file is damaged", path,
        (unsigned)crc, shard->crc);
}

static enum status check_shards(const struct checkpoint *checkpoint, const struct trainer *trainer)
{
    const struct manifest *manifest = &checkpoint->manifest;
    for (int i = trainer->rank; i < manifest->shard_count; i += trainer->nranks) {
        char path[CHECKPOINT_PATH_BYTES];
        TRY(path_join(path, checkpoint->directory, manifest->shard[i].name));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        enum status status = check_size(fd, path, &manifest->shard[i]);
        if (status == STATUS_OK) status = check_crc(fd, path, &manifest->shard[i]);
        if (fd >= 0) close(fd);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

/* ---- into the state ---- */

static enum status read_values(
    int fd, float *values, size_t count, uint64_t offset, const char *path)
{
    unsigned char *to = (unsigned char *)values;
    size_t bytes = count * sizeof *values;
    while (bytes > 0) {
        ssize_t got = pread(fd, to, bytes, (off_t)offset);
        if (got <= 0)
            return FAIL(STATUS_DATA, "%s: cannot be read at byte %llu: %s", path,
                (unsigned long long)offset, got < 0 ? strerror(errno) : "it ends there");
        to += got;
        bytes -= (size_t)got;
        offset += (uint64_t)got;
    }
    return STATUS_OK;
}

#define PIECE_ELEMENTS (READ_BYTES / sizeof(float))

/* Elements [begin, end) of a unit, from byte `offset` of the file on, through `piece`. */
static enum status read_part(const struct stage_part *part, size_t begin, size_t end, int fd,
    uint64_t offset, const char *path, float *piece, const struct stage *stage)
{
    for (size_t at = begin; at < end; at += PIECE_ELEMENTS) {
        size_t count = end - at < PIECE_ELEMENTS ? end - at : PIECE_ELEMENTS;
        TRY(read_values(fd, piece, count, offset + (at - begin) * sizeof(float), path));
        TRY(stage_write_part(part, piece, at, count, stage));
    }
    return STATUS_OK;
}

/* Reads what of one range is kept here; adds to *read_count. piece: PIECE_ELEMENTS on the host. */
static enum status read_range(int fd, const struct manifest_range *range, const char *path,
    float *piece, size_t *read_count, const struct stage *stage)
{
    for (int state = 0; state < STAGE_STATE_COUNT; state++) {
        struct stage_part part = stage_part(stage, range->unit, (enum stage_state)state);
        size_t begin = range->begin > part.begin ? range->begin : part.begin;
        size_t range_end = range->begin + range->count, part_end = part.begin + part.count;
        size_t end = range_end < part_end ? range_end : part_end;
        if (begin >= end) continue;
        uint64_t element = (uint64_t)state * range->count + (begin - range->begin);
        TRY(read_part(
            &part, begin, end, fd, range->offset + element * sizeof(float), path, piece, stage));
        *read_count += end - begin;
    }
    return STATUS_OK;
}

static enum status read_shard(const struct checkpoint *checkpoint,
    const struct manifest_shard *shard, size_t *read_count, const struct stage *stage)
{
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, checkpoint->directory, shard->name));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FAIL(STATUS_DATA, "%s: cannot be opened: %s", path, strerror(errno));
    float *piece = malloc(READ_BYTES);
    enum status status =
        piece != NULL ? STATUS_OK : FAIL(STATUS_SYSTEM, "%s: no memory to read it", path);
    for (int i = 0; i < shard->range_count && status == STATUS_OK; i++)
        status = read_range(fd, &shard->range[i], path, piece, read_count, stage);
    free(piece);
    close(fd);
    return status;
}

static enum status read_state(const struct checkpoint *checkpoint, const struct trainer *trainer)
{
    const struct stage *stage = trainer->stage;
    size_t read_count = 0, kept_count = 0;
    for (int i = 0; i < checkpoint->manifest.shard_count; i++)
        TRY(read_shard(checkpoint, &checkpoint->manifest.shard[i], &read_count, stage));
    for (int u = 0; u < trainer->layout.unit_count; u++)
        for (int state = 0; state < STAGE_STATE_COUNT; state++)
            kept_count += stage_part(stage, u, (enum stage_state)state).count;
    if (read_count == kept_count) return STATUS_OK;
    return FAIL(STATUS_DATA,
        "%s/" MANIFEST_NAME
        ": its ranges hold %zu numbers of those kept here, expected %zu: it is damaged",
        checkpoint->directory, read_count, kept_count);
}

/* ---- */

static enum status find_and_check(struct checkpoint *checkpoint, const struct trainer *trainer)
{
    TRY(find(checkpoint, trainer->config.resume_dir));
    enum status status = manifest_read(&checkpoint->manifest, checkpoint->directory, trainer);
    if (status == STATUS_OK) status = check_shards(checkpoint, trainer);
    if (status == STATUS_DATA && checkpoint->older[0] != '\0')
        return FAIL(STATUS_DATA, "%.600s; an older checkpoint is there: resume from %s",
            status_text(), checkpoint->older);
    return status;
}

/* A run that scales goes on with the scale that was saved, within its own bounds. */
static void restore_scale(struct trainer *trainer, const struct manifest *manifest)
{
    struct loss_scale *scale = &trainer->scale;
    if (!train_config_scales(&trainer->config) || manifest->scale <= 0.0) return;
    scale->value = manifest->scale > scale->floor ? manifest->scale : scale->floor;
    scale->good_steps = manifest->scale_good_steps;
}

static enum status load(struct checkpoint *checkpoint, struct trainer *trainer)
{
    TRY(agree(find_and_check(checkpoint, trainer), trainer->bootstrap));
    const struct manifest *manifest = &checkpoint->manifest;
    struct agree_value step = {"the step of the checkpoint", (double)manifest->step, NULL};
    TRY(agree_values(&step, 1, trainer->bootstrap));
    TRY(agree(read_state(checkpoint, trainer), trainer->bootstrap));
    trainer->step = manifest->step;
    trainer->adam_t = manifest->adam_t;
    trainer->sequences = manifest->sequences;
    restore_scale(trainer, manifest);
    LOG_INFO("checkpoint", "resumed from %s at step %llu", checkpoint->directory,
        (unsigned long long)manifest->step);
    return STATUS_OK;
}

enum status checkpoint_load(struct trainer *trainer)
{
    struct checkpoint checkpoint = {0};
    enum status status = load(&checkpoint, trainer);
    manifest_free(&checkpoint.manifest);
    return status;
}
