/* memory: the host's book of all memory that the device can reach. */
#ifndef CUDASIM_MEMORY_H
#define CUDASIM_MEMORY_H

#include <mutex>

#include "process.h"

namespace cudasim {

enum class memory { device, imported, pinned, registered };

struct allocation {
    memory kind;
    char *begin;
    size_t bytes; /* as asked for */
    char *page;   /* mapped: whole pages */
    size_t mapped_bytes;
    uint64_t offset;     /* in the device file */
    uint64_t id;         /* never used again; of an imported one, the exporter's */
    int device, process; /* whose, of an imported one */
    int references;      /* how often it has been imported */
    bool was_private;    /* registered: private pages, made shared for the time being */
    char *alias;         /* where the device sees `page` */
};

/* Held while the book is read or changed. */
std::mutex &book_mutex();
/* The allocation that an address lies in, or NULL. */
allocation *book_find(const void *address);
allocation *book_find_exact(const void *begin);
allocation *book_find_import(int process, uint64_t id);
allocation &book_add(const allocation &added);
void book_remove(const void *begin);

/* Address space of the device, with a page before and behind that stays unmapped; NULL when none
 * is left. */
char *take_device_space(size_t bytes);

/* Address space of pinned memory, likewise; its place in the device file is at DEVICE_SPACE +
 * the offset. */
char *take_pinned_space(size_t bytes);

/* Where the device sees an address, or NULL: memory of the host that is neither pinned nor
 * registered. */
char *device_address(const allocation &of, const void *address);

/* Whether kernels of a device can follow an address. False for other memory of the host; other
 * numbers than addresses of mapped memory are "true". */
bool device_reaches(int device, const void *address);
bool peer_enabled(int device, int peer);

} // namespace cudasim
#endif
