/* exchange_star: how small operations run where the ranks of one host share its cores and not their
 * memory: all by way of one rank.
 *
 * There a message costs system calls and a turn on a core, and the cores are busy whoever waits: what
 * counts is how many messages and turns an operation takes, not how many follow one another. Of n
 * ranks
 *
 *               messages     turns
 *   rounds      n log2 n     n log2 n
 *   star        2(n-1)       n          1 2 3 ── parts ──► 0 adds or gathers ── results ──► 1 2 3
 *
 * The others send one message and receive one, each a single run of bytes. The middle holds every
 * rank's own part, and adds as everyone does in an exchange (exchange_plan.h), so the bits are those
 * of the ring (I2). Bytes sent, of S of the whole array:
 *
 *                    the middle      another
 *   all_reduce       (n-1) S         S
 *   reduce_scatter   (n-1) S/n       S
 *   all_gather       (n-1) S         S/n
 */
#ifndef RING_EXCHANGE_STAR_H
#define RING_EXCHANGE_STAR_H

#include "ring/exchange_plan.h"

/* Whether a communicator's small operations take the star, by its tunables, ranks and hosts: alike on all ranks. */
bool exchange_has_star(const struct ring_comm *comm);

/* Whether this one does. Needs exchange_fits(). */
bool exchange_star_fits(const struct operation *operation);

/* Writes all of the plan but what describes it. */
void exchange_star_plan(struct exchange_plan *plan, const struct operation *operation);

#endif
