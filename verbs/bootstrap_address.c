/* bootstrap_address: which address of each rank the others are given.
 *
 * Keeps: when ranks run on several hosts nobody is told an address that means something on one host alone. A rank
 * proposes RINGZERO_INTERFACE's address, or the local end of its control connection. On rank 0's own host that end
 * is often loopback, because Debian lets a host's own name be 127.0.1.1 there; but rank 0 has seen by which address the
 * ranks of other hosts come, and that is the address of all ranks of its host:
 *
 *   host A: rank 0 ◄── 127.0.1.1 ── rank 1      rank 1 proposes 127.0.1.1, and is given 10.0.0.1
 *             ▲
 *             └── 10.0.0.1 ◄── 10.0.0.2 ── rank 2 on host B: is given 10.0.0.2, as it proposes
 */
#include <stdio.h>
#include <string.h>

#include "verbs/bootstrap_internal.h"

static bool on_one_host(const struct hello *hellos, int nranks)
{
    for (int r = 1; r < nranks; r++)
        if (strcmp(hellos[r].host, hellos[0].host) != 0) return false;
    return true;
}

/* The address by which a rank found rank 0; one of another host, where there is one. */
static void find_hub_address(char text[ADDRESS_TEXT_BYTES], const struct hello *hellos, const struct bootstrap *b)
{
    int witness = 1;
    for (int r = b->nranks - 1; r > 0; r--)
        if (strcmp(hellos[r].host, hellos[0].host) != 0) witness = r;
    bool loopback;
    socket_address(text, &loopback, b->links[witness].fd, false, false);
}

enum status join_settle_addresses(struct hello *hellos, const struct bootstrap *b)
{
    bool one_host = on_one_host(hellos, b->nranks);
    char *hub = hellos[0].address; /* "" unless RINGZERO_INTERFACE gave it */
    if (hub[0] == '\0') find_hub_address(hub, hellos, b);
    for (int r = 0; r < b->nranks; r++) {
        char *address = hellos[r].address;
        if (!socket_is_local_address(address)) continue;
        if (one_host) {
            /* An address with a scope is for the control connection alone: edges are told plain ones. */
            if (strchr(address, '%') != NULL) snprintf(address, ADDRESS_TEXT_BYTES, "::1");
        } else if (strcmp(hellos[r].host, hellos[0].host) == 0 && !socket_is_local_address(hub)) {
            memcpy(address, hub, ADDRESS_TEXT_BYTES);
        } else {
            return FAIL(STATUS_INVALID,
                "ranks run on several hosts, but the address of rank %d is %s, which means nothing on the others; "
                "expected one that they reach: set RINGZERO_INTERFACE to the network interface between the hosts, on every rank",
                r, address);
        }
    }
    return STATUS_OK;
}
