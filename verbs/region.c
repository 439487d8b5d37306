/* region: see region.h. */
#include "verbs/region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE       ((size_t)4096)
#define BOOK_BYTES (2 * PAGE)
#define BOOK_MAGIC 0x72696e67626f6b31u /* "ringbok1" */
#define BOARDS_AT  REGION_STAGES /* places of entries */
#define OTHERS_AT  (BOARDS_AT + REGION_BOARDS)
#define ENTRIES    (OTHERS_AT + 63)
#define LOOKED_AT  8

#define OFFSET_BITS 40
#define PLACE_BITS  8
#define ID_MASK     0x7fffu
#define BARE_BITS   48 /* of an address */

struct book_entry {
    uint64_t id; /* 0: free */
    int64_t fd;
    uint64_t bytes;
    uint64_t reserved;
};

struct book_page {
    uint64_t magic, nonce;
    uint64_t given_up; /* written by the owner, once; read by views */
    uint64_t reserved[5];
    struct book_entry entries[ENTRIES];
};
_Static_assert(sizeof(struct book_page) <= BOOK_BYTES, "the book fits its pages");

struct region_book {
    int references, fd;
    struct book_page *page;
    pthread_mutex_t lock; /* of what follows, and of the entries */
    uint64_t last_id;
    unsigned char *regions[ENTRIES]; /* mapped here */
    int region_count;
    struct range {
        uintptr_t begin, end;
    } looked_at[LOOKED_AT]; /* of bare memory that the kernel would copy, the newest over the oldest */
    unsigned next_look;
};

static uint64_t make_reference(uint64_t place, uint64_t id, uint64_t offset)
{
    return id << (OFFSET_BITS + PLACE_BITS) | place << OFFSET_BITS | offset;
}

