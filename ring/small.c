/* small: see small.h. Every check of the long way is here as a comparison with what the plan was made for; which of them failed is not
 * asked: the long way says it.
 */
#include "ring/small.h"

#include "ring/comm.h"
#include "ring/exchange_kept.h"
#include "ring/statement.h"

/* Written by the driver alone, so without a locked instruction. */
static void count_up(uint64_t *counter, uint64_t more)
{
    __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + more, __ATOMIC_RELAXED);
}

static bool span_fits(const struct span *span, size_t bytes, size_t element)
{
    return bytes == 0 ||
           (span->ptr != NULL && span->bytes >= bytes &&
               ((uintptr_t)span->ptr & (element - 1)) == 0 && span->kind != MEMORY_CUDA);
}

/* As request.c's check_request(): enough memory, aligned, in place or apart. */
static bool spans_fit(const struct exchange_plan *plan, const struct request *request)
{
    size_t element = dtype_bytes(request->dtype);
    const char *recv = request->recv.ptr, *send = request->send.ptr;
    if (!span_fits(&request->recv, plan->recv_bytes, element) ||
        !span_fits(&request->send, plan->send_bytes, element))
        return false;
    if (plan->send_bytes == 0 || plan->recv_bytes == 0) return true;
    return (intptr_t)recv - (intptr_t)send == plan->in_place || recv + plan->recv_bytes <= send ||
           send + plan->send_bytes <= recv;
}

static bool spin(struct exchange *exchange, const struct progress *progress)
{
    int most = progress_spins(progress, exchange->plan->staged);
    exchange->looks = progress_looks(progress);
    for (int idle = 0; idle < most; idle++) {
        bool moved = false, done = false;
        if (exchange_step(exchange, &moved, &done) != STATUS_OK) return false;
        if (done) return true;
        if (moved) idle = 0;
        progress_pause(idle, progress);
    }
    return false;
}

/* With the claim. */
static enum small_end run_claimed(struct exchange *exchange, struct request *request, bool draw)
{
    struct ring_comm *comm = request->comm;
    struct reduction reduction = {.dtype = request->dtype, .redop = request->redop};
    if (request->reduce_dtype != REDUCE_DTYPE_OWN)
        reduction.wide =
            reduce_is_wide(request->dtype, request->redop, request->reduce_dtype, comm->nranks);
    struct exchange_plan *plan = exchange_recall(
        request->collective, &reduction, request->root, request->count, request->stride, comm);
    if (plan == NULL || !spans_fit(plan, request)) return SMALL_REFUSED;
    if (draw) request->sequence = __atomic_add_fetch(&comm->sequence, 1, __ATOMIC_RELAXED);
    uint64_t tag = plan->tag | (request->sequence & OPERATION_TAG_SEQUENCE);
    comm->tags[request->sequence % STATEMENT_TAGS] = tag;
    exchange_start(exchange, plan, request->recv.ptr, request->send.ptr, tag, comm);
    if (!spin(exchange, comm->progress)) return SMALL_UNFINISHED;
    count_up(&comm->small.operations[plan->collective], 1);
    count_up(&comm->small.sent_bytes[plan->collective], plan->sent_bytes);
    if (plan->border_bytes > 0)
        count_up(&comm->small.border_bytes[plan->collective], plan->border_bytes);
    count_up(&comm->small.received_bytes[plan->collective], plan->received_bytes);
    return SMALL_DONE;
}

enum small_end small_run(struct exchange *exchange, struct request *request, bool draw)
{
    struct ring_comm *comm = request->comm;
    if (request->begins != NULL || request->group != 0 || comm->trace != NULL) return SMALL_REFUSED;
    if (__atomic_load_n(&comm->failed, __ATOMIC_ACQUIRE) || !progress_claim(comm->progress))
        return SMALL_REFUSED;
    enum small_end end = run_claimed(exchange, request, draw);
    if (end != SMALL_UNFINISHED) progress_release(comm->progress);
    return end;
}
