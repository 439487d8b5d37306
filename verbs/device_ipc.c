/* device_ipc: see device_ipc.h. What a device has opened is one of its companions. */
#include "verbs/device_ipc.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "verbs/log.h"

struct ipc_mapped {
    struct ipc_mapped *next;
    uint64_t owner, allocation;
    void *base;
    int users;
};

struct ipc_book {
    struct device_companion companion; /* first */
    uint64_t self;                     /* this device object, for others */
    pthread_mutex_t lock;              /* of what follows */
    struct ipc_mapped *mapped;
};

static void book_close(struct device_companion *companion)
{
    struct ipc_book *book = (struct ipc_book *)(void *)companion;
    assert(book->mapped == NULL); /* all closed what they opened */
    pthread_mutex_destroy(&book->lock);
    free(book);
}

static enum status book_open(struct device_companion **companion)
{
    struct ipc_book *book = calloc(1, sizeof *book);
    if (book == NULL) return FAIL(STATUS_SYSTEM, "no memory to remember opened memory by");
    while (book->self == 0)
        if (getrandom(&book->self, sizeof book->self, 0) < 0)
            book->self = (uint64_t)(uintptr_t)book;
    pthread_mutex_init(&book->lock, NULL);
    book->companion.close = book_close;
    *companion = &book->companion;
    return STATUS_OK;
}

static enum status book_of(struct ipc_book **book, struct device *device)
{
    struct device_companion *companion = NULL;
    TRY(device_companion_find(&companion, book_open, device));
    *book = (struct ipc_book *)(void *)companion;
    return STATUS_OK;
}

enum status ipc_offer(struct ipc_offer *offer, struct span part, struct device *device)
{
    struct ipc_book *book = NULL;
    struct allocation allocation;
    memset(offer, 0, sizeof *offer);
    if (!memory_find(&allocation, part.ptr, part.bytes, device) || allocation.kind != MEMORY_CUDA)
        return FAIL(STATUS_INVALID,
            "%zu bytes at %p are offered to neighbours; expected CUDA memory from memory_alloc() "
            "of this device",
            part.bytes, part.ptr);
    TRY(book_of(&book, device));
    offer->owner = book->self;
    offer->allocation = allocation.id;
    offer->offset = (uint64_t)((const char *)part.ptr - (const char *)allocation.ptr);
    offer->bytes = part.bytes;
    offer->address = (uint64_t)(uintptr_t)part.ptr;
    offer->pid = getpid();
    offer->ordinal = device->index;
    offer->has_handle = device->ops->ipc_export(offer->handle, allocation.ptr, device) == STATUS_OK;
    if (!offer->has_handle)
        LOG_WARN("device", "CUDA memory cannot be shared with other processes: %s", status_text());
    return STATUS_OK;
}

/* Needs the lock. */
static enum status map(struct ipc_mapped **out, const struct ipc_offer *offer,
    struct ipc_book *book, struct device *device)
{
    struct ipc_mapped *mapped = book->mapped;
    while (mapped != NULL &&
           (mapped->owner != offer->owner || mapped->allocation != offer->allocation))
        mapped = mapped->next;
    *out = mapped;
    if (mapped != NULL) return STATUS_OK;
    mapped = calloc(1, sizeof *mapped);
    if (mapped == NULL) return FAIL(STATUS_SYSTEM, "no memory to remember opened memory by");
    enum status status = device->ops->ipc_import(&mapped->base, offer->handle, device);
    if (status != STATUS_OK) {
        free(mapped);
        return status;
    }
    mapped->owner = offer->owner;
    mapped->allocation = offer->allocation;
    mapped->next = book->mapped;
    book->mapped = *out = mapped;
    return STATUS_OK;
}

enum status ipc_open(
    struct ipc_import *import, const struct ipc_offer *offer, struct device *device)
{
    struct ipc_book *book = NULL;
    *import = (struct ipc_import){0};
    if (device->ops->ipc_import == NULL)
        return FAIL(STATUS_CUDA, "device %s reaches no CUDA memory", device->ops->name);
    if (offer->pid == getpid()) { /* a process cannot open its own handle, and need not */
        TRY(device->ops->peer_enable(offer->ordinal, device));
        import->ptr = (void *)(uintptr_t)offer->address;
        return STATUS_OK;
    }
    if (!offer->has_handle)
        return FAIL(
            STATUS_CUDA, "process %lld could not share its CUDA memory", (long long)offer->pid);
    TRY(book_of(&book, device));
    struct ipc_mapped *mapped = NULL;
    pthread_mutex_lock(&book->lock);
    enum status status = map(&mapped, offer, book, device);
    if (status == STATUS_OK) mapped->users++;
    pthread_mutex_unlock(&book->lock);
    if (status != STATUS_OK) return status;
    import->ptr = (char *)mapped->base + offer->offset;
    import->mapped = mapped;
    return STATUS_OK;
}

void ipc_close(struct ipc_import *import, struct device *device)
{
    struct ipc_book *book = NULL;
    struct ipc_mapped *mapped = import->mapped;
    *import = (struct ipc_import){0};
    if (mapped == NULL || book_of(&book, device) != STATUS_OK)
        return; /* the book is there: it has this */
    pthread_mutex_lock(&book->lock);
    if (--mapped->users == 0) {
        struct ipc_mapped **link = &book->mapped;
        while (*link != mapped) link = &(*link)->next;
        *link = mapped->next;
        device->ops->ipc_import_close(mapped->base, device);
        free(mapped);
    }
    pthread_mutex_unlock(&book->lock);
}