/* ThreadSanitizer knows no fences; nor does it see that two mappings are one memory, so it misses nothing here. */
static void full_fence(void)
{
#ifndef __SANITIZE_THREAD__
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/* ---- the owner's side ---- */

enum status region_book_open(struct region_book **out)
{
    *out = NULL;
    struct region_book *book = calloc(1, sizeof *book);
    if (book == NULL) return FAIL(STATUS_SYSTEM, "no memory for a book of regions");
    book->fd = memfd_create("ringzero-book", MFD_CLOEXEC);
    void *map = MAP_FAILED;
    if (book->fd >= 0 && ftruncate(book->fd, (off_t)BOOK_BYTES) == 0 && fallocate(book->fd, 0, 0, (off_t)BOOK_BYTES) == 0)
        map = mmap(NULL, BOOK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, book->fd, 0);
    if (map == MAP_FAILED) {
        int error = errno;
        if (book->fd >= 0) close(book->fd);
        free(book);
        return FAIL(STATUS_SYSTEM, "no shared memory for a book of regions: %s; raise ulimit -n", strerror(error));
    }
    book->page = map;
    book->references = 1;
    pthread_mutex_init(&book->lock, NULL);
    book->page->magic = BOOK_MAGIC;
    if (getrandom(&book->page->nonce, sizeof book->page->nonce, 0) < 0) book->page->nonce = (uint64_t)getpid();
    *out = book;
    return STATUS_OK;
}

struct region_book *region_book_share(struct region_book *book)
{
    if (book != NULL) __atomic_add_fetch(&book->references, 1, __ATOMIC_RELAXED);
    return book;
}

void region_book_close(struct region_book *book)
{
    if (book == NULL || __atomic_sub_fetch(&book->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    for (int i = 0; i < ENTRIES; i++)
        if (book->regions[i] != NULL) region_free(book->regions[i], book);
    munmap(book->page, BOOK_BYTES);
    close(book->fd);
    pthread_mutex_destroy(&book->lock);
    free(book);
}

struct region_offer region_book_offer(const struct region_book *book)
{
    return (struct region_offer){.pid = getpid(), .fd = book->fd, .nonce = book->page->nonce,
        .page = (uint64_t)(uintptr_t)book->page};
}

/* Asks for the pages before they are touched: where memory is short there is none, never SIGBUS. */
static unsigned char *map_region(int *fd, size_t bytes)
{
    *fd = memfd_create("ringzero-region", MFD_CLOEXEC);
    void *map = MAP_FAILED;
    if (*fd >= 0 && ftruncate(*fd, (off_t)bytes) == 0 && fallocate(*fd, 0, 0, (off_t)bytes) == 0)
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (map != MAP_FAILED) {
        madvise(map, bytes, MADV_HUGEPAGE); /* advice: failure changes nothing */
        return map;
    }
    if (*fd >= 0) close(*fd);
    return NULL;
}

/* In an entry from `place` on, before `end`. */
static void *alloc_between(int place, int end, size_t bytes, struct region_book *book)
{
    if (bytes == 0 || bytes >> OFFSET_BITS != 0) return NULL;
    int fd = -1;
    unsigned char *region = NULL;
    pthread_mutex_lock(&book->lock);
    while (place < end && book->regions[place] != NULL) place++;
    if (place < end) region = map_region(&fd, whole_pages(bytes));
    if (region != NULL) {
        struct book_entry *entry = &book->page->entries[place];
        do book->last_id++;
        while ((book->last_id & ID_MASK) == 0);
        book->regions[place] = region;
        book->region_count++;
        entry->fd = fd;
        entry->bytes = whole_pages(bytes);
        __atomic_store_n(&entry->id, book->last_id, __ATOMIC_RELEASE); /* read by view_map() */
    }
    pthread_mutex_unlock(&book->lock);
    return region;
}

void *region_alloc(size_t bytes, struct region_book *book) { return alloc_between(OTHERS_AT, ENTRIES, bytes, book); }

void *region_alloc_stage(size_t bytes, struct region_book *book) { return alloc_between(0, BOARDS_AT, bytes, book); }

void *region_alloc_board(size_t bytes, struct region_book *book) { return alloc_between(BOARDS_AT, OTHERS_AT, bytes, book); }

bool region_free(void *ptr, struct region_book *book)
{
    int place = 0;
    pthread_mutex_lock(&book->lock);
    while (place < ENTRIES && (book->regions[place] == NULL || book->regions[place] != ptr)) place++;
    if (place < ENTRIES) {
        struct book_entry *entry = &book->page->entries[place];
        __atomic_store_n(&entry->id, 0, __ATOMIC_SEQ_CST); /* before the descriptor may become another file's: view_map() */
        close((int)entry->fd);
        munmap(ptr, entry->bytes);
        book->regions[place] = NULL;
        book->region_count--;
    }
    pthread_mutex_unlock(&book->lock);
    return place < ENTRIES;
}

uint64_t region_reference(const void *ptr, size_t bytes, struct region_book *book)
{
    const unsigned char *begin = ptr;
    uint64_t reference = 0;
    pthread_mutex_lock(&book->lock);
    for (int i = 0, left = book->region_count; left > 0 && i < ENTRIES && reference == 0; i++) {
        const struct book_entry *entry = &book->page->entries[i];
        const unsigned char *region = book->regions[i];
        if (region == NULL) continue;
        left--;
        if (begin < region || begin + bytes > region + entry->bytes) continue;
        reference = make_reference((uint64_t)i, entry->id & ID_MASK, (uint64_t)(begin - region));
    }
    pthread_mutex_unlock(&book->lock);
    return reference;
}

/* By its first and last byte. */
static bool kernel_copies(struct range range)
{
    unsigned char ends[2];
    struct iovec from[2] = {{(void *)range.begin, 1}, {(void *)(range.end - 1), 1}}, to = {ends, sizeof ends}; /* only read */
    return process_vm_readv(getpid(), &to, 1, from, 2, 0) == (ssize_t)sizeof ends;
}

/* A look takes as long as copying 16 KiB, and most operations bring the buffers of the last ones. */
uint64_t region_bare_reference(const void *ptr, size_t bytes, struct region_book *book)
{
    struct range range = {(uintptr_t)ptr, (uintptr_t)ptr + bytes};
    bool copies = false;
    if (range.begin >> BARE_BITS != 0) return 0;
    pthread_mutex_lock(&book->lock);
    for (int i = 0; i < LOOKED_AT && !copies; i++)
        copies = range.begin >= book->looked_at[i].begin && range.end <= book->looked_at[i].end;
    if (!copies && (copies = kernel_copies(range))) book->looked_at[book->next_look++ % LOOKED_AT] = range;
    pthread_mutex_unlock(&book->lock);
    return copies ? (uint64_t)range.begin : 0;
}

void region_book_give_up(struct region_book *book)
{
    __atomic_store_n(&book->page->given_up, 1, __ATOMIC_SEQ_CST); /* before the user's next store: region_view_holds() */
    full_fence();
}

/* ---- the reader's side ---- */

struct region_view {
    struct region_offer offer;
    const struct book_page *page;
    int region_count; /* mapped */
    struct {
        const unsigned char *data; /* NULL: not mapped */
        size_t bytes;
        uint64_t id;
    } regions[ENTRIES];
};

/* The number may have become another file's, or never have been a region's: whatever it is, opening it must not wait. */
static int open_of(const struct region_offer *offer, int64_t fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)offer->pid, (long long)fd);
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

static enum status owner_is_gone(const struct region_offer *offer)
{
    return FAIL(STATUS_PEER, "the memory of process %lld is gone or cannot be opened: if it still runs, the two do not share a "
        "process table, or run as different users: set RINGZERO_WINDOW_BYTES to 0", (long long)offer->pid);
}

enum status region_view_open(struct region_view **out, const struct region_offer *offer)
{
    *out = NULL;
    struct region_view *view = calloc(1, sizeof *view);
    if (view == NULL) return FAIL(STATUS_SYSTEM, "no memory for a view of regions");
    view->offer = *offer;
    int fd = open_of(offer, offer->fd);
    struct book_page seen = {0};
    struct stat file = {0};
    /* Through the file first: a page beyond its end must not be touched. */
    bool right = fd >= 0 && pread(fd, &seen, sizeof seen, 0) == (ssize_t)sizeof seen && fstat(fd, &file) == 0 &&
                 seen.magic == BOOK_MAGIC && seen.nonce == offer->nonce && file.st_size == (off_t)BOOK_BYTES;
    void *map = MAP_FAILED;
    if (right) map = mmap(NULL, BOOK_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (map == MAP_FAILED) {
        free(view);
        return owner_is_gone(offer);
    }
    view->page = map;
    *out = view;
    return STATUS_OK;
}

static void view_unmap(struct region_view *view, int i)
{
    if (view->regions[i].data == NULL) return;
    munmap((void *)(uintptr_t)view->regions[i].data, view->regions[i].bytes);
    view->regions[i].data = NULL;
    view->region_count--;
}

void region_view_close(struct region_view *view)
{
    if (view == NULL) return;
    for (int i = 0; i < ENTRIES; i++) view_unmap(view, i);
    munmap((void *)(uintptr_t)view->page, BOOK_BYTES);
    free(view);
}

void region_view_sweep(struct region_view *view)
{
    for (int i = 0, left = view->region_count; left > 0 && i < ENTRIES; i++) {
        if (view->regions[i].data == NULL) continue;
        left--;
        if (__atomic_load_n(&view->page->entries[i].id, __ATOMIC_ACQUIRE) != view->regions[i].id) view_unmap(view, i);
    }
}

/* Maps what entry i names. The descriptor was its own as long as the id has not changed after it was opened. */
static enum status view_map(struct region_view *view, int i)
{
    const struct book_entry *entry = &view->page->entries[i];
    uint64_t id = __atomic_load_n(&entry->id, __ATOMIC_ACQUIRE);
    if (id == 0) return FAIL(STATUS_DATA, "process %lld refers to a region that it has freed", (long long)view->offer.pid);
    size_t bytes = __atomic_load_n(&entry->bytes, __ATOMIC_RELAXED); /* once: what is checked is what is used */
    int fd = open_of(&view->offer, entry->fd);
    struct stat file = {0};
    void *map = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &file) == 0 && __atomic_load_n(&entry->id, __ATOMIC_SEQ_CST) == id &&
        file.st_size == (off_t)bytes)
        map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (map == MAP_FAILED) return owner_is_gone(&view->offer);
    view->regions[i].data = map;
    view->regions[i].bytes = bytes;
    view->regions[i].id = id;
    view->region_count++;
    return STATUS_OK;
}

static enum status find(const unsigned char **ptr, uint64_t reference, size_t bytes, struct region_view *view)
{
    uint64_t offset = reference & (((uint64_t)1 << OFFSET_BITS) - 1);
    uint64_t place = reference >> OFFSET_BITS & ((1u << PLACE_BITS) - 1);
    uint64_t id = reference >> (OFFSET_BITS + PLACE_BITS) & ID_MASK;
    const unsigned char *region = NULL;
    size_t region_bytes = 0;
    if (place < ENTRIES) {
        int i = (int)place;
        if (view->regions[i].data != NULL && (view->regions[i].id & ID_MASK) != id) view_unmap(view, i);
        if (view->regions[i].data == NULL) TRY(view_map(view, i));
        region = (view->regions[i].id & ID_MASK) == id ? view->regions[i].data : NULL;
        region_bytes = view->regions[i].bytes;
    }
    if (region == NULL || offset > region_bytes || bytes > region_bytes - offset)
        return FAIL(STATUS_DATA, "process %lld refers to %zu bytes at %llu of region %llu, expected a part of a region that it has",
            (long long)view->offer.pid, bytes, (unsigned long long)offset, (unsigned long long)place);
    *ptr = region + offset;
    return STATUS_OK;
}

/* Who gives up frees its regions, perhaps before the news of it are here. */
enum status region_view_find(const unsigned char **ptr, uint64_t reference, size_t bytes, struct region_view *view)
{
    enum status status = find(ptr, reference, bytes, view);
    if (status != STATUS_DATA || region_view_holds(view)) return status;
    return FAIL(STATUS_PEER, "process %lld has given up and taken its memory back", (long long)view->offer.pid);
}

/* The owner's nonce comes with the data: another process that has its number now has another. */
static bool copy_from_owner(void *to, uint64_t address, size_t bytes, const struct region_offer *offer)
{
    uint64_t nonce = 0, place = offer->page + offsetof(struct book_page, nonce);
    struct iovec here[2] = {{&nonce, sizeof nonce}, {to, bytes}};
    struct iovec there[2] = {{(void *)(uintptr_t)place, sizeof nonce}, {(void *)(uintptr_t)address, bytes}};
    unsigned long pieces = bytes > 0 ? 2 : 1;
    return process_vm_readv((pid_t)offer->pid, here, pieces, there, pieces, 0) == (ssize_t)(sizeof nonce + bytes) &&
           nonce == offer->nonce;
}

bool region_offer_may_copy(const struct region_offer *offer)
{
    return offer->pid != 0 && copy_from_owner(NULL, 0, 0, offer);
}

enum status region_view_copy(void *to, uint64_t reference, size_t bytes, const struct region_view *view)
{
    uint64_t address = reference & ~REGION_MARK;
    long long pid = (long long)view->offer.pid;
    if (copy_from_owner(to, address, bytes, &view->offer)) return STATUS_OK;
    if (!region_view_holds(view)) return FAIL(STATUS_PEER, "process %lld has given up and taken its memory back", pid);
    if (!region_offer_may_copy(&view->offer)) return owner_is_gone(&view->offer);
    return FAIL(STATUS_DATA, "process %lld refers to %zu bytes at %llx, expected memory that it has", pid, bytes,
        (unsigned long long)address);
}

bool region_view_holds(const struct region_view *view)
{
    full_fence(); /* after the loads of the data */
    return __atomic_load_n(&view->page->given_up, __ATOMIC_ACQUIRE) == 0; /* see region_book_give_up() */
}
