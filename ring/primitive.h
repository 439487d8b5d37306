/* primitive: what a step does with the numbers of its slice, in words of reduce.h. The same source for the CPU and for kernels, so
 * that no algorithm forks by device (I7).
 */
#ifndef RING_PRIMITIVE_H
#define RING_PRIMITIVE_H

#include "ring/plan.h"
#include "ring/reduce.h"

#ifdef __CUDACC__
#define ON_EVERY_DEVICE static __host__ __device__ inline
#else
#define ON_EVERY_DEVICE static inline
#endif

/* As plan.h says it. slice has the operands that there are; those that the primitive does not use become NULL. scales:
 * reduce_scales() of the reduction. */
ON_EVERY_DEVICE enum reduce_kind primitive_work(struct reduce_slice *slice, enum primitive primitive, bool scales)
{
    switch (primitive) {
    case PRIMITIVE_COPY: /* of one rank alone: its own input is the whole sum */
        slice->slot = NULL;
        return scales ? REDUCE_SCALE : REDUCE_COPY;
    case PRIMITIVE_SEND:
        slice->out = NULL;
        return scales ? REDUCE_SCALE : REDUCE_COPY;
    case PRIMITIVE_COPY_SEND: return REDUCE_COPY;
    case PRIMITIVE_FORWARD:
        slice->own = slice->out;
        slice->out = NULL;
        return REDUCE_COPY;
    case PRIMITIVE_RECV:
    case PRIMITIVE_RECV_COPY_SEND:
        slice->own = NULL;
        return REDUCE_COPY;
    case PRIMITIVE_RECV_REDUCE_SEND:
        slice->out = NULL;
        return REDUCE_COMBINE;
    case PRIMITIVE_RECV_REDUCE_COPY:
        slice->slot = NULL;
        return REDUCE_COMBINE;
    case PRIMITIVE_RECV_REDUCE_COPY_SEND: return REDUCE_COMBINE;
    case PRIMITIVE_NONE:
    case PRIMITIVE_COUNT: break;
    }
    return REDUCE_NOTHING;
}

#endif
