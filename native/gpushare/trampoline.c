/* dlsym, in assembly.
 *
 * RTLD_NEXT means "after the calling library", and the C library identifies the caller by the return address. With a
 * wrapper in C the wrapper would be the caller, and other preloaded libraries (profilers, sanitizers) would find
 * themselves again. So this code calls the filter. If the filter returns NULL, it restores the arguments and jumps to
 * the real dlsym with the caller's return address unchanged. */
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
        "    mov 16(%rsp), %rdx\n" /* the caller's return address */
        "    sub $8, %rsp\n"       /* aligns the stack to 16 bytes for the call */
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
        "    mov x2, x30\n" /* the caller's return address */
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
