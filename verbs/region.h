/* region: memory of one rank that the other ranks of its host read in place.
 *
 * A rank has one book, two shared pages that say which regions it has; the others open it once, as a view, and map a region when
 * they first meet a reference to it. Some regions are stages, for data whose own memory nobody else can see, and some boards, of a
 * few lines that all others look at. Everything is anonymous (memfd): nothing is left behind after SIGKILL, and what a view has
 * mapped outlives its owner.
 *
 *   offset   bytes    what                                                                   written by
 *   0        64       book_page: what this is, and whether its owner has given up            owner
 *   64       252·32   entries: id (0: free), descriptor, bytes                               owner (id last, release)
 *
 *   reference, one word    bits 0–39    offset in the region
 *                          40–47        entry: 0–125 of stages, 126–188 of boards, 189–251 of all other regions, so that no
 *                                       kind takes the place of another
 *                          48–62        id of the entry, never 0: a region freed and another in its place are told apart
 *                          63           the caller's
 *
 *                          48–62 = 0: an address of the owner's, in bits 0–47: memory that lies in no region, which readers have
 *                          the kernel copy (process_vm_readv), where it lets them. One copy, as of a region; but each costs the
 *                          kernel a walk through the pages
 *
 * A reader must not take what an owner has already handed back to its user for what it was. In an operation that ends well the owner
 * waits until all have read (the head of a FIFO). One that gives up says so first: region_book_give_up(); a reader looks
 * after its last load: region_view_holds(). So data that was overwritten under a reader never passes for a result.
 */
#ifndef VERBS_REGION_H
#define VERBS_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

struct region_book; /* own */
struct region_view; /* of another rank's book */

/* Where others find a book. pid 0: there is none. */
struct region_offer {
    int64_t pid, fd;
    uint64_t nonce;
    uint64_t page; /* where the owner has its book mapped */
};

#define REGION_MARK   ((uint64_t)1 << 63)
#define REGION_STAGES 126 /* of a book, */
#define REGION_BOARDS 63  /* and other regions as many */

/* Of memory that lies in no region: for region_view_copy(), not for region_view_find(). */
static inline bool region_is_bare(uint64_t reference) { return (reference & ~REGION_MARK) >> 48 == 0; }
static inline bool region_is_stage(uint64_t reference)
{
    return !region_is_bare(reference) && (reference >> 40 & 0xff) < REGION_STAGES;
}

/* errors: SYSTEM (descriptors, memory). share: one more owner; close: one less; NULL is accepted. Views may outlive the book.
 * threads: any. */
MUST_CHECK enum status region_book_open(struct region_book **book);
struct region_book *region_book_share(struct region_book *book);
void region_book_close(struct region_book *book);
struct region_offer region_book_offer(const struct region_book *book);

/* Zeroed memory that views can map, aligned to 4096 bytes; not counted. NULL: no more entries, or none to be had. free returns false
 * for memory that is no region. threads: any. */
void *region_alloc(size_t bytes, struct region_book *book);
void *region_alloc_stage(size_t bytes, struct region_book *book);
void *region_alloc_board(size_t bytes, struct region_book *book);
bool region_free(void *ptr, struct region_book *book);

/* The reference to memory that lies in one region; 0: it does not. threads: any. */
uint64_t region_reference(const void *ptr, size_t bytes, struct region_book *book);

/* The reference to any memory of this process, at least a byte; 0: not even its own kernel would copy it (a device's, say). Memory that
 * it would have copied is not looked at again for a while: a device's that is mapped in its place then fails at the reader, with DATA,
 * so ask only of memory that no device's driver maps.
 * threads: any. */
uint64_t region_bare_reference(const void *ptr, size_t bytes, struct region_book *book);

/* Whether the kernel lets this process copy from the owner of a book. */
bool region_offer_may_copy(const struct region_offer *offer);

/* From here on region_view_holds() is false everywhere. */
void region_book_give_up(struct region_book *book);

/* errors: PEER when the owner is gone. close accepts NULL. threads: one at a time per view. */
MUST_CHECK enum status region_view_open(struct region_view **view, const struct region_offer *offer);
void region_view_close(struct region_view *view);

/* Forgets the regions that their owner has freed. cost: a load for each that is mapped. */
void region_view_sweep(struct region_view *view);

/* Where the `bytes` of a reference are in this process. errors: DATA when it lies in no region, PEER when the owner is gone or has given up. */
MUST_CHECK enum status region_view_find(
    const unsigned char **ptr, uint64_t reference, size_t bytes, struct region_view *view);

/* Copies the `bytes` of a bare reference. errors: DATA when its owner has no such memory, PEER when it is gone or has given up. */
MUST_CHECK enum status region_view_copy(void *to, uint64_t reference, size_t bytes, const struct region_view *view);

/* Whether all that was read until now was what the owner had posted. */
bool region_view_holds(const struct region_view *view);

#endif
