// Atomics: the hook counts and checks one read and one write; the update itself is not instrumented.
#pragma once

#define UNSEEN __attribute__((no_sanitize("thread"), noinline))

template <class T> UNSEEN T emulated_add(T* p, T v) {
    T before = *p;
    *p = T(before + v);
    return before;
}
template <class T> UNSEEN T emulated_max(T* p, T v) {
    T before = *p;
    *p = before < v ? v : before;
    return before;
}
template <class T> UNSEEN T emulated_min(T* p, T v) {
    T before = *p;
    *p = v < before ? v : before;
    return before;
}
template <class T> UNSEEN T emulated_exchange(T* p, T v) {
    T before = *p;
    *p = v;
    return before;
}
template <class T> UNSEEN T emulated_swap_if(T* p, T expected, T v) {
    T before = *p;
    if (before == expected) *p = v;
    return before;
}

EMULATED int atomicAdd(int* p, int v) {
    emulated_atomic(p, sizeof *p);
    return emulated_add(p, v);
}
EMULATED unsigned atomicAdd(unsigned* p, unsigned v) {
    emulated_atomic(p, sizeof *p);
    return emulated_add(p, v);
}
EMULATED unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) {
    emulated_atomic(p, sizeof *p);
    return emulated_add(p, v);
}
EMULATED float atomicAdd(float* p, float v) {
    emulated_atomic(p, sizeof *p);
    return emulated_add(p, v);
}
EMULATED double atomicAdd(double* p, double v) {
    emulated_atomic(p, sizeof *p);
    return emulated_add(p, v);
}
EMULATED __half atomicAdd(__half* p, __half v) {
    emulated_atomic(p, sizeof *p);
    return emulated_add(p, v);
}
EMULATED __nv_bfloat16 atomicAdd(__nv_bfloat16* p, __nv_bfloat16 v) {
    emulated_atomic(p, sizeof *p);
    return emulated_add(p, v);
}
EMULATED int atomicMax(int* p, int v) {
    emulated_atomic(p, sizeof *p);
    return emulated_max(p, v);
}
EMULATED unsigned atomicMax(unsigned* p, unsigned v) {
    emulated_atomic(p, sizeof *p);
    return emulated_max(p, v);
}
EMULATED unsigned long long atomicMax(unsigned long long* p, unsigned long long v) {
    emulated_atomic(p, sizeof *p);
    return emulated_max(p, v);
}
EMULATED int atomicMin(int* p, int v) {
    emulated_atomic(p, sizeof *p);
    return emulated_min(p, v);
}
EMULATED unsigned atomicMin(unsigned* p, unsigned v) {
    emulated_atomic(p, sizeof *p);
    return emulated_min(p, v);
}
EMULATED unsigned long long atomicMin(unsigned long long* p, unsigned long long v) {
    emulated_atomic(p, sizeof *p);
    return emulated_min(p, v);
}
EMULATED int atomicExch(int* p, int v) {
    emulated_atomic_store(p, sizeof *p);
    return emulated_exchange(p, v);
}
EMULATED unsigned atomicExch(unsigned* p, unsigned v) {
    emulated_atomic_store(p, sizeof *p);
    return emulated_exchange(p, v);
}
EMULATED unsigned long long atomicExch(unsigned long long* p, unsigned long long v) {
    emulated_atomic_store(p, sizeof *p);
    return emulated_exchange(p, v);
}
EMULATED float atomicExch(float* p, float v) {
    emulated_atomic_store(p, sizeof *p);
    return emulated_exchange(p, v);
}
EMULATED int atomicCAS(int* p, int expected, int v) {
    emulated_atomic(p, sizeof *p);
    return emulated_swap_if(p, expected, v);
}
EMULATED unsigned atomicCAS(unsigned* p, unsigned expected, unsigned v) {
    emulated_atomic(p, sizeof *p);
    return emulated_swap_if(p, expected, v);
}
EMULATED unsigned long long atomicCAS(unsigned long long* p, unsigned long long expected, unsigned long long v) {
    emulated_atomic(p, sizeof *p);
    return emulated_swap_if(p, expected, v);
}
