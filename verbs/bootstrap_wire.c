/* bootstrap_wire: see bootstrap_wire.h.
 *
 * Keeps: nothing here waits, and nothing is allocated for a frame before its type and size are known to
 * be allowed.
 */
#include "verbs/bootstrap_wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A peer that does not read for so long is lost; without a limit its frames would fill rank 0's memory. */
#define OUT_BYTES_MAX ((size_t)64 << 20)

static void set_option(int fd, int level, int option, int value)
{
    /* These make a connection faster or its end known earlier; without them it still works. */
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

void link_open(struct link *link, int fd, uint32_t accepts, int timeout_ms)
{
    memset(link, 0, sizeof *link);
    link->fd = fd;
    link->rank = -1;
    link->accepts = accepts;
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    /* A host that vanishes sends no FIN: probe it when it is silent for 5 s, and take no answer for an
     * end. A stopped process is no vanished host: its kernel answers. */
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms > 20000 ? timeout_ms : 20000);
}

void link_close(struct link *link)
{
    if (link->fd >= 0) {
        shutdown(link->fd, SHUT_WR);
        close(link->fd);
    }
    free(link->payload);
    free(link->out);
    link->fd = -1;
    link->payload = NULL;
    link->out = NULL;
    link->out_begin = link->out_end = link->out_room = 0;
}

/* The most payload a frame of this type may have. */
static size_t payload_limit(const struct link *link, uint32_t type)
{
    switch (type) {
    case FRAME_HELLO: return sizeof(struct hello);
    case FRAME_WELCOME: return sizeof(struct welcome);
    case FRAME_GATHER: return BOOTSTRAP_GATHER_BYTES;
    case FRAME_GATHERED: return link->gathered_bytes;
    case FRAME_POST: return BOOTSTRAP_BLOB_BYTES;
    case FRAME_BYE: return 0;
    case FRAME_SHRINK: return HOST_TEXT_BYTES;
    case FRAME_SHRUNK: return sizeof(struct shrunk);
    default: return FRAME_TEXT_BYTES;
    }
}

/* Quotes the first bytes of something that is no frame, for a message. */
static void quote(char *text, size_t text_bytes, const unsigned char *bytes, size_t count)
{
    size_t used = 0;
    for (size_t i = 0; i < count && i < 16 && used + 5 < text_bytes; i++) {
        bool plain = bytes[i] >= 0x20 && bytes[i] < 0x7f && bytes[i] != '"' && bytes[i] != '\\';
        used += (size_t)snprintf(text + used, text_bytes - used, plain ? "%c" : "\\x%02x", bytes[i]);
    }
    text[used] = '\0';
}

/* Fills a buffer from the socket: LINK_FRAME when it is full. */
static enum link_event fill(struct link *link, void *buffer, size_t want, size_t *have)
{
    while (*have < want) {
        ssize_t got = recv(link->fd, (char *)buffer + *have, want - *have, MSG_DONTWAIT);
        if (got > 0) {
            *have += (size_t)got;
        } else if (got == 0 || errno == ECONNRESET || errno == EPIPE) {
            if (link->why[0] == '\0') snprintf(link->why, sizeof link->why, "closed");
            return LINK_CLOSED;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return LINK_NOTHING;
        } else if (errno != EINTR) {
            snprintf(link->why, sizeof link->why, "failed: %s", strerror(errno));
            return LINK_CLOSED;
        }
    }
    return LINK_FRAME;
}

static enum link_event bad(struct link *link, const char *what, uint64_t found)
{
    snprintf(link->why, sizeof link->why, "a frame whose %s is %llu", what, (unsigned long long)found);
    return LINK_BAD;
}

/* Judges the header, wholly or as far as it has come. */
static enum link_event check_header(struct link *link)
{
    const struct frame *frame = &link->frame;
    if (link->frame_have >= sizeof frame->magic && frame->magic != FRAME_MAGIC) {
        char quoted[80];
        quote(quoted, sizeof quoted, (const unsigned char *)frame, link->frame_have);
        snprintf(link->why, sizeof link->why, "\"%s\"", quoted);
        return LINK_BAD;
    }
    if (link->frame_have < sizeof *frame) return LINK_NOTHING;
    if (frame->type < FRAME_HELLO || frame->type > FRAME_SHRUNK || !(link->accepts & 1u << frame->type))
        return bad(link, "type", frame->type);
    if (frame->bytes > payload_limit(link, frame->type)) return bad(link, "size", frame->bytes);
    return LINK_FRAME;
}

