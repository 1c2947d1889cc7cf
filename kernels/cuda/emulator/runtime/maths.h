// Mathematics beyond what <math.h> declares already (expf, tanhf, erff, fmaxf, …).
#pragma once

EMULATED float rsqrtf(float x) { return 1.0f / sqrtf(x); }
EMULATED double rsqrt(double x) { return 1.0 / sqrt(x); }
EMULATED float rsqrt(float x) { return rsqrtf(x); }
EMULATED float __expf(float x) { return expf(x); }
EMULATED float __logf(float x) { return logf(x); }
EMULATED float __log2f(float x) { return log2f(x); }
EMULATED float __sinf(float x) { return sinf(x); }
EMULATED float __cosf(float x) { return cosf(x); }
EMULATED float __powf(float x, float y) { return powf(x, y); }
EMULATED float __fdividef(float x, float y) { return x / y; }
EMULATED float __fdiv_rn(float x, float y) { return x / y; }
EMULATED float __frcp_rn(float x) { return 1.0f / x; }
EMULATED float __fsqrt_rn(float x) { return sqrtf(x); }
EMULATED float __frsqrt_rn(float x) { return rsqrtf(x); }
EMULATED float __fadd_rn(float x, float y) { return x + y; }
EMULATED float __fmul_rn(float x, float y) { return x * y; }
EMULATED float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
EMULATED float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
EMULATED float erfcxf(float x) { return expf(x * x) * erfcf(x); }
EMULATED float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }

EMULATED int min(int a, int b) { return b < a ? b : a; }
EMULATED int max(int a, int b) { return a < b ? b : a; }
EMULATED unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
EMULATED unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
EMULATED long long min(long long a, long long b) { return b < a ? b : a; }
EMULATED long long max(long long a, long long b) { return a < b ? b : a; }
EMULATED unsigned long long min(unsigned long long a, unsigned long long b) { return b < a ? b : a; }
EMULATED unsigned long long max(unsigned long long a, unsigned long long b) { return a < b ? b : a; }
EMULATED float min(float a, float b) { return fminf(a, b); }
EMULATED float max(float a, float b) { return fmaxf(a, b); }
EMULATED double min(double a, double b) { return fmin(a, b); }
EMULATED double max(double a, double b) { return fmax(a, b); }

EMULATED int __popc(unsigned x) { return __builtin_popcount(x); }
EMULATED int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
EMULATED int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
EMULATED int __ffs(int x) { return __builtin_ffs(x); }
EMULATED unsigned __brev(unsigned x) {
    unsigned out = 0;
    for (int bit = 0; bit < 32; bit++) out |= (x >> bit & 1) << (31 - bit);
    return out;
}
EMULATED unsigned __umulhi(unsigned a, unsigned b) {
    return unsigned((unsigned long long)a * b >> 32);
}
EMULATED int __mul24(int a, int b) { return a * b; }
template <class To, class From> EMULATED To emulated_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To out;
    memcpy(&out, &x, sizeof out);
    return out;
}
EMULATED int __float_as_int(float x) { return emulated_bits<int>(x); }
EMULATED unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
EMULATED float __int_as_float(int x) { return emulated_bits<float>(x); }
EMULATED float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
EMULATED long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }
EMULATED double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
EMULATED float __int2float_rn(int x) { return float(x); }
EMULATED float __uint2float_rn(unsigned x) { return float(x); }

// What doesn't fit becomes the nearest number that does, and NaN becomes 0.
template <class To> EMULATED To emulated_saturated(double x) {
    const double low = To(-1) < 0 ? -2147483648.0 : 0.0, high = low + 4294967295.0;
    return x != x ? To(0) : To(x < low ? low : x > high ? high : x);
}
EMULATED int __float2int_rn(float x) { return emulated_saturated<int>(rint(x)); }
EMULATED int __float2int_rz(float x) { return emulated_saturated<int>(trunc(x)); }
EMULATED int __float2int_rd(float x) { return emulated_saturated<int>(floor(x)); }
EMULATED int __float2int_ru(float x) { return emulated_saturated<int>(ceil(x)); }
EMULATED unsigned __float2uint_rn(float x) { return emulated_saturated<unsigned>(rint(x)); }
EMULATED unsigned __float2uint_rz(float x) { return emulated_saturated<unsigned>(trunc(x)); }
EMULATED unsigned __float2uint_rd(float x) { return emulated_saturated<unsigned>(floor(x)); }
EMULATED unsigned __float2uint_ru(float x) { return emulated_saturated<unsigned>(ceil(x)); }
EMULATED int __double2int_rn(double x) { return emulated_saturated<int>(rint(x)); }
EMULATED int __double2int_rz(double x) { return emulated_saturated<int>(trunc(x)); }

template <class T> EMULATED T __ldg(const T* pointer) { return *pointer; }
template <class T> EMULATED T __ldcs(const T* pointer) { return *pointer; }
template <class T> EMULATED T __ldcg(const T* pointer) { return *pointer; }
template <class T> EMULATED void __stcs(T* pointer, T value) { *pointer = value; }
template <class T> EMULATED void __stcg(T* pointer, T value) { *pointer = value; }
