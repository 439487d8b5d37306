/* mapped_file: a whole file, read where it is mapped. One that someone cuts short meanwhile would end the
 * program with SIGBUS: what is read so is not edited. */
#ifndef MODEL_MAPPED_FILE_H
#define MODEL_MAPPED_FILE_H

#include <stddef.h>

#include "verbs/status.h"

struct mapped_file {
    const unsigned char *data; /* NULL where the file is empty */
    size_t bytes;
};

/* of: what the file should hold, for messages: "text". errors: DATA naming file, found and expected
 * (unreadable, no regular file). On an error the file is as if never opened; close accepts that, and a
 * zeroed one. */
MUST_CHECK enum status mapped_file_open(struct mapped_file *file, const char *path, const char *of);
void mapped_file_close(struct mapped_file *file);

#endif
