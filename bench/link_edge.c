/* link_edge: the shortest program that shows how an edge is used:
 *
 *   rank 0                         rank 1
 *   producer out(0►1)  ────────►   consumer in(0►1)        put: wait for room, write the slot, post
 *   consumer in (1►0)  ◄────────   producer out(1►0)       take: wait for data, read it, free
 *
 * Sides do not wait inside put and take: link_edge_move() does what can be done now and asks again,
 * so the two ways cannot block one another. Invariant: nothing is copied that a peer's record
 * claims before it is what the two have agreed on. Invariant I5: a wait ends after the bootstrap's
 * timeout, naming the peer.
 */
#include "bench/link_edge.h"

#include <sched.h>
#include <string.h>

#include "verbs/clock.h"

#define LINK_KEY        0x6c696e6b0000u /* of the edge 0►1; the next is that of 1►0 */
#define LOOKS_PER_YIELD 64              /* of idle looks: the peer may need this core */
#define LOOKS_PER_CHECK 4096            /* between two looks at the clock and the job */

static size_t slice_of(size_t left)
{
    return left < LINK_SLOT_BYTES ? left : LINK_SLOT_BYTES;
}

/* Writes the next slice into the edge: into its slot, or where it lies when the transport can send
 * from there. */
static void put(struct edge *out, const char *from, size_t bytes)
{
    uint64_t address = 0;
    if (out->transport->reads_address) address = (uint64_t)(uintptr_t)from;
    else memcpy(fifo_slot(&out->fifo), from, bytes);
    fifo_post(&out->fifo, bytes, 0, address);
    edge_notify(out);
}

/* Reads the oldest slice, which should have so many bytes, out of the edge. */
static enum status take(struct edge *in, char *to, size_t bytes)
{
    struct fifo_record record = fifo_record(&in->fifo);
    if (record.bytes != bytes || record.address != 0)
        return FAIL(STATUS_DATA,
            "rank %d sent a slice of %llu bytes %s over %s, expected %zu in its slot: let both "
            "ranks run the same "
            "program with the same -b, -e and -f",
            in->config.peer, (unsigned long long)record.bytes,
            record.address != 0 ? "elsewhere" : "in its slot", in->transport->name, bytes);
    memcpy(to, fifo_slot(&in->fifo), bytes);
    fifo_free(&in->fifo);
    edge_notify(in);
    return STATUS_OK;
}

/* Called when nothing moved: lets others run, and now and then looks at the clock and the job. */
static enum status idle(int64_t *since_ns, unsigned *looks, const struct link_edge *link)
{
    struct bootstrap *bootstrap = link->bootstrap;
    if (++*looks % LOOKS_PER_YIELD == 0) sched_yield();
    if (*looks % LOOKS_PER_CHECK != 0) return STATUS_OK;
    TRY(bootstrap_check(NULL, bootstrap));
    int64_t now = clock_ns();
    if (*since_ns == 0) *since_ns = now;
    if (now - *since_ns < clock_ms_to_ns(bootstrap_timeout_ms(bootstrap))) return STATUS_OK;
    return FAIL(STATUS_TIMEOUT,
        "rank %d: link over %s: nothing moved to or from rank %d for %d ms (RINGZERO_TIMEOUT_MS)",
        bootstrap_rank(bootstrap), link_edge_transport(link), link->out->config.peer,
        bootstrap_timeout_ms(bootstrap));
}

enum status link_edge_move(
    char *to, size_t to_receive, const char *from, size_t to_send, struct link_edge *link)
{
    int64_t idle_since_ns = 0;
    unsigned looks = 0;
    while (to_send > 0 || to_receive > 0) {
        bool moved = false;
        TRY(edge_progress(link->out, &moved));
        TRY(edge_progress(link->in, &moved));
        while (to_send > 0 && fifo_room(&link->out->fifo) > 0) {
            size_t bytes = slice_of(to_send);
            put(link->out, from, bytes);
            from += bytes;
            to_send -= bytes;
            moved = true;
        }
        while (to_receive > 0 && fifo_ready(&link->in->fifo) > 0) {
            size_t bytes = slice_of(to_receive);
            TRY(take(link->in, to, bytes));
            to += bytes;
            to_receive -= bytes;
            moved = true;
        }
        if (moved) idle_since_ns = 0;
        else TRY(idle(&idle_since_ns, &looks, link));
    }
    return STATUS_OK;
}

enum status link_edge_drain(struct link_edge *link)
{
    int64_t idle_since_ns = 0;
    unsigned looks = 0;
    while (!edge_drained(link->out) || !edge_drained(link->in)) {
        bool moved = false;
        TRY(edge_progress(link->out, &moved));
        TRY(edge_progress(link->in, &moved));
        if (moved) idle_since_ns = 0;
        else TRY(idle(&idle_since_ns, &looks, link));
    }
    return STATUS_OK;
}

enum status link_edge_open(struct link_edge *link, const struct transport *transport,
    struct bootstrap *bootstrap, struct device *device)
{
    const char *why = "";
    int rank = bootstrap_rank(bootstrap);
    *link = (struct link_edge){.bootstrap = bootstrap};
    if (transport->available != NULL && !transport->available(&why, device))
        return FAIL(STATUS_SYSTEM, "--transport %s cannot work here: %s", transport->name, why);
    struct edge_config config = {.self = rank,
        .peer = 1 - rank,
        .slot_bytes = LINK_SLOT_BYTES,
        .slot_count = LINK_SLOT_COUNT,
        .bootstrap = bootstrap,
        .device = device};
    config.side = EDGE_PRODUCER;
    config.key = LINK_KEY + (uint64_t)rank;
    TRY(edge_open(&link->out, transport, &config));
    config.side = EDGE_CONSUMER;
    config.key = LINK_KEY + (uint64_t)config.peer;
    return edge_open(&link->in, transport, &config);
}

void link_edge_close(struct link_edge *link)
{
    edge_close(link->out);
    edge_close(link->in);
    *link = (struct link_edge){0};
}

const char *link_edge_transport(const struct link_edge *link)
{
    return link->out->transport->name;
}
