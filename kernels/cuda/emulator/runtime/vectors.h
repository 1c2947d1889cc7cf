// Vector types, aligned as on a GPU: a load of one is one access of its whole size.
#pragma once
struct alignas(8) float2 {
    float x, y;
};
EMULATED float2 make_float2(float x, float y) { return {x, y}; }
struct float3 {
    float x, y, z;
};
EMULATED float3 make_float3(float x, float y, float z) { return {x, y, z}; }
struct alignas(16) float4 {
    float x, y, z, w;
};
EMULATED float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct alignas(8) int2 {
    int x, y;
};
EMULATED int2 make_int2(int x, int y) { return {x, y}; }
struct int3 {
    int x, y, z;
};
EMULATED int3 make_int3(int x, int y, int z) { return {x, y, z}; }
struct alignas(16) int4 {
    int x, y, z, w;
};
EMULATED int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
struct alignas(8) uint2 {
    unsigned x, y;
};
EMULATED uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
struct uint3 {
    unsigned x, y, z;
};
EMULATED uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
EMULATED uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct alignas(16) double2 {
    double x, y;
};
EMULATED double2 make_double2(double x, double y) { return {x, y}; }
struct double3 {
    double x, y, z;
};
EMULATED double3 make_double3(double x, double y, double z) { return {x, y, z}; }
struct alignas(16) double4 {
    double x, y, z, w;
};
EMULATED double4 make_double4(double x, double y, double z, double w) { return {x, y, z, w}; }
struct alignas(4) short2 {
    short x, y;
};
EMULATED short2 make_short2(short x, short y) { return {x, y}; }
struct short3 {
    short x, y, z;
};
EMULATED short3 make_short3(short x, short y, short z) { return {x, y, z}; }
struct alignas(8) short4 {
    short x, y, z, w;
};
EMULATED short4 make_short4(short x, short y, short z, short w) { return {x, y, z, w}; }
struct alignas(4) ushort2 {
    unsigned short x, y;
};
EMULATED ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }
struct ushort3 {
    unsigned short x, y, z;
};
EMULATED ushort3 make_ushort3(unsigned short x, unsigned short y, unsigned short z) { return {x, y, z}; }
struct alignas(8) ushort4 {
    unsigned short x, y, z, w;
};
EMULATED ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) { return {x, y, z, w}; }
struct alignas(2) char2 {
    signed char x, y;
};
EMULATED char2 make_char2(signed char x, signed char y) { return {x, y}; }
struct char3 {
    signed char x, y, z;
};
EMULATED char3 make_char3(signed char x, signed char y, signed char z) { return {x, y, z}; }
struct alignas(4) char4 {
    signed char x, y, z, w;
};
EMULATED char4 make_char4(signed char x, signed char y, signed char z, signed char w) { return {x, y, z, w}; }
struct alignas(2) uchar2 {
    unsigned char x, y;
};
EMULATED uchar2 make_uchar2(unsigned char x, unsigned char y) { return {x, y}; }
struct uchar3 {
    unsigned char x, y, z;
};
EMULATED uchar3 make_uchar3(unsigned char x, unsigned char y, unsigned char z) { return {x, y, z}; }
struct alignas(4) uchar4 {
    unsigned char x, y, z, w;
};
EMULATED uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) { return {x, y, z, w}; }
struct alignas(16) longlong2 {
    long long x, y;
};
EMULATED longlong2 make_longlong2(long long x, long long y) { return {x, y}; }
struct longlong3 {
    long long x, y, z;
};
EMULATED longlong3 make_longlong3(long long x, long long y, long long z) { return {x, y, z}; }
struct alignas(16) longlong4 {
    long long x, y, z, w;
};
EMULATED longlong4 make_longlong4(long long x, long long y, long long z, long long w) { return {x, y, z, w}; }
