// Holds a process to AVX2: what it asks CPUID it is told without AVX-512, AVX-VNNI and AMX. For peers that have no setting of
// their own (OpenVINO's CPU plugin). Linux, x86-64, a processor with CPUID faulting (`cpuid_fault` in /proc/cpuinfo).
//
//     gcc -O2 -shared -fPIC -o hold_avx2.so hold_avx2.c
//     LD_PRELOAD=./hold_avx2.so python ...
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef ARCH_SET_CPUID
#define ARCH_SET_CPUID 0x1012
#endif

static long answers(int on) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, on); }

// Bits of leaf 7 (Intel's manual, volume 2A, CPUID).
static void hide(unsigned leaf, unsigned sub, unsigned r[4]) {
    if (leaf != 7) return;
    if (sub == 0) {
        r[1] &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
        r[2] &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
        r[3] &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
    } else if (sub == 1) {
        r[0] &= ~(1u << 4 | 1u << 5 | 1u << 21 | 1u << 23);
        r[3] = 0;
    }
}

static void on_fault(int signal_, siginfo_t *info, void *context) {
    (void)info;
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)g[REG_RIP];
    if (code[0] != 0x0f || code[1] != 0xa2) {  // a fault of another kind: as if nobody had listened
        signal(signal_, SIG_DFL);
        return;
    }
    unsigned leaf = g[REG_RAX], sub = g[REG_RCX], r[4];
    answers(1);
    __cpuid_count(leaf, sub, r[0], r[1], r[2], r[3]);
    answers(0);
    hide(leaf, sub, r);
    g[REG_RAX] = r[0], g[REG_RBX] = r[1], g[REG_RCX] = r[2], g[REG_RDX] = r[3];
    g[REG_RIP] += 2;
}

__attribute__((constructor)) static void hold(void) {
    struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &act, NULL);
    if (answers(0)) {
        fputs("hold_avx2: this processor cannot hide what it is\n", stderr);
        exit(2);
    }
}
