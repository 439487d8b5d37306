/* tunables: see tunables.h. */
#include "ring/tunables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/kernel_host.h"
#include "ring/threshold.h"
#include "ring/window.h"

#define DEFAULT_SLOT_BYTES ((size_t)256 << 10)
#define DEFAULT_SLOT_COUNT 8
#define DEFAULT_WINDOW_BYTES ((size_t)16 << 10)
#define CHECK_ROOTS_BYTES  ((size_t)256 << 10)
#define CHECK_ALL_ROOTS    1
#define DEFAULT_LINE_BYTES ((size_t)8 << 10)
#define MOST_LINE_BYTES    ((size_t)1 << 20)
#define STAR_NAME          "RINGZERO_STAR_BYTES"
#define MOST_STAR_BYTES    (1 << 20)
#define MOST_SLOT_BYTES    ((uint64_t)1 << 30)
#define MOST_SLOTS         1024
#define MOST_EXCHANGE      ((uint64_t)1 << 20)
#define EXCHANGE_NAME      "RINGZERO_EXCHANGE_BYTES"
#define NO_EXCHANGE        1 /* RINGZERO_EXCHANGE_BYTES 0: a part of no bytes fits, no element does */

/* ---- as given, by the environment, by default ---- */

static enum status tunable_from_environment(uint64_t *value, const char *name, uint64_t least, uint64_t most)
{
    const char *text = getenv(name);
    if (text == NULL || *value != 0) return STATUS_OK;
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != 0 || number < least || number > most)
        return FAIL(STATUS_INVALID, "%s is \"%s\"; expected a number from %llu to %llu%s", name, text,
            (unsigned long long)least, (unsigned long long)most, strcmp(name, EXCHANGE_NAME) == 0 ? ", or measure" : "");
    *value = number;
    return STATUS_OK;
}

static enum status resolve_hierarchy(struct ring_config *config)
{
    const char *text = getenv("RINGZERO_HIERARCHY");
    if (config->hierarchy != HIERARCHY_GIVEN) text = NULL;
    if (text != NULL && hierarchy_from_name(&config->hierarchy, text) != 0)
        return FAIL(STATUS_INVALID, "RINGZERO_HIERARCHY is \"%s\"; expected auto, flat or two_level", text);
    if (config->hierarchy == HIERARCHY_GIVEN) config->hierarchy = HIERARCHY_AUTO;
    return STATUS_OK;
}

static enum status resolve_cuda_mode(struct ring_config *config)
{
    static const char *const modes[] = {"auto", "copies", "kernel"};
    const char *mode = config->cuda_mode != NULL ? config->cuda_mode : getenv("RINGZERO_CUDA_MODE");
    if (mode == NULL) mode = "auto";
    for (int i = 0; i < 3; i++) {
        if (strcmp(mode, modes[i]) != 0) continue;
        config->cuda_mode = modes[i]; /* the caller's text need not outlive the call */
        return STATUS_OK;
    }
    return FAIL(STATUS_INVALID, "RINGZERO_CUDA_MODE is \"%s\"; expected auto, copies or kernel", mode);
}

static enum status resolve_line_bytes(struct ring_config *config)
{
    uint64_t bytes = config->cuda_line_bytes;
    TRY(tunable_from_environment(&bytes, "RINGZERO_CUDA_LINE_BYTES", 0, MOST_LINE_BYTES));
    if (bytes == 0) bytes = getenv("RINGZERO_CUDA_LINE_BYTES") == NULL ? DEFAULT_LINE_BYTES : KERNEL_NO_LINES;
    config->cuda_line_bytes = bytes;
    return STATUS_OK;
}

static enum status resolve_star_bytes(struct ring_config *config)
{
    uint64_t bytes = config->star_bytes;
    TRY(tunable_from_environment(&bytes, STAR_NAME, 0, MOST_STAR_BYTES));
    if (bytes == 0) bytes = getenv(STAR_NAME) == NULL ? COMM_STAR_AUTO : COMM_NO_STAR;
    if (bytes > MOST_STAR_BYTES && bytes != COMM_STAR_AUTO)
        return FAIL(STATUS_INVALID, "star_bytes is %llu; expected at most %d, or SIZE_MAX", (unsigned long long)bytes, MOST_STAR_BYTES);
    config->star_bytes = bytes;
    return STATUS_OK;
}

