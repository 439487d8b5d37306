/* tunables: the settings of a communicator: as they are given, else as the environment says, else the defaults; and what of them
 * must be the same on all ranks.
 */
#ifndef RING_TUNABLES_H
#define RING_TUNABLES_H

#include <stdint.h>

#include "ring/ring.h"
#include "verbs/transport.h"

#define TUNABLE_TEXT 16

/* What ranks tell one another when a communicator opens. */
struct tunables {
    uint64_t slot_bytes, slot_count, exchange_bytes, star_bytes, window_bytes, check_roots_bytes, cuda_line_bytes;
    int64_t channels, timeout_ms, hierarchy;
    char transport[TUNABLE_TEXT], cuda_mode[TUNABLE_TEXT];
};

/* Fills in what `given` leaves out; timeout_ms: the default. *transport: NULL for auto.
 * errors: INVALID, naming the variable, its value and what is expected. */
MUST_CHECK enum status tunables_resolve(struct ring_config *config, const struct transport **transport,
    const struct ring_config *given, int timeout_ms);

struct tunables tunables_told(const struct ring_config *config);

/* INVALID, naming the first that differs, its two values and the rank. */
MUST_CHECK enum status tunables_compare(const struct tunables *zero, const struct tunables *other, int rank);

#endif
