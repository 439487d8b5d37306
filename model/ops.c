/* ops: which table a device has: see ops.h. */
#include "model/ops.h"

const struct model_ops *model_ops_of(const struct device *device)
{
    const struct model_ops *own = device == NULL ? NULL : device_table(device, PLUGIN_MODEL);
    bool is_host = device == NULL || device_kind(device) == MEMORY_HOST;
    return own == NULL && is_host ? &model_ops_host : own;
}

enum status model_ops_check(const struct device *device)
{
    if (model_ops_of(device) != NULL) return STATUS_OK;
    return FAIL(STATUS_SYSTEM,
        "the module of device %s has no operations of the model: build it whole, or take the host",
        device_name(device));
}

struct span ops_span(const void *ptr, size_t bytes, const struct ops_context *context)
{
    const struct device *device = context->device;
    return (struct span){(void *)(uintptr_t)ptr, bytes, device_kind(device), device->index};
}
