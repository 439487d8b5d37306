/* How a NIC reaches CUDA memory (verbs/ibv_gpu.h), without any: everything of the GPU and of its driver here is a stand-in, and real
 * hardware has yet to confirm what this test passes.
 *
 *   stand-in             for
 *   a device "standin"   a GPU: its memory is a file, twice: what kernels see, and what NICs see. A copy by the device changes both;
 *                        what a NIC has written shows to kernels only after nic_flush()
 *   ibv_reg_dmabuf_mr    the NIC's driver: maps the file, and registers that under the GPU's addresses
 *   access               whether nvidia_peermem is loaded
 *
 * The order of the ways is tried anywhere. Edges between two ranks need an RDMA device, as the guest of tests/verbs_rdma_test.sh has.
 * ctest: timeout=60
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "verbs/clock.h"
#include "verbs/device_internal.h"
#include "verbs/device_ops.h"
#include "verbs/ibv_device.h"
#include "verbs/transport.h"

#define PATIENCE  20000
#define MOST      64
#define SLOT_SIZE ((size_t)70016) /* no multiple of a page */
#define STEPS     100

/* ---- the stand-ins ---- */

static struct memory {
    unsigned char *seen, *nic; /* by kernels, and by NICs: the second half of the file */
    size_t bytes;
    int fd;
} memories[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int flushes, dmabufs, peermems; /* under the lock */
static int dmabuf_error;               /* what the driver's probe says; 0: EBADF */
static bool has_peermem, has_dmabuf = true;

static struct memory *memory_of(const void *ptr)
{
    for (int i = 0; i < MOST; i++)
        if (memories[i].seen != NULL && (const unsigned char *)ptr >= memories[i].seen &&
            (const unsigned char *)ptr < memories[i].seen + memories[i].bytes)
            return &memories[i];
    return NULL;
}

static enum status standin_alloc(void **ptr, size_t bytes, enum memory_kind kind, struct device *device)
{
    (void)device;
    if (kind != MEMORY_CUDA) return (*ptr = calloc(1, bytes)) == NULL ? FAIL(STATUS_SYSTEM, "no memory") : STATUS_OK;
    struct memory made = {.bytes = (bytes + 4095) / 4096 * 4096, .fd = memfd_create("standin", MFD_CLOEXEC)};
    if (made.fd < 0 || ftruncate(made.fd, 2 * (off_t)made.bytes) != 0) return FAIL(STATUS_SYSTEM, "no memory");
    made.seen = mmap(NULL, 2 * made.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
    if (made.seen == MAP_FAILED) return FAIL(STATUS_SYSTEM, "no memory");
    made.nic = made.seen + made.bytes;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MOST && memories[i].seen != NULL) i++;
    if (i < MOST) memories[i] = made;
    pthread_mutex_unlock(&lock);
    *ptr = made.seen;
    return i < MOST ? STATUS_OK : FAIL(STATUS_SYSTEM, "too much memory for this test");
}

static void standin_free(void *ptr, size_t bytes, enum memory_kind kind, struct device *device)
{
    (void)bytes, (void)device;
    if (kind != MEMORY_CUDA) {
        free(ptr);
        return;
    }
    pthread_mutex_lock(&lock);
    struct memory *memory = memory_of(ptr);
    munmap(memory->seen, 2 * memory->bytes);
    close(memory->fd);
    memory->seen = NULL;
    pthread_mutex_unlock(&lock);
}

static enum status standin_copy(struct span dst, struct span src, void *native, struct device *device)
{
    (void)native, (void)device;
    pthread_mutex_lock(&lock);
    memcpy(dst.ptr, src.ptr, src.bytes);
    struct memory *memory = dst.kind == MEMORY_CUDA ? memory_of(dst.ptr) : NULL;
    if (memory != NULL) memcpy((unsigned char *)dst.ptr + memory->bytes, src.ptr, src.bytes);
    pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

static enum status standin_fill(struct span dst, int byte, void *native, struct device *device)
{
    (void)native, (void)device;
    pthread_mutex_lock(&lock);
    memset(dst.ptr, byte, dst.bytes);
    if (dst.kind == MEMORY_CUDA) memset((unsigned char *)dst.ptr + memory_of(dst.ptr)->bytes, byte, dst.bytes);
    pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

static enum status standin_dmabuf(int *fd, void *ptr, size_t bytes, struct device *device)
{
    (void)device;
    if (!has_dmabuf) return FAIL(STATUS_CUDA, "no descriptor of %zu bytes, on purpose", bytes);
    CHECK((uintptr_t)ptr % 4096 == 0 && bytes % 4096 == 0);
    struct memory *memory = memory_of(ptr);
    *fd = dup(memory->fd);
    return STATUS_OK;
}

static bool standin_flush_needed(struct device *device) { return device != NULL; }

static enum status standin_flush(struct device *device)
{
    (void)device;
    pthread_mutex_lock(&lock);
    flushes++;
    for (int i = 0; i < MOST; i++)
        if (memories[i].seen != NULL) memcpy(memories[i].seen, memories[i].nic, memories[i].bytes);
    pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

static const struct device_ops standin_ops = {.name = "standin", .kind = MEMORY_CUDA, .alloc = standin_alloc, .free = standin_free,
    .copy = standin_copy, .fill = standin_fill, .dmabuf_export = standin_dmabuf, .nic_flush_needed = standin_flush_needed,
    .nic_flush = standin_flush};

/* In place of libibverbs' (tests/CMakeLists.txt). */
struct ibv_mr *__wrap_ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);
struct ibv_mr *__wrap_ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
    if (fd < 0 || dmabuf_error != 0) {
        errno = dmabuf_error != 0 ? dmabuf_error : EBADF;
        return NULL;
    }
    struct memory *memory = memory_of((void *)(uintptr_t)iova);
    CHECK(memory != NULL && offset == iova % 4096);
    dmabufs++;
    return ibv_reg_mr_iova(pd, (void *)(uintptr_t)(iova + memory->bytes), length, iova, access);
}

static struct ibv_mr peermem_mr; /* of no NIC: only the order of ways is tried with it */
static bool fakes_registration;
struct ibv_mr *__real_ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access);
struct ibv_mr *__wrap_ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access);
struct ibv_mr *__wrap_ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
    if (!fakes_registration) return __real_ibv_reg_mr_iova2(pd, addr, length, iova, access);
    peermems++;
    return &peermem_mr;
}

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
int __wrap_access(const char *path, int mode)
{
    return strstr(path, "nvidia_peermem") != NULL ? has_peermem - 1 : __real_access(path, mode);
}

