/* mapped_file: see mapped_file.h. */
#include "model/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status map(struct mapped_file *file, int fd, const char *path, const char *of)
{
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))
        return FAIL(STATUS_DATA, "%s: found %s, expected a regular file of %s", path,
            S_ISDIR(about.st_mode) ? "a directory" : "a device or pipe", of);
    if (about.st_size == 0) return STATUS_OK;
    size_t bytes = (size_t)about.st_size;
    void *data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        return FAIL(
            STATUS_DATA, "%s: cannot be mapped (%zu bytes): %s", path, bytes, strerror(errno));
    *file = (struct mapped_file){data, bytes};
    return STATUS_OK;
}

enum status mapped_file_open(struct mapped_file *file, const char *path, const char *of)
{
    *file = (struct mapped_file){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL(STATUS_DATA, "%s: cannot be read: %s; expected a file of %s", path,
            strerror(errno), of);
    enum status status = map(file, fd, path, of);
    close(fd);
    return status;
}

void mapped_file_close(struct mapped_file *file)
{
    if (file->data != NULL) munmap((void *)(uintptr_t)file->data, file->bytes);
    *file = (struct mapped_file){0};
}
