// Atomics: a hook counts and checks one read and one write; the update itself is not instrumented.
#pragma once

#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
#define ATOMIC(NAME, HOOK, TYPE, AFTER)                                                          \
    UNSEEN inline TYPE emulated_##NAME(TYPE* p, TYPE v) {                                        \
        TYPE before = *p;                                                                        \
        *p = (TYPE)(AFTER);                                                                      \
        return before;                                                                           \
    }                                                                                            \
    EMULATED TYPE NAME(TYPE* p, TYPE v) {                                                        \
        HOOK(p, sizeof *p);                                                                      \
        emulated_update_begins();                                                                \
        TYPE before = emulated_##NAME(p, v);                                                     \
        emulated_update_ends();                                                                  \
        return before;                                                                           \
    }
#define COMPARED(TYPE)                                                                           \
    UNSEEN inline TYPE emulated_swap_if(TYPE* p, TYPE expected, TYPE v) {                        \
        TYPE before = *p;                                                                        \
        if (before == expected) *p = v;                                                          \
        return before;                                                                           \
    }                                                                                            \
    EMULATED TYPE atomicCAS(TYPE* p, TYPE expected, TYPE v) {                                    \
        emulated_atomic_compare(p, sizeof *p);                                                   \
        emulated_update_begins();                                                                \
        TYPE before = emulated_swap_if(p, expected, v);                                          \
        emulated_update_ends();                                                                  \
        return before;                                                                           \
    }
#define OF_INTEGERS(NAME, AFTER)                                                                 \
    ATOMIC(NAME, emulated_atomic, int, AFTER)                                                    \
    ATOMIC(NAME, emulated_atomic, unsigned, AFTER)                                               \
    ATOMIC(NAME, emulated_atomic, unsigned long long, AFTER)

OF_INTEGERS(atomicAdd, before + v)
ATOMIC(atomicAdd, emulated_atomic, float, before + v)
ATOMIC(atomicAdd, emulated_atomic, double, before + v)
ATOMIC(atomicAdd, emulated_atomic, __half, before + v)
ATOMIC(atomicAdd, emulated_atomic, __nv_bfloat16, before + v)
ATOMIC(atomicSub, emulated_atomic, int, before - v)
ATOMIC(atomicSub, emulated_atomic, unsigned, before - v)
OF_INTEGERS(atomicMax, before < v ? v : before)
ATOMIC(atomicMax, emulated_atomic, long long, before < v ? v : before)
OF_INTEGERS(atomicMin, v < before ? v : before)
ATOMIC(atomicMin, emulated_atomic, long long, v < before ? v : before)
OF_INTEGERS(atomicAnd, before & v)
OF_INTEGERS(atomicOr, before | v)
OF_INTEGERS(atomicXor, before ^ v)
ATOMIC(atomicInc, emulated_atomic, unsigned, before >= v ? 0 : before + 1)
ATOMIC(atomicDec, emulated_atomic, unsigned, before == 0 || before > v ? v : before - 1)
ATOMIC(atomicExch, emulated_atomic_exchange, int, v)
ATOMIC(atomicExch, emulated_atomic_exchange, unsigned, v)
ATOMIC(atomicExch, emulated_atomic_exchange, unsigned long long, v)
ATOMIC(atomicExch, emulated_atomic_exchange, float, v)
COMPARED(int)
COMPARED(unsigned)
COMPARED(unsigned long long)
COMPARED(unsigned short)
#undef ATOMIC
#undef COMPARED
#undef OF_INTEGERS
#undef UNSEEN
