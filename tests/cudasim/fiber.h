/* fiber: a stack of its own and a place where to go on. Each waiting CUDA thread is one. */
#ifndef CUDASIM_FIBER_H
#define CUDASIM_FIBER_H

#include <cstddef>

namespace cudasim {

struct fiber {
    void *stack_pointer; /* while it does not run */
    void *owner;         /* the caller's */
    void *tsan, *asan;   /* what the sanitizers know it by */
    char *stack;         /* its lowest byte */
    size_t stack_bytes;
};

/* A fiber that starts with entry() when it is first switched to. entry never returns. Never
 * freed: whoever is done with it gives it other work. */
fiber *fiber_new(void (*entry)());

/* The calling OS thread as a fiber, so that one can switch back to it. */
void fiber_here(fiber &here);

/* Leaves `from`, which is running, for `to`. Returns when somebody switches back. Implies no
 * order of memory. */
void fiber_switch(fiber &from, fiber &to);

/* The first thing that entry() does. */
void fiber_entered();

/* ThreadSanitizer, where kernels are built with it: what CUDA orders is told to it here, and
 * nowhere else, since the simulator itself is never instrumented. `place` stands for an order:
 * whoever acquires it comes after all that has been released to it. */
bool tsan_watches();
void tsan_acquire(const void *place);
void tsan_release(const void *place);
void tsan_reads(const void *bytes, size_t count);
void tsan_writes(void *bytes, size_t count);

} // namespace cudasim
#endif