/* Wherever they are from: sizes of memory are made of them. */
static enum status check_values(const struct ring_config *config)
{
    if (config->slot_bytes % 64 != 0 || config->slot_bytes > MOST_SLOT_BYTES)
        return FAIL(STATUS_INVALID, "RINGZERO_SLOT_BYTES is %zu; expected a multiple of 64, at most %llu",
            config->slot_bytes, (unsigned long long)MOST_SLOT_BYTES);
    if (config->slot_count < 2 || config->slot_count > MOST_SLOTS || (config->slot_count & (config->slot_count - 1)) != 0)
        return FAIL(STATUS_INVALID, "RINGZERO_SLOTS is %llu; expected a power of two from 2 to %d",
            (unsigned long long)config->slot_count, MOST_SLOTS);
    if (config->exchange_bytes > MOST_EXCHANGE && config->exchange_bytes != THRESHOLD_MEASURE)
        return FAIL(STATUS_INVALID, "exchange_bytes is %zu; expected at most %llu, or SIZE_MAX", config->exchange_bytes,
            (unsigned long long)MOST_EXCHANGE);
    if (config->channels < 1 || config->channels > RING_MAX_CHANNELS)
        return FAIL(STATUS_INVALID, "RINGZERO_CHANNELS is %d; expected 1 to %d", config->channels, RING_MAX_CHANNELS);
    if (config->timeout_ms < 0)
        return FAIL(STATUS_INVALID, "timeout_ms is %d; expected 0, for the job's, or more", config->timeout_ms);
    return STATUS_OK;
}

enum status tunables_resolve(struct ring_config *config, const struct transport **transport,
    const struct ring_config *given, int timeout_ms)
{
    *config = *given;
    *transport = NULL;
    uint64_t slot_bytes = config->slot_bytes, channels = (uint64_t)config->channels;
    uint64_t exchange_bytes = config->exchange_bytes;
    const char *exchange_text = getenv(EXCHANGE_NAME);
    if (exchange_bytes == 0 && exchange_text != NULL && strcmp(exchange_text, "measure") == 0) exchange_bytes = THRESHOLD_MEASURE;
    TRY(tunable_from_environment(&exchange_bytes, EXCHANGE_NAME, 0, MOST_EXCHANGE));
    TRY(tunable_from_environment(&slot_bytes, "RINGZERO_SLOT_BYTES", 64, MOST_SLOT_BYTES));
    TRY(tunable_from_environment(&config->slot_count, "RINGZERO_SLOTS", 2, MOST_SLOTS));
    TRY(tunable_from_environment(&channels, "RINGZERO_CHANNELS", 1, RING_MAX_CHANNELS));
    if (config->check_roots_bytes == 0) {
        uint64_t bytes = 0;
        TRY(tunable_from_environment(&bytes, "RINGZERO_CHECK_ROOTS", 0, UINT64_MAX));
        config->check_roots_bytes = bytes > 0 ? bytes : getenv("RINGZERO_CHECK_ROOTS") != NULL ? CHECK_ALL_ROOTS : CHECK_ROOTS_BYTES;
    }
    TRY(resolve_hierarchy(config));
    TRY(resolve_cuda_mode(config));
    if (config->transport == NULL) config->transport = getenv("RINGZERO_TRANSPORT");
    if (config->transport == NULL) config->transport = "auto";
    if (exchange_bytes == 0) exchange_bytes = config->exchange_bytes == 0 && exchange_text == NULL ? COMM_EXCHANGE_BYTES : NO_EXCHANGE;
    config->exchange_bytes = exchange_bytes;
    const char *window_text = getenv("RINGZERO_WINDOW_BYTES");
    uint64_t window_bytes = config->window_bytes;
    TRY(tunable_from_environment(&window_bytes, "RINGZERO_WINDOW_BYTES", 0, (uint64_t)1 << 40));
    if (window_bytes == 0) window_bytes = window_text == NULL ? DEFAULT_WINDOW_BYTES : WINDOW_NONE;
    config->window_bytes = window_bytes;
    TRY(resolve_line_bytes(config));
    TRY(resolve_star_bytes(config));
    if (slot_bytes == 0) slot_bytes = DEFAULT_SLOT_BYTES;
    if (config->slot_count == 0) config->slot_count = DEFAULT_SLOT_COUNT;
    if (channels == 0) channels = 1;
    config->slot_bytes = slot_bytes;
    config->channels = (int)channels;
    if (config->timeout_ms == 0) config->timeout_ms = timeout_ms;

    TRY(check_values(config));
    if (config->custom != NULL) {
        *transport = config->custom;
        config->transport = config->custom->name;
        return STATUS_OK;
    }
    if (strcmp(config->transport, "auto") == 0) return STATUS_OK;
    *transport = transport_by_name(config->transport);
    if (*transport == NULL)
        return FAIL(STATUS_INVALID, "transport is \"%s\"; expected auto, shm, tcp, verbs or cuda_ipc", config->transport);
    config->transport = (*transport)->name; /* the caller's text need not outlive the call */
    return STATUS_OK;
}

