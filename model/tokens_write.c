/* tokens_write: see tokens_write.h. */
#include "model/tokens_write.h"

#include <assert.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/tokens_format.h"

#define BUFFER_TOKENS ((size_t)16 << 10)

struct tokens_writer {
    const struct shard_format *format;
    char prefix[PATH_MAX - 32];
    uint64_t per_shard, in_shard, total;
    int shards; /* that are whole */
    FILE *file; /* of the one that is not; NULL: none */
    char part[PATH_MAX];
};

static enum status fail_file(const char *doing, const struct tokens_writer *writer)
{
    return FAIL(STATUS_SYSTEM, "%s: cannot be %s: %s", writer->part, doing, strerror(errno));
}

static enum status check_free(const char *prefix)
{
    char pattern[PATH_MAX];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s_[0-9][0-9][0-9][0-9][0-9][0-9].bin", prefix);
    int result = glob(pattern, GLOB_NOSORT, NULL, &found);
    enum status status = STATUS_OK;
    if (result == 0)
        status = FAIL(STATUS_INVALID,
            "%s is there already, expected no shard of this name: remove it or choose another "
            "prefix",
            found.gl_pathv[0]);
    globfree(&found);
    return status;
}

enum status tokens_writer_open(
    struct tokens_writer **out, const char *prefix, int64_t per_shard, int32_t vocab)
{
    *out = NULL;
    assert(per_shard >= 1 && per_shard <= TOKENS_MOST_PER_SHARD);
    struct tokens_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL) return FAIL(STATUS_SYSTEM, "no memory for a writer of shards");
    enum status status;
    size_t length = strlen(prefix);
    if (length >= sizeof writer->prefix)
        TRY_GOTO(FAIL(STATUS_INVALID, "the prefix of shards has %zu bytes, expected less than %zu", length,
            sizeof writer->prefix));
    TRY_GOTO(check_free(prefix));
    memcpy(writer->prefix, prefix, length);
    writer->format = &shard_formats[vocab > UINT16_MAX + 1];
    writer->per_shard = (uint64_t)per_shard;
    *out = writer;
    return STATUS_OK;
fail:
    free(writer);
    return status;
}

/* ---- one shard ---- */

static enum status begin_shard(struct tokens_writer *writer)
{
    static const char header[SHARD_HEADER_BYTES];
    snprintf(writer->part, sizeof writer->part, "%s_%06d.bin.part", writer->prefix, writer->shards);
    writer->in_shard = 0;
    writer->file = fopen(writer->part, "wbe");
    if (writer->file == NULL) return fail_file("opened", writer);
    return fwrite(header, sizeof header, 1, writer->file) == 1 ? STATUS_OK : fail_file("written", writer);
}

/* Tells its tokens in the header, and gives it its name. */
static enum status end_shard(struct tokens_writer *writer)
{
    const uint32_t header[3] = {
        writer->format->magic, writer->format->version, (uint32_t)writer->in_shard};
    char name[PATH_MAX];
    bool written = fseek(writer->file, 0, SEEK_SET) == 0 &&
                   fwrite(header, sizeof header, 1, writer->file) == 1 &&
                   fflush(writer->file) == 0 && fsync(fileno(writer->file)) == 0;
    if (!written) return fail_file("written", writer);
    if (fclose(writer->file) != 0) written = false;
    writer->file = NULL;
    if (!written) return fail_file("written", writer);
    snprintf(name, sizeof name, "%.*s", (int)(strlen(writer->part) - strlen(".part")), writer->part);
    if (rename(writer->part, name) != 0) return fail_file("renamed", writer);
    writer->shards++;
    return STATUS_OK;
}

static enum status write_ids(const int32_t *ids, size_t count, struct tokens_writer *writer)
{
    uint16_t narrow[BUFFER_TOKENS];
    for (size_t done = 0; done < count;) {
        size_t now = count - done < BUFFER_TOKENS ? count - done : BUFFER_TOKENS;
        const void *from = ids + done;
        for (size_t i = 0; i < now && writer->format->width == 2; i++)
            narrow[i] = (uint16_t)ids[done + i];
        if (writer->format->width == 2) from = narrow;
        if (fwrite(from, (size_t)writer->format->width, now, writer->file) != now)
            return fail_file("written", writer);
        done += now;
    }
    writer->in_shard += count;
    writer->total += count;
    return STATUS_OK;
}

enum status tokens_writer_append(const int32_t *ids, size_t count, struct tokens_writer *writer)
{
    while (count > 0) {
        if (writer->file == NULL) TRY(begin_shard(writer));
        uint64_t room = writer->per_shard - writer->in_shard;
        size_t now = count < room ? count : (size_t)room;
        TRY(write_ids(ids, now, writer));
        if (writer->in_shard == writer->per_shard) TRY(end_shard(writer));
        ids += now;
        count -= now;
    }
    return STATUS_OK;
}

enum status tokens_writer_finish(struct tokens_writer *writer)
{
    return writer->file == NULL ? STATUS_OK : end_shard(writer);
}

uint64_t tokens_writer_count(const struct tokens_writer *writer)
{
    return writer->total;
}

int tokens_writer_shards(const struct tokens_writer *writer)
{
    return writer->shards;
}

void tokens_writer_close(struct tokens_writer *writer)
{
    if (writer == NULL) return;
    if (writer->file != NULL) {
        fclose(writer->file);
        unlink(writer->part);
    }
    free(writer);
}
