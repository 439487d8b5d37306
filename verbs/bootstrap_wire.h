/* bootstrap_wire: frames on a control connection, and the connection's two queues.
 *
 * A frame is a header of 32 bytes and then `bytes` bytes of payload, in the hosts' little-endian order:
 *
 *      0        4        8        12       16                24       28       32
 *      | magic  | type   | from   | to     | key             | bytes  | code   | payload …
 *
 *   type      sent by        key         payload                      answered by
 *   HELLO     joining rank   —           struct hello                 WELCOME or REFUSED
 *   WELCOME   rank 0         —           struct welcome               —
 *   REFUSED   rank 0         —           text, status in code         (closes)
 *   GATHER    any rank       sequence    the rank's blob              GATHERED or VERDICT
 *   GATHERED  rank 0         sequence    nranks blobs                 —
 *   VERDICT   rank 0         sequence    text, status in code         —
 *   POST      any → any      mailbox key blob; code 1: in the place   —   (rank 0 passes it on)
 *                                        of one that was not taken
 *   DEAD      rank 0         —           text; from = the dead rank   —
 *   ABORT     any → all      —           text; from = who aborts      —   (rank 0 passes it on)
 *   BYE       any rank       —           —                            BYE from rank 0, when all have said it
 *   SHRINK    any rank       —           text: its host               SHRUNK or REFUSED
 *   SHRUNK    rank 0         —           struct shrunk                —
 *
 * Whatever is read may come from a stranger: type and bytes are checked before a byte of memory is
 * taken for them.
 */
#ifndef VERBS_BOOTSTRAP_WIRE_H
#define VERBS_BOOTSTRAP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/bootstrap.h"

#define FRAME_MAGIC        0x42305a52u /* "RZ0B" */
#define FRAME_VERSION      4u
#define FRAME_TEXT_BYTES   900 /* longest text of a frame, without a final NUL */
#define HOST_TEXT_BYTES    64
#define ADDRESS_TEXT_BYTES 80 /* "[numeric IPv6%scope]:port" fits */

enum frame_type {
    FRAME_HELLO = 1,
    FRAME_WELCOME,
    FRAME_REFUSED,
    FRAME_GATHER,
    FRAME_GATHERED,
    FRAME_VERDICT,
    FRAME_POST,
    FRAME_DEAD,
    FRAME_ABORT,
    FRAME_BYE,
    FRAME_SHRINK,
    FRAME_SHRUNK,
};

#define POST_ANEW 1

struct frame {
    uint32_t magic;
    uint32_t type;
    int32_t from;
    int32_t to;
    uint64_t key;
    uint32_t bytes; /* of the payload */
    int32_t code;   /* an enum status, where the payload is the text of one; of a POST: 0 or POST_ANEW */
};

struct hello {
    uint64_t job; /* 0: not known */
    uint32_t version;
    int32_t rank;
    int32_t nranks;
    uint32_t zero;
    char host[HOST_TEXT_BYTES];       /* equal texts: same host, one loopback */
    char address[ADDRESS_TEXT_BYTES]; /* by which the rank would have others reach it */
};

struct welcome {
    uint64_t job;
    int32_t local_rank;
    int32_t local_nranks;
    char address[ADDRESS_TEXT_BYTES]; /* by which others will reach the rank: see join_settle_addresses() */
};

/* A rank's place in the job of those that are left. */
struct shrunk {
    int32_t rank, nranks;
    int32_t local_rank, local_nranks;
};

_Static_assert(sizeof(struct frame) == 32, "the header of a frame has no padding");
_Static_assert(sizeof(struct hello) == 24 + HOST_TEXT_BYTES + ADDRESS_TEXT_BYTES, "HELLO has no padding");
_Static_assert(sizeof(struct welcome) == 16 + ADDRESS_TEXT_BYTES, "WELCOME has no padding");

/* One end of a control connection. Plain memory: whoever shares it brings a lock. */
struct link {
    int fd;                           /* -1: none */
    int rank;                         /* who is at the other end; -1: not known yet */
    char address[ADDRESS_TEXT_BYTES]; /* of the other end, "host:port" */
    uint32_t accepts;                 /* a bit (1 << type) for each type that may come now */
    size_t gathered_bytes;            /* what a GATHERED must be, from this rank's own call */
    bool left;                        /* it has said BYE: its end is no death */
    bool deaf;                        /* a send failed: nothing more is sent, reading goes on to the end */
    char why[160];                    /* after LINK_CLOSED or LINK_BAD: a phrase for messages */

    struct frame frame; /* being read */
    size_t frame_have;
    unsigned char *payload;
    size_t payload_have;
    bool complete; /* frame and payload were given to the caller */

    bool shrinks; /* rank 0: it has said SHRINK, from this host */
    char host[HOST_TEXT_BYTES];

    unsigned char *out; /* waits to be sent: out[out_begin … out_end) */
    size_t out_begin, out_end, out_room;
};

enum link_event {
    LINK_NOTHING, /* all that has come is read */
    LINK_FRAME,   /* link->frame and link->payload are whole, until the next call */
    LINK_CLOSED,  /* the other end closed, or the connection broke */
    LINK_BAD,     /* what came is no frame that may come now */
};

/* Takes over a connected socket: non-blocking, no delay, keepalive. */
void link_open(struct link *link, int fd, uint32_t accepts, int timeout_ms);
/* Closes the socket after what is sent; frees the queues. Accepts a closed link. */
void link_close(struct link *link);

/* Reads at most one frame; never waits. */
enum link_event link_receive(struct link *link);

/* Sends, or queues what cannot be sent now; never waits. A broken connection is met by the reader. */
void link_send(struct link *link, struct frame frame, const void *payload);
void link_send_text(
    struct link *link, enum frame_type type, int from, uint64_t key, int code, const char *text);

/* Sends what is queued, as far as it goes now. True when nothing is left. */
bool link_flush(struct link *link);

/* Makes one line of a text: control characters, line ends among them, become spaces. */
void text_clean(char *text);

/* The payload as text, clean. */
void link_text(char text[FRAME_TEXT_BYTES + 1], const struct link *link);

#endif
