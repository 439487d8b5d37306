/* trace_files: a gathered trace as files: FILE, Chrome trace events in JSON (ui.perfetto.dev and
 * chrome://tracing open it), and FILE.svg, a picture of the ring turning: ranks down, time across, chunks by
 * colour.
 *
 *   process = rank, thread = channel; an event a step or a wait; arrows from a slice's send to its receive
 */
#ifndef BENCH_TRACE_FILES_H
#define BENCH_TRACE_FILES_H

#include "ring/trace.h"

/* title: of the picture. errors: SYSTEM: a file could not be written, and why. */
MUST_CHECK enum status trace_files_write(const char *file, const char *title, const struct trace_all *all);

#endif
