/* device_ops: what one kind of device has to implement: for those who write one. Everybody else
 * calls device.h.
 *
 * A stream's worker, its queue and its failures are the same everywhere (device_stream.c). What a
 * device adds is the queue on the device that the worker feeds, the native stream, and its marks,
 * the native events. The host has none: its members are NULL.
 */
#ifndef VERBS_DEVICE_OPS_H
#define VERBS_DEVICE_OPS_H

#include "verbs/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DEVICE_IPC_HANDLE_BYTES 64
#define DEVICE_IDENTITY_BYTES   16

/* Required unless said otherwise. Called by any thread. */
struct device_ops {
    const char *name; /* "host" */
    enum memory_kind kind;

    /* ordinal −1: not told, device->index has the local rank. Leaves the ordinal in device->index.
     * optional */
    enum status (*open)(struct device *device, int ordinal);
    void (*close)(struct device *device); /* optional */

    /* Zeroed. kind: the device's own, or MEMORY_HOST_PINNED. errors: SYSTEM or CUDA when there is
     * none */
    enum status (*alloc)(void **ptr, size_t bytes, enum memory_kind kind, struct device *device);
    void (*free)(void *ptr, size_t bytes, enum memory_kind kind, struct device *device);

    /* src.bytes to dst; all bytes of dst. native NULL: done on return; else queued on that native
     * stream, and what is in MEMORY_HOST may hold the caller up. */
    enum status (*copy)(struct span dst, struct span src, void *native, struct device *device);
    enum status (*fill)(struct span dst, int byte, void *native, struct device *device);

    /* Native streams and events. All or none. */
    enum status (*thread_begin)(struct device *device); /* a worker starts */
    enum status (*native_open)(void **native, struct device *device);
    void (*native_close)(void *native, struct device *device);
    enum status (*native_synchronize)(void *native, struct device *device);
    enum status (*mark_open)(void **mark, struct device *device);
    enum status (*mark_open_timed)(void **mark, struct device *device); /* for mark_elapsed */
    void (*mark_close)(void *mark, struct device *device);
    enum status (*mark_record)(void *mark, void *native, struct device *device);
    enum status (*mark_wait)(void *mark, void *native,
        struct device *device); /* the native stream waits, not the caller */
    enum status (*mark_synchronize)(void *mark, struct device *device);
    enum status (*mark_passed)(bool *passed, void *mark, struct device *device);
    enum status (*mark_elapsed)(int64_t *ns, void *from, void *to, struct device *device);

    /* Memory that others reach (device_ipc.h). All or none; none on the host.
     * export: a handle of an allocation, from its base. import: the base of another process's,
     * which stays mapped until import_close(). peer_enable: memory of device `ordinal` of this
     * process may be used by this device's copies and kernels. */
    enum status (*ipc_export)(unsigned char *handle, const void *base, struct device *device);
    enum status (*ipc_import)(void **base, const unsigned char *handle, struct device *device);
    void (*ipc_import_close)(void *base, struct device *device);
    enum status (*peer_enable)(int ordinal, struct device *device);

    /* Host memory from elsewhere is as MEMORY_HOST_PINNED until it is unregistered; *address is
     * where kernels find it. Both or none. */
    enum status (*host_register)(void **address, void *ptr, size_t bytes, struct device *device);
    void (*host_unregister)(void *ptr, struct device *device);

    /* Memory that NICs reach (ibv_gpu.h). All or none.
     * dmabuf_export: a descriptor of whole pages, the caller's to close. nic_flush: what NICs have
     * written until now is seen by kernels and copies that begin after it; not needed where
     * nic_flush_needed() is false. */
    enum status (*dmabuf_export)(int *fd, void *ptr, size_t bytes, struct device *device);
    bool (*nic_flush_needed)(struct device *device);
    enum status (*nic_flush)(struct device *device);

    /* What a native stream is given, kept and launched again (device_graph.h). All or none; none on the
     * host. captures: whether it is being kept now. */
    enum status (*capture_begin)(void *native, struct device *device);
    enum status (*capture_end)(void **graph, void *native, struct device *device);
    bool (*captures)(void *native, struct device *device);
    enum status (*graph_launch)(void *graph, void *native, struct device *device);
    void (*graph_close)(void *graph, struct device *device);

    /* What no other device has, on whatever host, under whatever ordinal. optional */
    enum status (*identify)(unsigned char id[DEVICE_IDENTITY_BYTES], struct device *device);
};

#ifdef __cplusplus
}
#endif
#endif
