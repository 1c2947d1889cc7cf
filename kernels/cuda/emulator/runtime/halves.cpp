// Conversions between float and IEEE half, to nearest even, in integers alone.
#include <cstdint>
#include <cstring>

extern "C" float emulated_half_to_float(unsigned short half) {
    uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, rest = half & 1023;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | rest << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | rest << 13;
    } else {
        float tiny = float(rest) / 16777216.0f;  // 2^-24, the smallest half
        memcpy(&bits, &tiny, 4);
        bits |= sign;
    }
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

extern "C" unsigned short emulated_float_to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return uint16_t(0x7fff);
    if (size >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (size < 0x38800000) {  // below the smallest normal half: count steps of 2^-24
        if (size < 0x33000000) return uint16_t(sign);
        uint32_t shift = 126 - (size >> 23), whole = (size & 0x7fffff) | 0x800000;
        uint32_t steps = whole >> shift, left = whole & ((1u << shift) - 1), middle = 1u << (shift - 1);
        steps += left > middle || (left == middle && (steps & 1));
        return uint16_t(sign | steps);
    }
    uint32_t rounded = size + 0xfff + (size >> 13 & 1);
    return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}
