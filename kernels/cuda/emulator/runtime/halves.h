// __half and __nv_bfloat16: 16 bits in memory, arithmetic in float rounded once, to nearest even.
#pragma once

extern "C" {
float emulated_half_to_float(unsigned short bits);
unsigned short emulated_float_to_half(float value);
}

struct __half {
    unsigned short bits;
    __half() = default;
    EMULATED __half(float value) : bits(emulated_float_to_half(value)) {}
    EMULATED __half(double value) : __half(float(value)) {}
    EMULATED __half(int value) : __half(float(value)) {}
    EMULATED operator float() const { return emulated_half_to_float(bits); }
    EMULATED __half& operator+=(__half other) { return *this = __half(float(*this) + float(other)); }
    EMULATED __half& operator-=(__half other) { return *this = __half(float(*this) - float(other)); }
    EMULATED __half& operator*=(__half other) { return *this = __half(float(*this) * float(other)); }
    EMULATED __half& operator/=(__half other) { return *this = __half(float(*this) / float(other)); }
};
EMULATED __half operator+(__half a, __half b) { return __half(float(a) + float(b)); }
EMULATED __half operator-(__half a, __half b) { return __half(float(a) - float(b)); }
EMULATED __half operator*(__half a, __half b) { return __half(float(a) * float(b)); }
EMULATED __half operator/(__half a, __half b) { return __half(float(a) / float(b)); }
EMULATED __half operator-(__half a) { return __half(-float(a)); }
EMULATED bool operator<(__half a, __half b) { return float(a) < float(b); }
EMULATED bool operator>(__half a, __half b) { return float(a) > float(b); }
EMULATED bool operator<=(__half a, __half b) { return float(a) <= float(b); }
EMULATED bool operator>=(__half a, __half b) { return float(a) >= float(b); }
EMULATED bool operator==(__half a, __half b) { return float(a) == float(b); }
EMULATED bool operator!=(__half a, __half b) { return float(a) != float(b); }
struct alignas(4) __half2 {
    __half x, y;
};
EMULATED float __half2float(__half a) { return float(a); }
EMULATED __half __float2half(float a) { return __half(a); }
EMULATED __half __float2half_rn(float a) { return __half(a); }
EMULATED float2 __half22float2(__half2 a) { return {float(a.x), float(a.y)}; }
EMULATED __half2 __float22half2_rn(float2 a) { return {__half(a.x), __half(a.y)}; }
EMULATED __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
EMULATED __half2 __halves2half2(__half a, __half b) { return {a, b}; }
EMULATED __half __low2half(__half2 a) { return a.x; }
EMULATED __half __high2half(__half2 a) { return a.y; }
using half = __half;
using half2 = __half2;

EMULATED float emulated_bfloat16_to_float(unsigned short bits) {
    unsigned wide = unsigned(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}
EMULATED unsigned short emulated_float_to_bfloat16(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    EMULATED __nv_bfloat16(float value) : bits(emulated_float_to_bfloat16(value)) {}
    EMULATED __nv_bfloat16(double value) : __nv_bfloat16(float(value)) {}
    EMULATED __nv_bfloat16(int value) : __nv_bfloat16(float(value)) {}
    EMULATED operator float() const { return emulated_bfloat16_to_float(bits); }
    EMULATED __nv_bfloat16& operator+=(__nv_bfloat16 other) { return *this = __nv_bfloat16(float(*this) + float(other)); }
    EMULATED __nv_bfloat16& operator-=(__nv_bfloat16 other) { return *this = __nv_bfloat16(float(*this) - float(other)); }
    EMULATED __nv_bfloat16& operator*=(__nv_bfloat16 other) { return *this = __nv_bfloat16(float(*this) * float(other)); }
    EMULATED __nv_bfloat16& operator/=(__nv_bfloat16 other) { return *this = __nv_bfloat16(float(*this) / float(other)); }
};
EMULATED __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16(float(a) + float(b)); }
EMULATED __nv_bfloat16 operator-(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16(float(a) - float(b)); }
EMULATED __nv_bfloat16 operator*(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16(float(a) * float(b)); }
EMULATED __nv_bfloat16 operator/(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16(float(a) / float(b)); }
EMULATED __nv_bfloat16 operator-(__nv_bfloat16 a) { return __nv_bfloat16(-float(a)); }
EMULATED bool operator<(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) < float(b); }
EMULATED bool operator>(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) > float(b); }
EMULATED bool operator<=(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) <= float(b); }
EMULATED bool operator>=(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) >= float(b); }
EMULATED bool operator==(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) == float(b); }
EMULATED bool operator!=(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) != float(b); }
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
EMULATED float __bfloat162float(__nv_bfloat16 a) { return float(a); }
EMULATED __nv_bfloat16 __float2bfloat16(float a) { return __nv_bfloat16(a); }
EMULATED __nv_bfloat16 __float2bfloat16_rn(float a) { return __nv_bfloat16(a); }
EMULATED float2 __bfloat1622float2(__nv_bfloat162 a) { return {float(a.x), float(a.y)}; }
EMULATED __nv_bfloat162 __float22bfloat162_rn(float2 a) {
    return {__nv_bfloat16(a.x), __nv_bfloat16(a.y)};
}
EMULATED __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return {__nv_bfloat16(a), __nv_bfloat16(b)};
}
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

template <class T> EMULATED auto __hadd(T a, T b) -> decltype(T(a + b)) { return T(a + b); }
template <class T> EMULATED auto __hsub(T a, T b) -> decltype(T(a - b)) { return T(a - b); }
template <class T> EMULATED auto __hmul(T a, T b) -> decltype(T(a * b)) { return T(a * b); }
template <class T> EMULATED auto __hdiv(T a, T b) -> decltype(T(a / b)) { return T(a / b); }
template <class T> EMULATED T __hfma(T a, T b, T c) { return T(fmaf(float(a), float(b), float(c))); }
template <class T> EMULATED T __hneg(T a) { return T(-float(a)); }
template <class T> EMULATED T __hmax(T a, T b) { return T(fmaxf(float(a), float(b))); }
template <class T> EMULATED T __hmin(T a, T b) { return T(fminf(float(a), float(b))); }
template <class T> EMULATED bool __hgt(T a, T b) { return a > b; }
template <class T> EMULATED bool __hlt(T a, T b) { return a < b; }
EMULATED __half2 __hadd2(__half2 a, __half2 b) { return {a.x + b.x, a.y + b.y}; }
EMULATED __half2 __hmul2(__half2 a, __half2 b) { return {a.x * b.x, a.y * b.y}; }
EMULATED __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x + b.x, a.y + b.y}; }
EMULATED __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x * b.x, a.y * b.y}; }
