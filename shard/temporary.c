/* temporary: see temporary.h. */
#include "shard/temporary.h"

#include "shard/stage.h"

/* What one use takes. */
struct need {
    int count; /* 0, 1 or 2 */
    size_t bytes;
    enum memory_tag tag;
};

/* Elements of the largest of the first units. */
static size_t largest_of(int units, const struct layout *layout)
{
    size_t largest = 0;
    for (int u = 0; u < units; u++) {
        size_t padded = layout_padded(layout, u);
        largest = padded > largest ? padded : largest;
    }
    return largest;
}

static struct need gathered(const struct stage_config *config)
{
    if (stage_keeps(config).weights != KEEP_SHARD) return (struct need){0};
    size_t largest = largest_of(config->layout->unit_count, config->layout);
    return (struct need){2, largest * dtype_bytes(config->dtype), MEMORY_GATHERED};
}

/* Where gradients are kept whole, only the embedding's input part is lent a buffer, and in a pipeline,
 * where it is the only part, not even that. */
static struct need gradient(const struct stage_config *config)
{
    bool shards = stage_keeps(config).gradients == KEEP_SHARD;
    int units = shards ? config->layout->unit_count : config->params->embedding_units;
    size_t bytes = largest_of(units, config->layout) * dtype_bytes(config->gradient_dtype);
    if (!shards && stage_place(config).stage_count > 1) return (struct need){0};
    return (struct need){units > 1 ? 2 : 1, bytes, MEMORY_GATHERED};
}

static struct need piece(enum dtype dtype, const struct stage_config *config)
{
    if (!config->offload_optimizer) return (struct need){0};
    return (struct need){2, TEMPORARY_PIECE_ELEMENTS * dtype_bytes(dtype), MEMORY_OFFLOADED};
}

static struct need need_of(enum temporary_use use, const struct stage_config *config)
{
    struct need rounded = piece(config->dtype, config);
    if (config->dtype == DTYPE_FLOAT32) rounded.bytes = 0; /* the weights themselves travel */
    switch (use) {
    case TEMPORARY_GATHERED: return gathered(config);
    case TEMPORARY_GRADIENT: return gradient(config);
    case TEMPORARY_PIECE: return piece(config->gradient_dtype, config);
    default: return rounded;
    }
}

enum status temporary_open(
    struct temporary *pair, enum temporary_use use, const struct stage_config *config)
{
    struct need need = need_of(use, config);
    struct device *device = config->device;
    enum memory_kind kind = device_kind(device);
    if (need.tag == MEMORY_OFFLOADED) kind = MEMORY_HOST_PINNED;
    pair->tag = need.tag;
    for (int i = 0; i < need.count; i++) {
        TRY(memory_alloc_kind(&pair->buffer[i], need.bytes, kind, need.tag, device));
        TRY(event_open(&pair->passed[i], device));
    }
    return STATUS_OK;
}

void temporary_close(struct temporary *pair, struct device *device)
{
    for (int i = 0; i < 2; i++) {
        memory_free(&pair->buffer[i], pair->tag, device);
        event_close(pair->passed[i], device);
    }
}

void temporary_predict(uint64_t held[MEMORY_TAG_COUNT], const struct stage_config *config)
{
    for (int use = 0; use < TEMPORARY_USE_COUNT; use++) {
        struct need need = need_of((enum temporary_use)use, config);
        held[need.tag] += (uint64_t)need.count * need.bytes;
    }
}
