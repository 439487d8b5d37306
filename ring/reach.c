/* reach: see reach.h. */
#include "ring/reach.h"

#include <stdlib.h>
#include <string.h>

#include "ring/comm.h"
#include "verbs/device_ipc.h"
#include "verbs/log.h"

struct own_region {
    struct span memory; /* ptr NULL: there is none */
    enum memory_tag tag;
    bool used;          /* by the caller; else kept for the next */
};

/* Of one communicator. own and readers are under its lock: operations on streams look at them. */
struct reach {
    struct own_region own[REACH_REGIONS];
    struct span regions;        /* pinned: struct reach_region [nranks][REACH_REGIONS] */
    struct ipc_import *imports; /* [nranks][REACH_REGIONS] */
    unsigned char *readers;     /* [REACH_REGIONS][nranks]: that rank has it open */
};

/* What a rank tells the others in reach_alloc(). */
struct reach_word {
    struct ipc_offer offer;
    int32_t region; /* −1: nothing to be read */
    int32_t failed;
};

static struct reach_region *region_at(int rank, int region, const struct reach *reach)
{
    return (struct reach_region *)reach->regions.ptr + (size_t)rank * REACH_REGIONS + region;
}

static void free_reach(struct reach *reach)
{
    free(reach->imports);
    free(reach->readers);
    free(reach);
}

static enum status reach_open(struct ring_comm *comm)
{
    if (comm->reach != NULL) return STATUS_OK;
    size_t n = (size_t)comm->nranks;
    struct reach *reach = calloc(1, sizeof *reach);
    if (reach == NULL) return FAIL(STATUS_SYSTEM, "no memory for what ranks share");
    reach->imports = calloc(n * REACH_REGIONS, sizeof *reach->imports);
    reach->readers = calloc(n * REACH_REGIONS, 1);
    size_t bytes = n * REACH_REGIONS * sizeof(struct reach_region);
    enum status status = STATUS_OK;
    if (reach->imports == NULL || reach->readers == NULL)
        status = FAIL(STATUS_SYSTEM, "no memory for what %d ranks share", comm->nranks);
    if (status == STATUS_OK)
        status = memory_alloc_kind(&reach->regions, bytes, MEMORY_HOST_PINNED, MEMORY_COMMUNICATION, comm->device);
    if (status != STATUS_OK) {
        free_reach(reach);
        return status;
    }
    pthread_mutex_lock(&comm->lock);
    comm->reach = reach;
    pthread_mutex_unlock(&comm->lock);
    return STATUS_OK;
}

/* ---- memory ---- */

/* One that is kept and large enough, else a free place; −1: there is none. */
static int choose_region(size_t bytes, enum memory_tag tag, const struct reach *reach)
{
    int place = -1;
    for (int i = REACH_REGIONS - 1; i >= 0; i--) {
        const struct own_region *own = &reach->own[i];
        if (own->memory.ptr == NULL) place = i;
    }
    for (int i = 0; i < REACH_REGIONS; i++) {
        const struct own_region *own = &reach->own[i];
        if (own->memory.ptr != NULL && !own->used && own->tag == tag && own->memory.bytes >= bytes) return i;
    }
    return place;
}

/* This rank's part; *region −1: memory as any other, or none. */
static enum status take_memory(int *region, struct span *span, size_t bytes, enum memory_tag tag, struct ring_comm *comm)
{
    *region = -1;
    TRY(reach_open(comm));
    if (bytes == 0) return STATUS_OK;
    pthread_mutex_lock(&comm->lock);
    int place = choose_region(bytes, tag, comm->reach);
    pthread_mutex_unlock(&comm->lock);
    if (place < 0) return memory_alloc(span, bytes, tag, comm->device);
    struct own_region *own = &comm->reach->own[place];
    if (own->memory.ptr != NULL) TRY(span_fill(span_part(own->memory, 0, bytes), 0, NULL, comm->device));
    else TRY(memory_alloc(&own->memory, bytes, tag, comm->device));
    pthread_mutex_lock(&comm->lock);
    own->tag = tag;
    own->used = true;
    pthread_mutex_unlock(&comm->lock);
    *span = span_part(own->memory, 0, bytes);
    *region = place;
    return STATUS_OK;
}

bool reach_free(struct span *span, struct ring_comm *comm)
{
    bool found = false;
    pthread_mutex_lock(&comm->lock);
    for (int i = 0; i < REACH_REGIONS && comm->reach != NULL && span->ptr != NULL && !found; i++) {
        struct own_region *own = &comm->reach->own[i];
        found = own->used && own->memory.ptr == span->ptr;
        if (found) own->used = false;
    }
    pthread_mutex_unlock(&comm->lock);
    if (found) *span = (struct span){0};
    return found;
}

/* ---- what others have ---- */

/* Opens what a rank offers, unless it is open. */
static bool open_offer(int rank, const struct reach_word *word, struct ring_comm *comm)
{
    struct reach_region *region = region_at(rank, word->region, comm->reach);
    struct ipc_import *import = &comm->reach->imports[(size_t)rank * REACH_REGIONS + (size_t)word->region];
    if (region->at != NULL) return true; /* it stays until the communicator closes */
    if (ipc_open(import, &word->offer, comm->device) != STATUS_OK) {
        LOG_INFO("ring", "memory of rank %d is not read where it is: %s", comm_name(comm, rank), status_text());
        return false;
    }
    *region = (struct reach_region){import->ptr, word->offer.bytes};
    return true;
}

