/* tunables_fuzz: the RINGZERO_* variables, as a communicator of one rank opens with them and works.
 *
 * input   { variable, length, bytes }…
 */
#include "ring/ring.h"
#include "tests/fuzz/fuzz.h"
#include "verbs/log.h"

static const char *const names[] = {"RINGZERO_EXCHANGE_BYTES", "RINGZERO_SLOT_BYTES", "RINGZERO_SLOTS", "RINGZERO_CHANNELS",
    "RINGZERO_TRANSPORT", "RINGZERO_TIMEOUT_MS", "RINGZERO_HOST", "RINGZERO_INTERFACE", "RINGZERO_LOG",
    "RINGZERO_HIERARCHY", "RINGZERO_STAR_BYTES"};
#define NAMES (sizeof names / sizeof *names)

static void check_opened(struct ring_comm *comm)
{
    const struct ring_config *config = ring_comm_config(comm);
    FUZZ_EXPECT(config->slot_bytes >= 64 && config->slot_bytes % 64 == 0 && config->slot_bytes <= (size_t)1 << 30);
    FUZZ_EXPECT(config->slot_count >= 2 && config->slot_count <= 1024 && (config->slot_count & (config->slot_count - 1)) == 0);
    FUZZ_EXPECT(config->channels >= 1 && config->channels <= 16 && config->timeout_ms > 0);
    FUZZ_EXPECT(config->exchange_bytes >= 1 && config->exchange_bytes <= (size_t)1 << 20);
    FUZZ_EXPECT(config->star_bytes >= 1 && config->star_bytes <= (size_t)1 << 20);
    float x[3] = {1, 2, 3}, y[3] = {0};
    FUZZ_EXPECT(ring_all_reduce(span_host(y, sizeof y), span_host(x, sizeof x), 3, DTYPE_FLOAT32, REDOP_SUM, comm, NULL) == STATUS_OK);
    FUZZ_EXPECT(memcmp(x, y, sizeof x) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    for (size_t i = 0; i < NAMES; i++) unsetenv(names[i]);
    while (input.bytes > 0) {
        char text[128] = "";
        const char *name = names[fuzz_byte(&input) % NAMES];
        fuzz_take(text, fuzz_byte(&input) % sizeof text, &input);
        setenv(name, text, 1);
    }
    struct bootstrap_config single = bootstrap_config_single();
    struct bootstrap *bootstrap = NULL;
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    struct ring_config config = {0};
    if (bootstrap_open(&bootstrap, &single) == STATUS_OK && device_open(&device, "host") == STATUS_OK) {
        enum status status = ring_comm_open(&comm, &config, bootstrap, device);
        FUZZ_EXPECT(status == STATUS_OK || (status == STATUS_INVALID && comm == NULL) || status == STATUS_SYSTEM);
        if (status == STATUS_OK) check_opened(comm);
    }
    ring_comm_close(comm);
    bootstrap_close(bootstrap);
    device_close(device);
    return 0;
}
