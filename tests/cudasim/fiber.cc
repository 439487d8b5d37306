/* fiber: stacks, and the switch between two of them. Only the registers that a called function must
 * keep are saved, so a switch costs a few nanoseconds.
 *
 *   a new stack, from its top         x86-64                     aarch64
 *                                     0: entry never returns
 *                                     entry
 *                                     6 registers                20 registers, with x30 = entry
 *     stack_pointer ->
 *     stack         ->  a guard page below
 */
#include "fiber.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/mman.h>

/* Of the sanitizers' runtimes, which are there only where the program was built with one. */
extern "C" {
void *__tsan_get_current_fiber() __attribute__((weak));
void *__tsan_create_fiber(unsigned flags) __attribute__((weak));
void __tsan_switch_to_fiber(void *fiber, unsigned flags) __attribute__((weak));
void __tsan_acquire(void *place) __attribute__((weak));
void __tsan_release(void *place) __attribute__((weak));
void __tsan_read_range(void *bytes, unsigned long count) __attribute__((weak));
void __tsan_write_range(void *bytes, unsigned long count) __attribute__((weak));
void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t bytes)
    __attribute__((weak));
void __sanitizer_finish_switch_fiber(void *save, const void **bottom, size_t *bytes)
    __attribute__((weak));
void cudasim_switch(void **save_stack_pointer, void *stack_pointer);
}

#if defined(__x86_64__)
asm(R"(
    .text
    .globl cudasim_switch
    .hidden cudasim_switch
    .type cudasim_switch,@function
cudasim_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp,(%rdi)
    mov %rsi,%rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size cudasim_switch,.-cudasim_switch
)");
enum { FRAME_WORDS = 8, ENTRY_WORD = 6 };
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl cudasim_switch
    .hidden cudasim_switch
    .type cudasim_switch,@function
cudasim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size cudasim_switch,.-cudasim_switch
)");
enum { FRAME_WORDS = 20, ENTRY_WORD = 11 }; /* x30, the link register */
#else
#error "cudasim: fiber.cc has no switch for this processor; expected x86-64 or aarch64"
#endif

namespace cudasim {

constexpr size_t PAGE = 4096;
constexpr size_t STACK_BYTES = 256 << 10; /* enough without optimisation; what is used is memory */

fiber *fiber_new(void (*entry)())
{
    size_t bytes = STACK_BYTES;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(nullptr, bytes + PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, PAGE, PROT_NONE) != 0) {
        fprintf(stderr,
            "cudasim: no stack for another CUDA thread (%s): use smaller blocks, fewer that wait "
            "at once (CUDASIM_RESIDENT), or raise vm.max_map_count\n",
            strerror(errno));
        abort();
    }
    /* The tops of all stacks would share the same few sets of the cache: each is moved by a
     * different amount. */
    static std::atomic<unsigned> count;
    size_t color = count.fetch_add(1) * 320u & 4032u;

    fiber *made = new fiber();
    made->stack = (char *)memory + PAGE;
    made->stack_bytes = bytes;
    void **top = (void **)(made->stack + bytes - color) - FRAME_WORDS;
    memset(top, 0, FRAME_WORDS * sizeof *top);
    top[ENTRY_WORD] = (void *)entry;
    made->stack_pointer = top;
    if (tsan_watches()) made->tsan = __tsan_create_fiber(0);
    return made;
}

void fiber_here(fiber &here)
{
    pthread_attr_t attributes;
    void *stack = nullptr;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &stack, &here.stack_bytes);
    pthread_attr_destroy(&attributes);
    here.stack = (char *)stack;
    if (tsan_watches()) here.tsan = __tsan_get_current_fiber();
}

void fiber_switch(fiber &from, fiber &to)
{
    if (tsan_watches()) __tsan_switch_to_fiber(to.tsan, 1 /* no order */);
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&from.asan, to.stack, to.stack_bytes);
    cudasim_switch(&from.stack_pointer, to.stack_pointer);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(from.asan, nullptr, nullptr);
}

void fiber_entered()
{
    if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
}

bool tsan_watches() { return __tsan_switch_to_fiber != nullptr; }

void tsan_acquire(const void *place)
{
    if (tsan_watches()) __tsan_acquire((void *)place);
}

void tsan_release(const void *place)
{
    if (tsan_watches()) __tsan_release((void *)place);
}

void tsan_reads(const void *bytes, size_t count)
{
    if (tsan_watches()) __tsan_read_range((void *)bytes, count);
}

void tsan_writes(void *bytes, size_t count)
{
    if (tsan_watches()) __tsan_write_range(bytes, count);
}

} // namespace cudasim
