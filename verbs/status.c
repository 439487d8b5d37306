/* status: per-thread failure texts. */
#include "verbs/status.h"
#include "verbs/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_text[STATUS_TEXT_BYTES];

enum status status_fail(enum status code, const char *file, int line, const char *format, ...)
{
    /* Formatted aside first: an argument may be status_text() itself. */
    char text[STATUS_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(last_text, text, sizeof text);
    LOG_TRACE("status", "%s at %s:%d: %s", status_name(code), file, line, text);
    return code;
}

enum status status_trace(enum status code, const char *file, int line)
{
    LOG_TRACE("status", "%s passed on at %s:%d", status_name(code), file, line);
    return code;
}

const char *status_name(enum status code)
{
    static const char *const names[] = {
        "OK", "INVALID", "SYSTEM", "CUDA", "VERBS", "PEER", "TIMEOUT", "ABORTED", "DATA"};
    int index = -(int)code;
    return index >= 0 && index < (int)(sizeof names / sizeof *names) ? names[index] : "UNKNOWN";
}

const char *status_text(void) { return last_text; }

void status_set_text(const char *text)
{
    if (text != last_text) snprintf(last_text, sizeof last_text, "%s", text);
}
