/* checkpoint_files: see checkpoint_files.h. */
#include "shard/checkpoint_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum status path_join(char path[CHECKPOINT_PATH_BYTES], const char *directory, const char *name)
{
    int length = snprintf(path, CHECKPOINT_PATH_BYTES, "%s/%s", directory, name);
    if (length >= CHECKPOINT_PATH_BYTES)
        return FAIL(STATUS_INVALID,
            "%.200s…/%s is %d bytes long, expected fewer than %d: take a shorter path", directory,
            name, length, CHECKPOINT_PATH_BYTES);
    return STATUS_OK;
}

void step_name(char name[CHECKPOINT_NAME_BYTES], uint64_t step)
{
    snprintf(name, CHECKPOINT_NAME_BYTES, STEP_PREFIX "%08llu", (unsigned long long)step);
}

void shard_name(char name[CHECKPOINT_NAME_BYTES], int rank, int nranks)
{
    snprintf(name, CHECKPOINT_NAME_BYTES, "shard-%05d-of-%05d.bin", rank, nranks);
}

/* The step that a name stands for: exactly what step_name() makes. */
static bool parse_step_name(uint64_t *step, const char *name)
{
    size_t prefix = strlen(STEP_PREFIX);
    if (strncmp(name, STEP_PREFIX, prefix) != 0) return false;
    char expected[CHECKPOINT_NAME_BYTES];
    *step = strtoull(name + prefix, NULL, 10);
    step_name(expected, *step);
    return strcmp(name, expected) == 0;
}

static bool has_manifest(const char *directory, const char *name)
{
    char path[CHECKPOINT_PATH_BYTES], manifest[CHECKPOINT_PATH_BYTES];
    if (path_join(path, directory, name) != STATUS_OK) return false;
    if (path_join(manifest, path, MANIFEST_NAME) != STATUS_OK) return false;
    return access(manifest, F_OK) == 0;
}

enum status newest_step(uint64_t *step, bool *found, uint64_t below, const char *directory)
{
    *found = false;
    DIR *listing = opendir(directory);
    if (listing == NULL && errno == ENOENT) return STATUS_OK;
    if (listing == NULL)
        return FAIL(STATUS_SYSTEM, "%s: cannot be listed: %s", directory, strerror(errno));
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        uint64_t candidate;
        if (!parse_step_name(&candidate, entry->d_name) || candidate >= below) continue;
        if (*found && candidate <= *step) continue;
        if (!has_manifest(directory, entry->d_name)) continue;
        *step = candidate;
        *found = true;
    }
    closedir(listing);
    return STATUS_OK;
}

void remove_directory(const char *path)
{
    DIR *listing = opendir(path);
    if (listing == NULL) return;
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        char file[CHECKPOINT_PATH_BYTES];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (path_join(file, path, entry->d_name) == STATUS_OK)
            unlink(file); /* what stays, keeps the directory */
    }
    closedir(listing);
    rmdir(path);
}

void prune_directory(const char *directory, uint64_t step, int keep)
{
    uint64_t oldest = step + 1;
    bool found = true;
    for (int i = 0; i < keep && found; i++) {
        uint64_t next;
        if (newest_step(&next, &found, oldest, directory) != STATUS_OK) return;
        if (found) oldest = next;
    }
    DIR *listing = opendir(directory);
    if (listing == NULL) return;
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        uint64_t candidate;
        char path[CHECKPOINT_PATH_BYTES];
        const char *name = entry->d_name;
        size_t prefix = strlen(TEMPORARY_PREFIX);
        bool leftover = strncmp(name, TEMPORARY_PREFIX, prefix) == 0 &&
                        parse_step_name(&candidate, name + prefix);
        bool old = parse_step_name(&candidate, name) && candidate < oldest;
        if ((leftover || old) && path_join(path, directory, name) == STATUS_OK)
            remove_directory(path);
    }
    closedir(listing);
}

enum status make_directory(const char *path)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return STATUS_OK;
    return FAIL(STATUS_SYSTEM,
        "%s: cannot be made: %s: expected a directory whose parent exists and is writable", path,
        strerror(errno));
}

enum status synchronize_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = fd < 0 ? -1 : fsync(fd), error = errno;
    if (fd >= 0) close(fd);
    if (result == 0) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "%s: cannot be synchronized: %s", path, strerror(error));
}

enum status rename_directory(const char *from, const char *to)
{
    int result = rename(from, to);
    if (result != 0 && (errno == ENOTEMPTY || errno == EEXIST)) {
        remove_directory(to);
        result = rename(from, to);
    }
    if (result == 0) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "%s: cannot be renamed to %s: %s", from, to, strerror(errno));
}