enum link_event link_receive(struct link *link)
{
    if (link->complete) {
        link->complete = false;
        link->frame_have = link->payload_have = 0;
        free(link->payload);
        link->payload = NULL;
    }
    if (link->frame_have < sizeof link->frame) {
        enum link_event read = fill(link, &link->frame, sizeof link->frame, &link->frame_have);
        enum link_event judged = check_header(link);
        if (judged == LINK_BAD) return judged;
        if (read != LINK_FRAME) return read;
    }
    if (link->payload == NULL && link->frame.bytes > 0) {
        link->payload = malloc(link->frame.bytes);
        if (link->payload == NULL)
            return bad(link, "size is beyond the free memory: it", link->frame.bytes);
    }
    enum link_event event = fill(link, link->payload, link->frame.bytes, &link->payload_have);
    link->complete = event == LINK_FRAME;
    return event;
}

/* Nothing more goes to this peer; shutting down lets both readers meet the end. */
static void give_up_sending(struct link *link, const char *why)
{
    link->deaf = true;
    link->out_begin = link->out_end = 0;
    if (why == NULL) return;
    snprintf(link->why, sizeof link->why, "%s", why);
    shutdown(link->fd, SHUT_RDWR);
}

bool link_flush(struct link *link)
{
    while (link->out_begin < link->out_end) {
        ssize_t sent = send(link->fd, link->out + link->out_begin, link->out_end - link->out_begin,
            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            link->out_begin += (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return false;
        } else if (errno != EINTR) {
            give_up_sending(link, NULL); /* what the peer sent before its end is still to be read */
        }
    }
    link->out_begin = link->out_end = 0;
    return true;
}

static bool reserve(struct link *link, size_t bytes)
{
    if (link->out_end + bytes <= link->out_room) return true;
    size_t used = link->out_end - link->out_begin;
    if (link->out_begin > 0) memmove(link->out, link->out + link->out_begin, used);
    link->out_begin = 0;
    link->out_end = used;
    if (used + bytes <= link->out_room) return true;
    size_t room = used + bytes > 2 * link->out_room ? used + bytes : 2 * link->out_room;
    unsigned char *out = realloc(link->out, room);
    if (out == NULL) return false;
    link->out = out;
    link->out_room = room;
    return true;
}

void link_send(struct link *link, struct frame frame, const void *payload)
{
    if (link->fd < 0 || link->deaf) return;
    frame.magic = FRAME_MAGIC;
    if (link->out_end - link->out_begin + frame.bytes > OUT_BYTES_MAX && link->out_end > link->out_begin) {
        give_up_sending(link, "is not read: 64 MiB wait in it");
        return;
    }
    if (!reserve(link, sizeof frame + frame.bytes)) {
        give_up_sending(link, "was cut: no memory for its frames");
        return;
    }
    memcpy(link->out + link->out_end, &frame, sizeof frame);
    if (frame.bytes > 0) memcpy(link->out + link->out_end + sizeof frame, payload, frame.bytes);
    link->out_end += sizeof frame + frame.bytes;
    link_flush(link);
}

void link_send_text(
    struct link *link, enum frame_type type, int from, uint64_t key, int code, const char *text)
{
    size_t bytes = strnlen(text, FRAME_TEXT_BYTES);
    struct frame frame = {
        .type = type, .from = from, .to = link->rank, .key = key, .bytes = (uint32_t)bytes, .code = code};
    link_send(link, frame, text);
}

void text_clean(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = ' ';
}

void link_text(char text[FRAME_TEXT_BYTES + 1], const struct link *link)
{
    size_t bytes = link->frame.bytes < FRAME_TEXT_BYTES ? link->frame.bytes : FRAME_TEXT_BYTES;
    if (bytes > 0) memcpy(text, link->payload, bytes);
    text[bytes] = '\0';
    text_clean(text);
}