static struct device *open_standin(void)
{
    struct device *device = calloc(1, sizeof *device);
    device->ops = &standin_ops;
    CHECK_OK(device_inside_open(device));
    return device;
}

static void close_standin(struct device *device)
{
    device_inside_close(device);
    free(device);
}

/* ---- which way ---- */

static void check_order(void)
{
    struct device *device = open_standin(), *host = NULL;
    struct span memory;
    struct ibv_mr *mr = NULL;
    struct ibv_pd *pd = NULL;
    enum gpu_way way;
    CHECK_OK(device_open(&host, "host"));
    CHECK_OK(memory_alloc(&memory, 10000, MEMORY_WORKSPACE, device));
    struct span part = span_part(memory, 5000, 1000);
    fakes_registration = true;

    CHECK(gpu_way_probe(&way, pd) == STATUS_OK && way == GPU_WAY_DMABUF);
    dmabuf_error = EOPNOTSUPP;
    CHECK(gpu_way_probe(&way, pd) == STATUS_OK && way == GPU_WAY_STAGED);
    CHECK_STATUS(gpu_register(&mr, &way, part, IBV_ACCESS_LOCAL_WRITE, pd, device), STATUS_VERBS);
    CHECK(mr == NULL && way == GPU_WAY_STAGED && peermems == 0);
    const char *const words[] = {"dma-buf", "Operation not supported", "peermem", "is not loaded", "pinned host memory", "modprobe"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK_MSG(strstr(status_text(), words[i]) != NULL, "%s lacks %s", status_text(), words[i]);
    has_peermem = true;
    CHECK(gpu_way_probe(&way, pd) == STATUS_OK && way == GPU_WAY_PEERMEM);
    CHECK_OK(gpu_register(&mr, &way, part, IBV_ACCESS_LOCAL_WRITE, pd, device));
    CHECK(mr == &peermem_mr && way == GPU_WAY_PEERMEM && peermems == 1);
    dmabuf_error = 0;
    has_dmabuf = false; /* the NIC would, the GPU would not */
    CHECK_OK(gpu_register(&mr, &way, part, IBV_ACCESS_LOCAL_WRITE, pd, device));
    CHECK(way == GPU_WAY_PEERMEM && peermems == 2);
    CHECK_OK(gpu_register(&mr, &way, part, IBV_ACCESS_LOCAL_WRITE, pd, host));
    CHECK(way == GPU_WAY_PEERMEM && peermems == 3);
    has_dmabuf = true;

    setenv("RINGZERO_GPU_DIRECT", "staged", 1);
    CHECK(gpu_way_probe(&way, pd) == STATUS_OK && way == GPU_WAY_STAGED);
    CHECK_STATUS(gpu_register(&mr, &way, part, IBV_ACCESS_LOCAL_WRITE, pd, device), STATUS_VERBS);
    setenv("RINGZERO_GPU_DIRECT", "peermem", 1);
    CHECK(gpu_way_probe(&way, pd) == STATUS_OK && way == GPU_WAY_PEERMEM);
    setenv("RINGZERO_GPU_DIRECT", "nvlink", 1);
    CHECK_STATUS(gpu_way_probe(&way, pd), STATUS_INVALID);
    CHECK_STATUS(gpu_register(&mr, &way, part, IBV_ACCESS_LOCAL_WRITE, pd, device), STATUS_INVALID);
    unsetenv("RINGZERO_GPU_DIRECT");
    has_peermem = false;
    fakes_registration = false;
    memory_free(&memory, MEMORY_WORKSPACE, device);
    close_standin(device);
    device_close(host);
}

/* ---- edges, over a real NIC's driver ---- */

static unsigned char byte_at(uint64_t step, size_t i) { return (unsigned char)(step * 31 + i * 7 + i / 4099); }
static size_t bytes_at(uint64_t step)
{
    return step % 5 == 0 ? 0 : step % 5 == 1 ? (size_t)(step % 40) : (size_t)(step * 7919 % (SLOT_SIZE + 1));
}

static bool wait_for(struct edge *edge, bool (*question)(struct edge *))
{
    int64_t deadline = clock_ns() + clock_ms_to_ns(PATIENCE);
    while (!question(edge)) {
        bool moved = false;
        if (!CHECK_OK(edge_progress(edge, &moved))) return false;
        if (!moved) usleep(20);
        if (!CHECK_MSG(clock_ns() < deadline, "waited %d ms", PATIENCE)) return false;
    }
    return true;
}
static bool has_room(struct edge *edge) { return fifo_room(&edge->fifo) > 0; }
static bool has_data(struct edge *edge) { return fifo_ready(&edge->fifo) > 0; }
static bool is_freed(struct edge *edge) { return edge->phase == EDGE_READY && edge_drained(edge) && fifo_unfreed(&edge->fifo) == 0; }
static bool is_drained(struct edge *edge) { return edge->phase == EDGE_READY && edge_drained(edge); }

/* Every third step from memory of the device that is no slot; every other of these from memory that is not registered: too small. */
static void produce(struct edge *edge, struct device *device)
{
    struct span large, small;
    unsigned char *bytes = malloc(SLOT_SIZE);
    CHECK_OK(memory_alloc(&large, SLOT_SIZE + 1, MEMORY_WORKSPACE, device));
    CHECK_OK(memory_alloc(&small, 4096, MEMORY_WORKSPACE, device));
    for (uint64_t s = 0; s < STEPS && wait_for(edge, has_room); s++) {
        for (size_t i = 0; i < bytes_at(s); i++) bytes[i] = byte_at(s, i);
        struct span from = s % 3 != 0 || bytes_at(s) == 0 ? edge_slot(edge)
                           : s % 2 == 0 && bytes_at(s) <= 4096 ? small : span_part(large, 1, SLOT_SIZE);
        CHECK_OK(span_copy(from, span_host(bytes, bytes_at(s)), NULL, device));
        bool lent = from.ptr != (void *)fifo_slot(&edge->fifo);
        fifo_post(&edge->fifo, bytes_at(s), s, lent ? (uint64_t)(uintptr_t)from.ptr : 0);
        if (lent) wait_for(edge, is_freed);
    }
    wait_for(edge, is_freed);
    memory_free(&large, MEMORY_WORKSPACE, device);
    memory_free(&small, MEMORY_WORKSPACE, device);
    free(bytes);
}

static void consume(struct edge *edge, struct device *device)
{
    unsigned char *bytes = malloc(SLOT_SIZE);
    for (uint64_t s = 0; s < STEPS && wait_for(edge, has_data); s++) {
        struct fifo_record record = fifo_record(&edge->fifo);
        size_t wrong = 0;
        CHECK_MSG(record.bytes == bytes_at(s) && record.tag == s, "step %d: %d bytes", (int)s, (int)record.bytes);
        CHECK_OK(span_copy(span_host(bytes, SLOT_SIZE), span_part(edge_slot(edge), 0, bytes_at(s)), NULL, device));
        for (size_t i = 0; i < bytes_at(s); i++) wrong += bytes[i] != byte_at(s, i);
        CHECK_MSG(wrong == 0, "step %d: %zu bytes differ", (int)s, wrong);
        fifo_free(&edge->fifo);
    }
    wait_for(edge, is_drained);
    free(bytes);
}

/* Which of the two has a GPU that the NIC reaches. */
struct setting {
    bool gpu[2];
};

static void edge_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    int self = bootstrap_rank(bootstrap);
    bool producer = self == 0;
    struct device *device = NULL;
    if (setting->gpu[self]) device = open_standin();
    else CHECK_OK(device_open(&device, "host"));
    struct edge_config config = {.side = producer ? EDGE_PRODUCER : EDGE_CONSUMER, .self = self, .peer = 1 - self, .key = 42,
        .slot_bytes = SLOT_SIZE, .slot_count = 4, .start = UINT64_MAX - 50, .bootstrap = bootstrap, .device = device};
    struct edge *edge = NULL;
    if (CHECK_OK(edge_open(&edge, &transport_verbs, &config))) {
        CHECK((edge->slots_kind == MEMORY_CUDA) == (setting->gpu[self] && dmabuf_error == 0));
        if (producer) produce(edge, device);
        else consume(edge, device);
    }
    CHECK_OK(bootstrap_barrier(bootstrap));
    edge_close(edge);
    CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 0);
    if (setting->gpu[self]) close_standin(device);
    else device_close(device);
}

static void check_edges(void)
{
    struct setting settings[] = {{{true, true}}, {{true, false}}, {{false, true}}};
    for (int i = 0; i < 3; i++) {
        flushes = dmabufs = 0;
        ranks_as_threads(2, PATIENCE, edge_body, &settings[i]);
        CHECK((flushes > 0) == settings[i].gpu[1] && dmabufs > 0);
    }
    dmabuf_error = EOPNOTSUPP; /* staged */
    flushes = dmabufs = 0;
    ranks_as_threads(2, PATIENCE, edge_body, &settings[0]);
    CHECK(flushes == 0 && dmabufs == 0);
}

int main(void)
{
    check_order();
    if (nics_available()) check_edges();
    else printf("no edges: %s\n", status_text());
    return test_result();
}
