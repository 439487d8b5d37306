/* checkpoint_read: see checkpoint_read.h.
 */
#include "shard/checkpoint_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define READ_BYTES ((size_t)1 << 20)

enum status checkpoint_find(char directory[CHECKPOINT_PATH_BYTES],
    char older[CHECKPOINT_PATH_BYTES], const char *given)
{
    char path[CHECKPOINT_PATH_BYTES], name[CHECKPOINT_NAME_BYTES];
    older[0] = '\0';
    TRY(path_join(path, given, MANIFEST_NAME));
    if (access(path, F_OK) == 0) {
        snprintf(directory, CHECKPOINT_PATH_BYTES, "%s", given);
        return STATUS_OK;
    }
    uint64_t step, before;
    bool found;
    TRY(newest_step(&step, &found, UINT64_MAX, given));
    if (!found)
        return FAIL(STATUS_DATA,
            "%s: found no checkpoint, expected a directory " STEP_PREFIX "… with a " MANIFEST_NAME
            ": check the path",
            given);
    step_name(name, step);
    TRY(path_join(directory, given, name));
    TRY(newest_step(&before, &found, step, given));
    if (!found) return STATUS_OK;
    step_name(name, before);
    return path_join(older, given, name);
}

enum status checkpoint_blame(enum status status, const char *older)
{
    if (status != STATUS_DATA || older[0] == '\0') return status;
    return FAIL(
        STATUS_DATA, "%.600s; an older checkpoint is there: take %s", status_text(), older);
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

enum status checkpoint_check(const char *directory, const struct manifest_shard *shard)
{
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, directory, shard->name));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum status status = check_size(fd, path, shard);
    if (status == STATUS_OK) status = check_crc(fd, path, shard);
    if (fd >= 0) close(fd);
    return status;
}

enum status checkpoint_values(
    float *values, size_t count, int fd, uint64_t offset, const char *path)
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
