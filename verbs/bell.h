/* bell: how a rank that sleeps is woken by a neighbour that shares memory with it.
 *
 * A rank has one bell, a page that its neighbours map. Before it sleeps it says so, looks once more whether anything has come,
 * and sleeps on the page; whoever posts or frees a step looks at `sleeping`, nearly always 0 and in his cache, and rings.
 *
 *   sleeper                                        neighbour
 *   1 sleeping = 1                                 1 post a step
 *   2 barrier: bell_listen()                       2 (nothing: the sleeper's barrier reaches him too)
 *   3 look: anything posted?                       3 sleeping? then rings++, futex wake
 *   4 futex wait while rings is unchanged
 *
 * Between 1 and 3 of either side every order must be seen by both; the barrier for that is paid by the sleeper alone
 * (membarrier, which interrupts the neighbours' cores), not by every post. Where the kernel has no such barrier, and in any
 * case, a sleep ends after the time given, so a missed ring costs a moment, never a hang.
 */
#ifndef VERBS_BELL_H
#define VERBS_BELL_H

#include <stdint.h>

#include "verbs/status.h"

struct bell; /* own */

/* The page that neighbours share. */
struct bell_page {
    uint32_t sleeping; /* written by the owner, read by neighbours */
    uint32_t rings;    /* written by neighbours, the word that the owner sleeps on */
};

/* Where a neighbour finds it. */
struct bell_offer {
    int64_t pid, fd;
    uint64_t nonce;
};

/* errors: SYSTEM (memory, descriptors). Closing while neighbours have it mapped is fine. NULL is accepted. threads: any. */
MUST_CHECK enum status bell_open(struct bell **bell);
void bell_close(struct bell *bell);
struct bell_offer bell_offer(const struct bell *bell);

/* The own page, for threads of the owner's process that have work for a sleeper. */
struct bell_page *bell_own_page(struct bell *bell);

/* Maps a neighbour's bell; NULL when it cannot be found: then it is never rung, and its owner sleeps its time out. */
struct bell_page *bell_attach(const struct bell_offer *offer);
void bell_detach(struct bell_page *page);

/* Neighbour: after every post and free. */
void bell_wake(struct bell_page *page);
static inline void bell_ring(struct bell_page *page)
{
    if (page != 0 && __atomic_load_n(&page->sleeping, __ATOMIC_RELAXED) != 0) bell_wake(page);
}

/* Owner: says that it is about to sleep. Look for work once more between this and bell_sleep(). */
uint32_t bell_listen(struct bell *bell);
/* Sleeps until somebody has rung since bell_listen() gave `rings`, or max_ns have passed; then is awake. */
void bell_sleep(struct bell *bell, uint32_t rings, int64_t max_ns);
/* Awake without having slept. */
void bell_awake(struct bell *bell);

#endif
