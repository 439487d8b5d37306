/* json_line: see json_line.h. */
#include "bench/json_line.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum status json_line_write(FILE *file, cJSON *object)
{
    char *text = object == NULL ? NULL : cJSON_PrintUnformatted(object);
    bool written = text != NULL && fprintf(file, "%s\n", text) > 0;
    cJSON_free(text);
    cJSON_Delete(object);
    return written ? STATUS_OK : FAIL(STATUS_SYSTEM, "--json: a line could not be written: %s", strerror(errno));
}
