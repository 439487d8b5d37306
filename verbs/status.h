/* status: what can go wrong in operation, and the one line of text that explains it.
 *
 * A function that can fail returns an enum status. The text of the last failure belongs to the calling thread, as errno does;
 * whoever carries a failure to another thread carries its text with status_set_text(). A bug in the caller's code is an assert.
 */
#ifndef VERBS_STATUS_H
#define VERBS_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum status {
    STATUS_OK = 0,
    STATUS_INVALID = -1, /* the input is wrong; nothing was changed */
    STATUS_SYSTEM = -2,  /* the operating system said no */
    STATUS_CUDA = -3,    /* the CUDA runtime or driver said no */
    STATUS_VERBS = -4,   /* the RDMA stack said no */
    STATUS_PEER = -5,    /* another rank died, left, or broke the protocol */
    STATUS_TIMEOUT = -6, /* a deadline passed */
    STATUS_ABORTED = -7, /* another rank or thread ended the job or the communicator */
    STATUS_DATA = -8,    /* a file or message does not hold what it should */
};

#define MUST_CHECK __attribute__((warn_unused_result))

/* Records a failure: stores the text for status_text(), returns code. The text names the thing, the value found, the value
 * expected, and what to do. */
#define FAIL(code, ...) status_fail((code), __FILE__, __LINE__, __VA_ARGS__)

/* Passes a failure on to the caller, adding one line of trace at log level trace. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        enum status try_status_ = (call);                                                                              \
        if (try_status_ != STATUS_OK) return status_trace(try_status_, __FILE__, __LINE__);                            \
    } while (0)

/* The same for functions with a clean-up label: sets the local variable `status` and jumps to `fail`. */
#define TRY_GOTO(call)                                                                                                 \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != STATUS_OK) {                                                                                     \
            status_trace(status, __FILE__, __LINE__);                                                                  \
            goto fail;                                                                                                 \
        }                                                                                                              \
    } while (0)

enum status status_fail(enum status code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
enum status status_trace(enum status code, const char *file, int line);

/* "INVALID", "PEER", …; never NULL. */
const char *status_name(enum status code);

/* The text of this thread's last failure; "" before the first. Valid until the thread's next failure. */
const char *status_text(void);

/* Replaces this thread's text: for failures that another thread met. Copies. Passing status_text() itself is allowed. */
void status_set_text(const char *text);

#define STATUS_TEXT_BYTES 1024

#ifdef __cplusplus
}
#endif
#endif
