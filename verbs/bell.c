/* bell: see bell.h. The page is anonymous (memfd): nothing is left behind after SIGKILL. */
#include "verbs/bell.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096

struct shared_page {
    struct bell_page page;
    uint64_t nonce; /* what was opened is what was offered */
};

struct bell {
    struct shared_page *shared;
    int fd;
};

static long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

enum status bell_open(struct bell **out)
{
    *out = NULL;
    struct bell *bell = calloc(1, sizeof *bell);
    if (bell == NULL) return FAIL(STATUS_SYSTEM, "no memory for a bell");
    bell->fd = memfd_create("ringzero-bell", MFD_CLOEXEC);
    void *map = MAP_FAILED;
    if (bell->fd >= 0 && ftruncate(bell->fd, PAGE_BYTES) == 0)
        map = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, bell->fd, 0);
    if (map == MAP_FAILED) {
        int error = errno;
        if (bell->fd >= 0) close(bell->fd);
        free(bell);
        return FAIL(STATUS_SYSTEM, "no shared page to wake this rank by: %s; raise ulimit -n", strerror(error));
    }
    bell->shared = map;
    if (getrandom(&bell->shared->nonce, sizeof bell->shared->nonce, 0) < 0) bell->shared->nonce = (uint64_t)getpid();
    membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED); /* this process's cores take part in others' barriers */
    *out = bell;
    return STATUS_OK;
}

void bell_close(struct bell *bell)
{
    if (bell == NULL) return;
    munmap(bell->shared, PAGE_BYTES);
    close(bell->fd);
    free(bell);
}

struct bell_offer bell_offer(const struct bell *bell)
{
    return (struct bell_offer){.pid = getpid(), .fd = bell->fd, .nonce = bell->shared->nonce};
}

struct bell_page *bell_own_page(struct bell *bell) { return &bell->shared->page; }

struct bell_page *bell_attach(const struct bell_offer *offer)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)offer->pid, (long long)offer->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    /* Through the file first: a page beyond its end must not be touched. */
    struct shared_page seen;
    if (pread(fd, &seen, sizeof seen, 0) != (ssize_t)sizeof seen || seen.nonce != offer->nonce) {
        close(fd);
        return NULL;
    }
    void *map = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return map == MAP_FAILED ? NULL : (struct bell_page *)map;
}

void bell_detach(struct bell_page *page)
{
    if (page != NULL) munmap(page, PAGE_BYTES);
}

void bell_wake(struct bell_page *page)
{
    __atomic_add_fetch(&page->rings, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &page->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t bell_listen(struct bell *bell)
{
    struct bell_page *page = &bell->shared->page;
    uint32_t rings = __atomic_load_n(&page->rings, __ATOMIC_ACQUIRE);
    __atomic_store_n(&page->sleeping, 1, __ATOMIC_SEQ_CST); /* read by bell_ring() */
    membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    return rings;
}

void bell_sleep(struct bell *bell, uint32_t rings, int64_t max_ns)
{
    struct timespec time = {max_ns / 1000000000, max_ns % 1000000000};
    syscall(SYS_futex, &bell->shared->page.rings, FUTEX_WAIT, rings, &time, NULL, 0);
    bell_awake(bell);
}

void bell_awake(struct bell *bell) { __atomic_store_n(&bell->shared->page.sleeping, 0, __ATOMIC_RELAXED); }
