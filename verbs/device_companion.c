/* device_companion: which allocations of a device are alive, and who wants to hear when one ends.
 *
 * One lock for the table and the list. Companions are told outside of it: they hold a lock of their
 * own when they ask memory_find().
 */
#include <pthread.h>
#include <stdlib.h>

#include "verbs/device_internal.h"

#define FIRST_ROOM 64

struct device_inside {
    pthread_mutex_t lock; /* of all that follows */
    struct allocation *allocations;
    size_t count, room;
    uint64_t last_id;
    struct device_companion *companions; /* newest first; only grows until the device is closed */
};

enum status device_inside_open(struct device *device)
{
    device->inside = calloc(1, sizeof *device->inside);
    if (device->inside == NULL) return FAIL(STATUS_SYSTEM, "no memory for a device");
    pthread_mutex_init(&device->inside->lock, NULL);
    return STATUS_OK;
}

void device_inside_close(struct device *device)
{
    struct device_inside *inside = device->inside;
    if (inside == NULL) return;
    while (inside->companions != NULL) { /* one that frees memory is heard by those that are left */
        struct device_companion *companion = inside->companions;
        inside->companions = companion->older;
        companion->close(companion);
    }
    pthread_mutex_destroy(&inside->lock);
    free(inside->allocations);
    free(inside);
    device->inside = NULL;
}

enum status device_companion_find(
    struct device_companion **companion, device_companion_open open, struct device *device)
{
    struct device_inside *inside = device->inside;
    enum status status = STATUS_OK;
    pthread_mutex_lock(&inside->lock);
    *companion = inside->companions;
    while (*companion != NULL && (*companion)->open != open) *companion = (*companion)->older;
    if (*companion == NULL && (status = open(companion)) == STATUS_OK) {
        (*companion)->open = open;
        (*companion)->older = inside->companions;
        inside->companions = *companion;
    }
    pthread_mutex_unlock(&inside->lock);
    return status;
}

enum status device_remember(struct span span, struct device *device)
{
    struct device_inside *inside = device->inside;
    pthread_mutex_lock(&inside->lock);
    if (inside->count == inside->room) {
        size_t room = inside->room == 0 ? FIRST_ROOM : 2 * inside->room;
        struct allocation *larger = realloc(inside->allocations, room * sizeof *larger);
        if (larger != NULL) {
            inside->allocations = larger;
            inside->room = room;
        }
    }
    bool fits = inside->count < inside->room;
    if (fits)
        inside->allocations[inside->count++] = (struct allocation){span.ptr, span.bytes, ++inside->last_id, span.kind};
    pthread_mutex_unlock(&inside->lock);
    return fits ? STATUS_OK : FAIL(STATUS_SYSTEM, "no memory to remember an allocation by");
}

void device_forget(const void *ptr, struct device *device)
{
    struct device_inside *inside = device->inside;
    struct allocation gone = {0};
    pthread_mutex_lock(&inside->lock);
    size_t i = 0;
    while (i < inside->count && inside->allocations[i].ptr != ptr) i++;
    if (i < inside->count) {
        gone = inside->allocations[i];
        inside->allocations[i] = inside->allocations[--inside->count];
    }
    struct device_companion *companion = inside->companions;
    pthread_mutex_unlock(&inside->lock);
    for (; companion != NULL && gone.id != 0; companion = companion->older)
        if (companion->forget != NULL) companion->forget(&gone, companion);
}

bool memory_find(
    struct allocation *allocation, const void *ptr, size_t bytes, struct device *device)
{
    struct device_inside *inside = device->inside;
    uintptr_t begin = (uintptr_t)ptr;
    bool found = false;
    pthread_mutex_lock(&inside->lock);
    for (size_t i = 0; i < inside->count && !found; i++) {
        uintptr_t first = (uintptr_t)inside->allocations[i].ptr;
        found = begin >= first && begin - first <= inside->allocations[i].bytes &&
                bytes <= inside->allocations[i].bytes - (begin - first);
        if (found) *allocation = inside->allocations[i];
    }
    pthread_mutex_unlock(&inside->lock);
    return found;
}