/* ---- alike on all ranks ---- */

static enum status compare(const char *name, const char *zero, const char *other, int rank)
{
    if (strcmp(zero, other) == 0) return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s is %s on rank 0 and %s on rank %d: give all ranks the same value", name, zero, other, rank);
}

/* SIZE_MAX has a word. */
static const char *bytes_word(uint64_t bytes, const char *most, char text[24])
{
    if (bytes == SIZE_MAX) return most;
    snprintf(text, 24, "%llu", (unsigned long long)bytes);
    return text;
}

static enum status compare_number(const char *name, uint64_t zero, uint64_t other, int rank)
{
    char a[24], b[24];
    snprintf(a, sizeof a, "%llu", (unsigned long long)zero);
    snprintf(b, sizeof b, "%llu", (unsigned long long)other);
    return compare(name, a, b, rank);
}

struct tunables tunables_told(const struct ring_config *config)
{
    struct tunables told = {
        .slot_bytes = config->slot_bytes,
        .slot_count = config->slot_count,
        .exchange_bytes = config->exchange_bytes,
        .star_bytes = config->star_bytes,
        .window_bytes = config->window_bytes,
        .check_roots_bytes = config->check_roots_bytes,
        .cuda_line_bytes = config->cuda_line_bytes,
        .channels = config->channels,
        .timeout_ms = config->timeout_ms,
        .hierarchy = config->hierarchy,
    };
    snprintf(told.transport, sizeof told.transport, "%s", config->transport);
    snprintf(told.cuda_mode, sizeof told.cuda_mode, "%s", config->cuda_mode);
    return told;
}

/* Whatever another rank has sent. */
static const char *hierarchy_word(int64_t hierarchy)
{
    return hierarchy >= 0 && hierarchy < HIERARCHY_COUNT ? hierarchy_name((enum hierarchy)hierarchy) : "unknown";
}

static enum status compare_texts(const char *name, const char *zero, const char *other, int rank)
{
    char a[TUNABLE_TEXT + 1] = "", b[TUNABLE_TEXT + 1] = "";
    memcpy(a, zero, TUNABLE_TEXT);
    memcpy(b, other, TUNABLE_TEXT);
    return compare(name, a, b, rank);
}

enum status tunables_compare(const struct tunables *zero, const struct tunables *other, int rank)
{
    char a[24], b[24];
    TRY(compare_texts("RINGZERO_TRANSPORT (--transport)", zero->transport, other->transport, rank));
    TRY(compare_number("RINGZERO_SLOT_BYTES", zero->slot_bytes, other->slot_bytes, rank));
    TRY(compare(EXCHANGE_NAME, bytes_word(zero->exchange_bytes, "measure", a), bytes_word(other->exchange_bytes, "measure", b), rank));
    TRY(compare(STAR_NAME, bytes_word(zero->star_bytes, "not given", a), bytes_word(other->star_bytes, "not given", b), rank));
    TRY(compare_number("RINGZERO_WINDOW_BYTES", zero->window_bytes, other->window_bytes, rank));
    TRY(compare_number("RINGZERO_SLOTS", zero->slot_count, other->slot_count, rank));
    TRY(compare_number("RINGZERO_CHECK_ROOTS", zero->check_roots_bytes, other->check_roots_bytes, rank));
    TRY(compare_number("RINGZERO_CUDA_LINE_BYTES", zero->cuda_line_bytes, other->cuda_line_bytes, rank));
    TRY(compare_number("RINGZERO_CHANNELS", (uint64_t)zero->channels, (uint64_t)other->channels, rank));
    TRY(compare("RINGZERO_HIERARCHY", hierarchy_word(zero->hierarchy), hierarchy_word(other->hierarchy), rank));
    TRY(compare_texts("RINGZERO_CUDA_MODE", zero->cuda_mode, other->cuda_mode, rank));
    return compare_number("RINGZERO_TIMEOUT_MS", (uint64_t)zero->timeout_ms, (uint64_t)other->timeout_ms, rank);
}
