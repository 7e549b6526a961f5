/* dlsym, in assembly.
 *
 * RTLD_NEXT means "after the library that asks", and the C library tells who asks from the return address. A wrapper
 * in C would be the one who asks, and every other preloaded library (profilers, sanitizers) would find itself again.
 * So: ask the filter, and if it has nothing to say, put the arguments back and jump, leaving the caller's return
 * address where it was. */
#include "real.h"

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "    endbr64\n"
        "    push %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    push %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    mov 16(%rsp), %rdx\n" /* who asks */
        "    sub $8, %rsp\n"       /* calls want the stack at a multiple of 16 */
        ".cfi_adjust_cfa_offset 8\n"
        "    call gpushare_filter\n"
        "    add $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    pop %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    pop %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    test %rax, %rax\n"
        "    jz 1f\n"
        "    ret\n"
        "1:  jmp *gpushare_real_dlsym(%rip)\n"
        ".cfi_endproc\n"
        ".size dlsym, .-dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "    stp x29, x30, [sp, #-32]!\n"
        ".cfi_def_cfa_offset 32\n"
        ".cfi_offset 29, -32\n"
        ".cfi_offset 30, -24\n"
        "    mov x29, sp\n"
        "    stp x0, x1, [sp, #16]\n"
        "    mov x2, x30\n" /* who asks */
        "    bl gpushare_filter\n"
        "    mov x9, x0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #32\n"
        ".cfi_def_cfa_offset 0\n"
        ".cfi_restore 29\n"
        ".cfi_restore 30\n"
        "    cbz x9, 1f\n"
        "    mov x0, x9\n"
        "    ret\n"
        "1:  adrp x9, gpushare_real_dlsym\n"
        "    ldr x9, [x9, #:lo12:gpushare_real_dlsym]\n"
        "    br x9\n"
        ".cfi_endproc\n"
        ".size dlsym, .-dlsym\n");
#else
#error "gpushare knows x86_64 and aarch64"
#endif
