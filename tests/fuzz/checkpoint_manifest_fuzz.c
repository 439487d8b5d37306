/* checkpoint_manifest_fuzz: manifest.json of a checkpoint: any text, or an honest manifest with some bytes changed.
 *
 * input   mode, then   mode even   the text
 *                      mode odd    { place (2), byte }… of the honest one
 */
#include "shard/checkpoint_manifest.c"

#include "tests/fuzz/fuzz.h"

#define RANKS 2

/* A trainer of which only what a manifest is compared with is there. */
static const struct trainer *small_trainer(void)
{
    static struct trainer trainer;
    if (trainer.nranks > 0) return &trainer;
    trainer.config = train_config_default();
    trainer.config.model =
        (struct model_config){.max_t = 4, .vocab = 5, .layers = 1, .heads = 1, .channels = 4};
    trainer.nranks = RANKS;
    trainer.rank = 1; /* which warns of nothing */
    trainer.grid = grid_at(1, RANKS, 1, 1, 0);
    if (params_make(&trainer.params, &trainer.config.model) != STATUS_OK ||
        layout_make(&trainer.layout, &trainer.params, RANKS) != STATUS_OK)
        abort();
    return &trainer;
}

static char directory[] = "/tmp/ringzero-fuzz-XXXXXX";
static char manifest_path[CHECKPOINT_PATH_BYTES];

static void remove_manifest(void)
{
    unlink(manifest_path);
    rmdir(directory);
}

static void write_manifest(const void *text, size_t bytes)
{
    if (manifest_path[0] == '\0') {
        if (mkdtemp(directory) == NULL || path_join(manifest_path, directory, MANIFEST_NAME) != STATUS_OK) abort();
        atexit(remove_manifest);
    }
    FILE *file = fopen(manifest_path, "w");
    if (file == NULL || (bytes > 0 && fwrite(text, bytes, 1, file) != 1) || fclose(file) != 0) abort();
}

static void write_changed(const struct trainer *trainer, struct fuzz_input *input)
{
    const uint64_t bytes[RANKS] = {1728, 1728};
    const uint32_t crc[RANKS] = {1, 2};
    char *text = describe(bytes, crc, &trainer->config.model, &trainer->grid, trainer);
    size_t length = strlen(text);
    while (input->bytes >= 3) {
        size_t place = (size_t)fuzz_byte(input) | (size_t)fuzz_byte(input) << 8;
        text[place % length] = (char)fuzz_byte(input);
    }
    write_manifest(text, length);
    cJSON_free(text);
}

static void check_ranges(const struct manifest *manifest, const struct params *params)
{
    for (int s = 0; s < manifest->shard_count; s++) {
        const struct manifest_shard *shard = &manifest->shard[s];
        FUZZ_EXPECT(strchr(shard->name, '/') == NULL);
        FUZZ_EXPECT(shard->part >= 0 && shard->part < manifest->part_count && manifest->part_count <= manifest->shard_count);
        for (int i = 0; i < shard->range_count; i++) {
            const struct manifest_range *range = &shard->range[i];
            FUZZ_EXPECT(range->unit >= 0 && range->unit < params->unit_count);
            FUZZ_EXPECT(range->begin + range->count <= params->unit_elements[range->unit]);
            FUZZ_EXPECT(range->offset + range->count * sizeof(float) * STAGE_STATE_COUNT <= shard->bytes);
        }
    }
}

/* Found whole, ranges have as many elements as the model. */
static void check_cover(bool honest, const struct manifest *manifest, const struct params *params)
{
    size_t claimed = 0;
    enum status status = manifest_check_cover(manifest, directory);
    FUZZ_EXPECT(status == STATUS_OK || (status == STATUS_DATA && !honest));
    for (int s = 0; s < manifest->shard_count; s++)
        for (int i = 0; i < manifest->shard[s].range_count; i++)
            claimed += manifest->shard[s].range[i].count;
    FUZZ_EXPECT(status != STATUS_OK || claimed == params->elements);
}

/* The same file, as one reads it who knows no model. */
static void check_alone(bool honest)
{
    struct manifest manifest;
    struct params params;
    enum status status = manifest_read(&manifest, directory, NULL);
    FUZZ_EXPECT(status == STATUS_OK || !honest);
    if (status == STATUS_OK && params_make(&params, &manifest.model) == STATUS_OK) {
        FUZZ_EXPECT((double)params.elements == model_elements(&manifest.model));
        FUZZ_EXPECT((double)params.unit_count == model_unit_count(&manifest.model));
        params_free(&params);
    }
    manifest_free(&manifest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct trainer *trainer = small_trainer();
    struct fuzz_input input = {data, bytes};
    bool changes = fuzz_byte(&input) % 2 != 0, honest = bytes == 1 && changes;
    if (changes) write_changed(trainer, &input);
    else write_manifest(input.data, input.bytes);
    struct manifest manifest;
    enum status status = manifest_read(&manifest, directory, trainer);
    if (status == STATUS_OK) check_ranges(&manifest, &trainer->params);
    if (status == STATUS_OK) check_cover(honest, &manifest, &trainer->params);
    FUZZ_EXPECT(status == STATUS_OK || !honest); /* which is taken */
    manifest_free(&manifest);
    check_alone(honest);
    return 0;
}
