/* edge_ibv_off: takes the place of edge_ibv.c where libibverbs was not found: a transport that is
 * never available, and says why. */
#include "verbs/transport.h"

#define WHY                                                                                        \
    "this program was built without libibverbs (Debian: apt install libibverbs-dev, then "         \
    "configure and build again)"

static bool off_available(const char **why, const struct device *device)
{
    (void)device;
    *why = WHY;
    return false;
}

static enum status off_offer(struct edge *edge, struct edge_offer *offer)
{
    (void)edge;
    (void)offer;
    return FAIL(STATUS_INVALID, "no verbs edge: " WHY);
}

static enum status off_connect(struct edge *edge, bool *ready)
{
    (void)edge;
    *ready = false;
    return STATUS_OK;
}

static void off_close(struct edge *edge)
{
    (void)edge;
}

const struct transport transport_verbs = {
    .name = "verbs",
    .available = off_available,
    .offer = off_offer,
    .connect = off_connect,
    .close = off_close,
};
