/* json_line: --json writes one object a line.
 */
#ifndef BENCH_JSON_LINE_H
#define BENCH_JSON_LINE_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "verbs/status.h"

/* Writes the object as a line, and deletes it. errors: SYSTEM, also for NULL: an object that there was no memory for. */
MUST_CHECK enum status json_line_write(FILE *file, cJSON *object);

#endif
