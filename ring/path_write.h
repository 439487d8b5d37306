/* path_write: how a path is written down, for path.c and path_exchange.c: lists that grow.
 */
#ifndef RING_PATH_WRITE_H
#define RING_PATH_WRITE_H

#include "ring/operation.h"
#include "ring/path.h"

/* errors: SYSTEM: no memory. */
MUST_CHECK enum status path_add_message(struct path *path, const struct path_message *message);
/* To the last message. */
MUST_CHECK enum status path_add_block(struct path *path, struct path_block block);
MUST_CHECK enum status path_add_sum(struct path *path, struct path_sum sum);

/* Follows the plans of all ranks of an operation that is an exchange. Leaves operation->comm->rank
 * at any. errors: SYSTEM: no memory. */
MUST_CHECK enum status path_follow_exchange(struct path *path, const struct operation *operation);

#endif
