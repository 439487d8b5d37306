/* tokens_write: writes token shards: PREFIX_000000.bin, PREFIX_000001.bin, …, each of the same number of
 * tokens but the last.
 *
 * Invariant: a file of that name is whole. It is written as ….bin.part, and gets its name when its header
 * tells its tokens.
 */
#ifndef MODEL_TOKENS_WRITE_H
#define MODEL_TOKENS_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

#define TOKENS_MOST_PER_SHARD INT32_MAX

struct tokens_writer;

/* vocab: ids are below; to 65,536 they take 2 bytes, else 4. per_shard: 1 to TOKENS_MOST_PER_SHARD.
 * errors: INVALID (shards of this prefix are there already, which a run would read too), SYSTEM. */
MUST_CHECK enum status tokens_writer_open(
    struct tokens_writer **writer, const char *prefix, int64_t per_shard, int32_t vocab);

/* errors: SYSTEM naming file and reason. */
MUST_CHECK enum status tokens_writer_append(
    const int32_t *ids, size_t count, struct tokens_writer *writer);

/* The last shard becomes whole too. */
MUST_CHECK enum status tokens_writer_finish(struct tokens_writer *writer);

uint64_t tokens_writer_count(const struct tokens_writer *writer);
int tokens_writer_shards(const struct tokens_writer *writer);

/* Removes what is not whole. NULL is accepted. */
void tokens_writer_close(struct tokens_writer *writer);

#endif
