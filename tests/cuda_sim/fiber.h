/* fiber.h - stacks that a thread switches between. */
#ifndef CUDA_SIM_FIBER_H
#define CUDA_SIM_FIBER_H

#include <stddef.h>

#if defined(__x86_64__) && !defined(CUDA_SIM_UCONTEXT)
struct fiber {
    void *sp;
};
extern "C" void sim_switch(void **from, void *to) __attribute__((visibility("hidden")));
/** Leave one fiber, go on where the other left. */
static inline void fiber_switch(fiber *from, fiber *to) { sim_switch(&from->sp, to->sp); }
#else
#include <ucontext.h>
struct fiber {
    ucontext_t context;
};
static inline void fiber_switch(fiber *from, fiber *to) { swapcontext(&from->context, &to->context); }
#endif

/** The fiber begins with entry(), which never returns, on the stack that ends at top. */
void fiber_start(fiber *f, char *stack, char *top, void (*entry)());

#endif
