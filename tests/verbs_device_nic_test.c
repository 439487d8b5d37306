/* A GPU whose driver hands its memory to no NIC, as the simulator's: each refusal is one clear line
 * that says what to do, and the flush is not left out by mistake. Drivers that can do it are
 * stand-ins, in verbs_ibv_gpu_test.
 * ctest: timeout=60
 */
#include <string.h>

#include "tests/harness/harness.h"
#include "verbs/device_ops.h"

int main(void)
{
    struct device *device = NULL;
    struct span span;
    int fd = -1;
    if (!test_has_device("cudasim")) return test_skip("cudasim");
    if (!CHECK_OK(device_open(&device, "cudasim"))) return test_result();
    CHECK_OK(memory_alloc(&span, 65536, MEMORY_WORKSPACE, device));
    CHECK_STATUS(device->ops->dmabuf_export(&fd, span.ptr, span.bytes, device), STATUS_CUDA);
    CHECK(fd == -1);
    CHECK_MSG(strstr(status_text(), "no descriptor of 65536 bytes") != NULL, "%s", status_text());
    CHECK_MSG(strstr(status_text(), "open kernel modules") != NULL, "%s", status_text());
    CHECK(device->ops->nic_flush_needed(device)); /* it orders nothing, or so it says */
    CHECK_STATUS(device->ops->nic_flush(device), STATUS_CUDA);
    CHECK_MSG(strstr(status_text(), "set RINGZERO_GPU_DIRECT=staged") != NULL, "%s", status_text());
    CHECK_OK(span_fill(span, 1, NULL, device)); /* refused, not failed: the device goes on */
    memory_free(&span, MEMORY_WORKSPACE, device);
    device_close(device);
    return test_result();
}
