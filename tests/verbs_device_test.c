/* Host memory with tags, streams and events: order, asynchrony, failures, and that nothing waits for what will never run.
 * ctest: timeout=30
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "verbs/device.h"
#include "verbs/dtype.h"

struct step {
    int *log;
    int *length;
    int value;
    int sleep_us;
    enum status result;
};

static enum status append(void *arguments)
{
    struct step *step = arguments;
    if (step->sleep_us > 0) usleep((useconds_t)step->sleep_us);
    if (step->result != STATUS_OK) return FAIL(step->result, "step %d failed on purpose", step->value);
    step->log[(*step->length)++] = step->value;
    return STATUS_OK;
}

static void check_memory(struct device *device)
{
    struct span a, b, none;
    CHECK_OK(memory_alloc(&a, 1000, MEMORY_WEIGHTS, device));
    CHECK_OK(memory_alloc(&b, (size_t)5 << 20, MEMORY_WEIGHTS, device));
    CHECK_OK(memory_alloc(&none, 0, MEMORY_GRADIENTS, device));
    CHECK(none.ptr == NULL && a.kind == MEMORY_HOST && a.bytes == 1000);
    CHECK((uintptr_t)a.ptr % 64 == 0 && (uintptr_t)b.ptr % ((size_t)2 << 20) == 0);
    size_t dirty = 0;
    for (size_t i = 0; i < b.bytes; i++) dirty += ((unsigned char *)b.ptr)[i] != 0;
    CHECK(dirty == 0);
    CHECK(memory_account_read(device).now[MEMORY_WEIGHTS] == 1000 + ((size_t)5 << 20));
    memory_free(&b, MEMORY_WEIGHTS, device);
    memory_free(&none, MEMORY_GRADIENTS, device);
    struct memory_account account = memory_account_read(device);
    CHECK(account.now[MEMORY_WEIGHTS] == 1000 && account.peak[MEMORY_WEIGHTS] == 1000 + ((size_t)5 << 20));
    memory_free(&a, MEMORY_WEIGHTS, device);
    CHECK(a.ptr == NULL && memory_account_read(device).now[MEMORY_WEIGHTS] == 0);
    CHECK_STATUS(memory_alloc(&a, SIZE_MAX / 4, MEMORY_OPTIMIZER, device), STATUS_SYSTEM);
    CHECK(strstr(status_text(), "optimizer") != NULL && memory_account_read(device).now[MEMORY_OPTIMIZER] == 0);
}

static void check_order(struct device *device)
{
    struct stream *stream;
    int log[1000], length = 0;
    CHECK_OK(stream_open(&stream, device, "test"));
    for (int i = 0; i < 1000; i++) { /* more than the queue holds */
        struct step step = {log, &length, i, i == 0 ? 20000 : 0, STATUS_OK};
        CHECK_OK(stream_call(stream, append, &step, sizeof step, device)); /* the arguments are copied */
    }
    CHECK_OK(stream_synchronize(stream, device));
    CHECK(length == 1000);
    int wrong = 0;
    for (int i = 0; i < length; i++) wrong += log[i] != i;
    CHECK(wrong == 0);
    stream_close(stream, device);
}

static void check_failure(struct device *device)
{
    struct stream *stream;
    int log[8], length = 0;
    CHECK_OK(stream_open(&stream, device, "test"));
    for (int i = 0; i < 4; i++) {
        struct step step = {log, &length, i, 0, i == 1 ? STATUS_PEER : i == 2 ? STATUS_DATA : STATUS_OK};
        CHECK_OK(stream_call(stream, append, &step, sizeof step, device));
    }
    CHECK_STATUS(stream_synchronize(stream, device), STATUS_PEER); /* the first failure, with its text */
    CHECK(strcmp(status_text(), "step 1 failed on purpose") == 0);
    CHECK(length == 1); /* later calls were skipped */
    struct step step = {log, &length, 9, 0, STATUS_OK};
    CHECK_OK(stream_call(stream, append, &step, sizeof step, device));
    CHECK_OK(stream_synchronize(stream, device)); /* reported once, then it goes on */
    CHECK(length == 2 && log[1] == 9);
    stream_close(stream, device);
}

/* Stream b goes on only after a's event; the caller too. */
static void check_events(struct device *device)
{
    struct stream *a, *b;
    struct event *event, *never;
    int log[4], length = 0;
    CHECK_OK(stream_open(&a, device, "a"));
    CHECK_OK(stream_open(&b, device, "b"));
    CHECK_OK(event_open(&event, device));
    CHECK_OK(event_open(&never, device));
    CHECK_OK(event_synchronize(never, device)); /* never recorded: has passed */
    CHECK_OK(event_wait(never, b, device));
    struct step slow = {log, &length, 1, 30000, STATUS_OK}, after = {log, &length, 2, 0, STATUS_OK};
    CHECK_OK(stream_call(a, append, &slow, sizeof slow, device));
    CHECK_OK(event_record(event, a, device));
    CHECK_OK(event_wait(event, b, device));
    CHECK_OK(stream_call(b, append, &after, sizeof after, device));
    CHECK_OK(stream_synchronize(b, device));
    CHECK(length == 2 && log[0] == 1 && log[1] == 2);
    CHECK_OK(stream_call(a, append, &slow, sizeof slow, device));
    CHECK_OK(event_record(event, a, device));
    CHECK_OK(event_synchronize(event, device));
    CHECK(length == 3 && log[2] == 1);

    /* An event behind a failure passes; the failure stays with its stream. */
    struct step broken = {log, &length, 3, 0, STATUS_SYSTEM};
    CHECK_OK(stream_call(a, append, &broken, sizeof broken, device));
    CHECK_OK(event_record(event, a, device));
    CHECK_OK(event_synchronize(event, device));
    CHECK_STATUS(stream_synchronize(a, device), STATUS_SYSTEM);
    stream_close(a, device);
    stream_close(b, device);
    event_close(event, device);
    event_close(never, device);
}

/* Every bfloat16 survives the way to float32 and back; rounding is to nearest, ties to even. */
static void check_bfloat16(void)
{
    int wrong = 0;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t back = float32_to_bfloat16(bfloat16_to_float32((uint16_t)bits));
        bool nan = (bits & 0x7fff) > 0x7f80;
        wrong += nan ? (back & 0x7fff) <= 0x7f80 : back != bits;
    }
    CHECK(wrong == 0);
    CHECK(float32_to_bfloat16(1.00390625f) == 0x3f80);  /* a tie: down to even */
    CHECK(float32_to_bfloat16(1.01171875f) == 0x3f82);  /* a tie: up to even */
    CHECK(float32_to_bfloat16(3.4e38f) == 0x7f80);      /* rounds to infinity */
    enum dtype dtype;
    CHECK(dtype_from_name(&dtype, "float") == 0 && dtype == DTYPE_FLOAT32 && dtype_from_name(&dtype, "f64") == -1);
    for (int d = 0; d < DTYPE_COUNT; d++)
        CHECK(dtype_from_name(&dtype, dtype_name((enum dtype)d)) == 0 && dtype == (enum dtype)d);
}

int main(void)
{
    struct device *device;
    CHECK_STATUS(device_open(&device, "cuda"), STATUS_INVALID);
    CHECK_OK(device_open(&device, "host"));
    check_memory(device);
    check_order(device);
    check_failure(device);
    check_events(device);
    check_bfloat16();
    device_close(device);
    return test_result();
}
