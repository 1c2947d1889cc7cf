// The part of CUDA C++ that a kernel sees, for g++ on a CPU. Sources include nothing of it
// themselves: it stands before them.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Calls are inlined, as nvcc does it, those of __noinline__ functions too: g++ instruments no store
// of what a call returns as a struct. Inlined, it is a store like any other.
#define __global__ __attribute__((flatten))
#define __device__
#define __host__
#define __constant__ static
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define EMULATED inline __attribute__((always_inline))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

extern "C" {
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
int emulated_barrier(int line, int vote);
unsigned long long emulated_collective(int line, int how, unsigned mask, unsigned long long value,
                                       int argument, int width);
void* emulated_shared(const void* id, const char* name, unsigned long long size,
                      unsigned long long item);
void* emulated_dynamic_shared(const char* name, unsigned long long item);
void emulated_atomic(void* pointer, unsigned long long size);
void emulated_atomic_exchange(void* pointer, unsigned long long size);
void emulated_atomic_compare(void* pointer, unsigned long long size);
void emulated_update_begins();
void emulated_update_ends();
void emulated_fence();
void emulated_read(const void* pointer, unsigned long long size);
void emulated_write(void* pointer, unsigned long long size);
void* emulated_move(void* to, const void* from, unsigned long long size);
void* emulated_fill(void* to, int value, unsigned long long size);
[[noreturn]] void emulated_assert(int line, const char* wanted);
[[noreturn]] void emulated_trap(int line);
}
static const int warpSize = 32;

// ---------------------------------------------------------------- barriers, shuffles, votes

#define __syncthreads() ((void)emulated_barrier(__LINE__, 0))
#define __syncthreads_count(vote) emulated_barrier(__LINE__, (vote) != 0)
#define __syncthreads_or(vote) (emulated_barrier(__LINE__, (vote) != 0) != 0)
#define __syncthreads_and(vote) (emulated_barrier(__LINE__, !(vote)) == 0)

template <int HOW, class T>
EMULATED T emulated_shuffle(int line, unsigned mask, T value, int argument, int width = 32) {
    static_assert(sizeof(T) <= 8, "a shuffle takes values of up to 8 bytes");
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulated_collective(line, HOW, mask, bits, argument, width);
    memcpy(&value, &bits, sizeof value);
    return value;
}
EMULATED unsigned emulated_vote(int line, int how, unsigned mask, int vote) {
    return unsigned(emulated_collective(line, how, mask, vote != 0, 0, 32));
}
EMULATED void emulated_syncwarp(int line, unsigned mask = 0xffffffffu) {
    emulated_collective(line, 7, mask, 0, 0, 32);
}
#define __shfl_sync(...) emulated_shuffle<0>(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) emulated_shuffle<1>(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emulated_shuffle<2>(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emulated_shuffle<3>(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, vote) emulated_vote(__LINE__, 4, mask, vote)
#define __any_sync(mask, vote) int(emulated_vote(__LINE__, 5, mask, vote))
#define __all_sync(mask, vote) int(emulated_vote(__LINE__, 6, mask, vote))
#define __syncwarp(...) emulated_syncwarp(__LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __reduce_add_sync(mask, value)                                                           \
    ((decltype(value))emulated_collective(__LINE__, 8, mask, (unsigned)(value), 0, 32))
EMULATED void __threadfence() { emulated_fence(); }
EMULATED void __threadfence_block() { emulated_fence(); }
EMULATED void __threadfence_system() { emulated_fence(); }
EMULATED void __nanosleep(unsigned) {}

#define assert(...) ((__VA_ARGS__) ? (void)0 : emulated_assert(__LINE__, #__VA_ARGS__))
#define __trap() emulated_trap(__LINE__)

#include "vectors.h"
#include "halves.h"
#include "maths.h"
#include "atomics.h"
#include "bytes.h"
