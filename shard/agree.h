/* agree: a failure on any rank becomes the same failure on every rank, and settings that must be
 * equal are compared.
 *
 * For what ranks do beside the data path: opening files, allocating, writing checkpoints. Goes
 * through the bootstrap, so it works while the communicator is idle.
 */
#ifndef SHARD_AGREE_H
#define SHARD_AGREE_H

#include <stddef.h>

#include "verbs/bootstrap.h"

/* Returns OK on every rank when `status` was OK on every rank. Otherwise a rank that failed keeps
 * its status and text, and the others get those of the first that failed, as "rank 2: text".
 * collective. errors: also the bootstrap's own. */
MUST_CHECK enum status agree(enum status status, struct bootstrap *bootstrap);

/* A number that must be the same on all ranks. */
struct agree_value {
    const char *name;
    double value;
    const char *(*word)(double value); /* what people call the value; NULL: by its number */
};
/* A value as people write it: by its word; whole numbers whole, others as a float has digits. */
#define AGREE_TEXT_BYTES 32
void agree_text(char text[AGREE_TEXT_BYTES], double value, const struct agree_value *like);

/* errors: INVALID naming the first that differs, both values and the rank. collective: the same
 * names on every rank. */
MUST_CHECK enum status agree_values(
    const struct agree_value *values, int count, struct bootstrap *bootstrap);

#endif
