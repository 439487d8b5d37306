/* bench/link_edge: what is sent arrives, and a slice of another size than was agreed on, or one
 * that lies elsewhere, is an error that names the peer, with nothing written beyond the receiver's
 * buffer. ctest: timeout=30
 */
#include "bench/link_edge.c"

#include <stdio.h>
#include <stdlib.h>

#include "tests/harness/harness.h"

#define BYTES (LINK_SLOT_BYTES + 1000)

struct lie {
    const char *transport;
    size_t bytes; /* of the slice that ends a message of BYTES, which should have 1000 */
    bool elsewhere;
};

static void one_way(struct link_edge *link, const struct lie *lie)
{
    char *data = calloc(1, BYTES + LINK_SLOT_BYTES);
    bool sender = bootstrap_rank(link->bootstrap) == 0;
    if (sender) {
        memset(data, 7, BYTES);
        CHECK_OK(link_edge_move(data, 0, data, LINK_SLOT_BYTES, link));
        struct edge *out = link->out;
        while (fifo_room(&out->fifo) == 0) sched_yield();
        memset(fifo_slot(&out->fifo), 7, lie->bytes);
        fifo_post(&out->fifo, lie->bytes, 0, lie->elsewhere ? (uint64_t)(uintptr_t)data : 0);
        CHECK_OK(link_edge_drain(link));
    } else {
        bool honest = lie->bytes == 1000 && !lie->elsewhere;
        CHECK_STATUS(link_edge_move(data, BYTES, data, 0, link), honest ? STATUS_OK : STATUS_DATA);
        char found[64];
        snprintf(found, sizeof found, "rank 0 sent a slice of %zu bytes", lie->bytes);
        CHECK_MSG(honest || strstr(status_text(), found) != NULL, "%s", status_text());
        CHECK_MSG(honest || strstr(status_text(), "expected 1000") != NULL, "%s", status_text());
        CHECK(data[0] == 7 && data[LINK_SLOT_BYTES - 1] == 7 &&
              data[BYTES - 1] == (honest ? 7 : 0) && data[BYTES] == 0);
        CHECK_OK(link_edge_drain(link));
    }
    free(data);
}

static void body(struct bootstrap *bootstrap, void *argument)
{
    const struct lie *lie = argument;
    struct device *device = NULL;
    struct link_edge link;
    CHECK_OK(device_open(&device, "host"));
    if (CHECK_OK(link_edge_open(&link, transport_by_name(lie->transport), bootstrap, device)))
        one_way(&link, lie);
    CHECK_OK(bootstrap_barrier(bootstrap));
    link_edge_close(&link);
    device_close(device);
}

int main(void)
{
    struct lie lies[] = {
        {"shm", 1000, false},
        {"shm", 999, false},
        {"shm", LINK_SLOT_BYTES, false},
        {"shm", 1000, true},
        {"tcp", 1000, false},
        {"tcp", LINK_SLOT_BYTES, false},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        if (test_takes(lies[i].transport)) ranks_as_threads(2, 10000, body, &lies[i]);
    return test_result();
}
