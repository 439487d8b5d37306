/* ibv_memory: see ibv_memory.h. */
#include "verbs/ibv_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/ibv_device.h"
#include "verbs/log.h"

/* ---- by kind of memory ---- */

static enum status register_host(
    struct ibv_mr **mr, struct span span, int access, const struct nic *nic)
{
    errno = 0;
    *mr = ibv_reg_mr(nic->pd, span.ptr, span.bytes, access);
    if (*mr != NULL) return STATUS_OK;
    char hint[320];
    int error = errno;
    return FAIL(STATUS_VERBS, "%s cannot register %zu bytes of memory: %s%s", nic->address.device,
        span.bytes, strerror(error), nic_memlock_hint(hint, sizeof hint, error));
}

enum status registration_open(struct registration *registration, struct span span, bool peer_writes,
    const struct nic *nic, struct device *device)
{
    *registration = (struct registration){.mr = NULL};
    int access = IBV_ACCESS_LOCAL_WRITE | (peer_writes ? IBV_ACCESS_REMOTE_WRITE : 0);
    if (span.kind != MEMORY_CUDA) return register_host(&registration->mr, span, access, nic);
    TRY(gpu_register(&registration->mr, &registration->way, span, access, nic->pd, device));
    LOG_INFO("verbs", "%s reaches %zu bytes of CUDA memory by %s", nic->address.device, span.bytes,
        gpu_way_name(registration->way));
    return STATUS_OK;
}

void registration_close(struct registration *registration)
{
    if (registration->mr != NULL) ibv_dereg_mr(registration->mr);
    registration->mr = NULL;
}

/* ---- the cache ---- */

struct registered {
    struct allocation allocation;
    const struct nic *nic;
    struct registration registration; /* none: it could not be had, and is not tried again */
};

void registrations_open(struct registrations *registrations)
{
    *registrations = (struct registrations){.count = 0};
    pthread_mutex_init(&registrations->lock, NULL);
}

void registrations_close(struct registrations *registrations)
{
    for (size_t i = 0; i < registrations->count; i++)
        registration_close(&registrations->list[i].registration);
    free(registrations->list);
    pthread_mutex_destroy(&registrations->lock);
}

static bool holds(const struct allocation *allocation, const void *ptr, size_t bytes)
{
    uintptr_t begin = (uintptr_t)ptr, first = (uintptr_t)allocation->ptr;
    return begin >= first && begin - first <= allocation->bytes &&
           bytes <= allocation->bytes - (begin - first);
}

/* Needs the lock. NULL: memory from elsewhere, or too small to be worth it, or no room to remember
 * it. */
static const struct registered *add(const void *ptr, size_t bytes, const struct nic *nic,
    struct device *device, struct registrations *registrations)
{
    struct registered registered = {.nic = nic};
    if (!memory_find(&registered.allocation, ptr, bytes, device)) return NULL;
    if (registered.allocation.bytes < REGISTRATION_LEAST_BYTES) return NULL;
    if (registrations->count == registrations->room) {
        size_t room = registrations->room == 0 ? 16 : 2 * registrations->room;
        struct registered *larger = realloc(registrations->list, room * sizeof *larger);
        if (larger == NULL) return NULL;
        registrations->list = larger;
        registrations->room = room;
    }
    struct span span = {.ptr = (void *)(uintptr_t)registered.allocation.ptr,
        .bytes = registered.allocation.bytes,
        .kind = registered.allocation.kind,
        .device = device->index};
    if (registration_open(&registered.registration, span, false, nic, device) != STATUS_OK)
        LOG_WARN("verbs", "what is sent from these %zu bytes is copied first: %s", span.bytes,
            status_text());
    registrations->list[registrations->count] = registered;
    return &registrations->list[registrations->count++];
}

bool registrations_find(uint32_t *lkey, const void *ptr, size_t bytes, const struct nic *nic,
    struct device *device, struct registrations *registrations)
{
    const struct registered *found = NULL;
    pthread_mutex_lock(&registrations->lock);
    for (size_t i = 0; i < registrations->count && found == NULL; i++)
        if (registrations->list[i].nic == nic &&
            holds(&registrations->list[i].allocation, ptr, bytes))
            found = &registrations->list[i];
    if (found == NULL) found = add(ptr, bytes, nic, device, registrations);
    bool usable = found != NULL && found->registration.mr != NULL;
    if (usable) *lkey = found->registration.mr->lkey;
    pthread_mutex_unlock(&registrations->lock);
    return usable;
}

void registrations_forget(const struct allocation *allocation, struct registrations *registrations)
{
    pthread_mutex_lock(&registrations->lock);
    for (size_t i = 0; i < registrations->count;) {
        if (registrations->list[i].allocation.id != allocation->id) {
            i++;
            continue;
        }
        registration_close(&registrations->list[i].registration);
        registrations->list[i] = registrations->list[--registrations->count];
    }
    pthread_mutex_unlock(&registrations->lock);
}