static enum status gather(void *all, size_t bytes, struct ring_comm *comm)
{
    char *mine = (char *)all + (size_t)comm->rank * bytes;
    return ring_all_gather(span_host(all, bytes * (size_t)comm->nranks), span_host(mine, bytes), bytes, DTYPE_UINT8, comm, NULL);
}

/* words[rank] is this rank's; opened: room for nranks · nranks. */
static enum status tell_all(struct reach_word *words, unsigned char *opened, struct ring_comm *comm)
{
    int n = comm->nranks, self = comm->rank;
    TRY(gather(words, sizeof *words, comm));
    for (int r = 0; r < n; r++) {
        if (words[r].failed == 0) continue;
        return r == self ? STATUS_OK : FAIL(STATUS_SYSTEM, "rank %d has no memory for its part of what ranks share", comm_name(comm, r));
    }
    unsigned char *mine = opened + (size_t)self * (size_t)n;
    for (int r = 0; r < n; r++) {
        bool offers = r != self && comm_reads_memory(r, self, comm) && words[r].region >= 0 && words[r].region < REACH_REGIONS;
        mine[r] = offers && open_offer(r, &words[r], comm);
    }
    TRY(gather(opened, (size_t)n, comm));
    pthread_mutex_lock(&comm->lock);
    for (int r = 0; r < n && words[self].region >= 0; r++)
        comm->reach->readers[(size_t)words[self].region * (size_t)n + (size_t)r] = opened[r * n + self];
    pthread_mutex_unlock(&comm->lock);
    return STATUS_OK;
}

/* Whether any two ranks can read each other's: alike on all. */
static bool anyone_reads(const struct ring_comm *comm)
{
    for (int a = 0; a < comm->nranks; a++)
        for (int b = 0; b < a; b++)
            if (comm_reads_memory(a, b, comm)) return true;
    return false;
}

enum status reach_alloc(struct span *span, size_t bytes, enum memory_tag tag, struct ring_comm *comm)
{
    size_t n = (size_t)comm->nranks;
    *span = (struct span){0};
    if (!anyone_reads(comm)) return memory_alloc(span, bytes, tag, comm->device);
    struct reach_word *words = calloc(n, sizeof *words);
    unsigned char *opened = calloc(n, n);
    enum status status = words != NULL && opened != NULL ? STATUS_OK : FAIL(STATUS_SYSTEM, "no memory for words of %zu ranks", n);
    if (status == STATUS_OK) {
        struct reach_word *mine = &words[comm->rank];
        status = take_memory(&mine->region, span, bytes, tag, comm);
        if (status == STATUS_OK && mine->region >= 0)
            status = ipc_offer(&mine->offer, comm->reach->own[mine->region].memory, comm->device);
        mine->failed = status != STATUS_OK;
        enum status told = tell_all(words, opened, comm);
        if (told != STATUS_OK) status = told;
    }
    free(words);
    free(opened);
    if (status != STATUS_OK && !reach_free(span, comm)) memory_free(span, tag, comm->device);
    return status;
}

/* ---- in operations ---- */

uint64_t reach_reference(const void *ptr, size_t bytes, int rank, struct ring_comm *comm)
{
    uint64_t reference = 0;
    pthread_mutex_lock(&comm->lock);
    const struct reach *reach = comm->reach;
    for (uint64_t i = 0; reach != NULL && i < REACH_REGIONS && reference == 0; i++) {
        const struct own_region *own = &reach->own[i];
        if (!own->used || reach->readers[i * (uint64_t)comm->nranks + (uint64_t)rank] == 0) continue;
        uintptr_t offset = (uintptr_t)ptr - (uintptr_t)own->memory.ptr; /* large where ptr is before it */
        if (offset <= own->memory.bytes && bytes <= own->memory.bytes - offset) reference = (i + 1) << 40 | offset;
    }
    pthread_mutex_unlock(&comm->lock);
    return reference;
}

const struct reach_region *reach_regions(int rank, const struct ring_comm *comm)
{
    return comm->reach == NULL ? NULL : region_at(rank, 0, comm->reach);
}

/* ---- the end ---- */

void reach_let_go(struct ring_comm *comm)
{
    struct reach *reach = comm->reach;
    size_t places = (size_t)comm->nranks * REACH_REGIONS;
    for (size_t i = 0; reach != NULL && reach->imports != NULL && i < places; i++) ipc_close(&reach->imports[i], comm->device);
}

void reach_close(struct ring_comm *comm)
{
    struct reach *reach = comm->reach;
    if (reach == NULL) return;
    for (int i = 0; i < REACH_REGIONS && !comm->failed; i++)
        memory_free(&reach->own[i].memory, reach->own[i].tag, comm->device);
    memory_free(&reach->regions, MEMORY_COMMUNICATION, comm->device);
    free_reach(reach);
    comm->reach = NULL;
}
