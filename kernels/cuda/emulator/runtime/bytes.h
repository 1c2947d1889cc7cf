// memcpy, memmove and memset. Of the size of a register they are one access, as an assignment is;
// g++ instruments no other size, so those say themselves what they read and write.
#pragma once

#define IN_A_REGISTER(n)                                                                         \
    (__builtin_constant_p(n) && ((n) == 1 || (n) == 2 || (n) == 4 || (n) == 8 || (n) == 16))

EMULATED void* emulated_memcpy(void* to, const void* from, size_t n) {
    if (IN_A_REGISTER(n)) return __builtin_memcpy(to, from, n);
    emulated_read(from, n);
    emulated_write(to, n);
    return emulated_move(to, from, n);
}
EMULATED void* emulated_memmove(void* to, const void* from, size_t n) {
    if (IN_A_REGISTER(n)) return __builtin_memmove(to, from, n);
    emulated_read(from, n);
    emulated_write(to, n);
    return emulated_move(to, from, n);
}
EMULATED void* emulated_memset(void* to, int value, size_t n) {
    if (IN_A_REGISTER(n)) return __builtin_memset(to, value, n);
    emulated_write(to, n);
    return emulated_fill(to, value, n);
}
namespace std {
using ::emulated_memcpy;
using ::emulated_memmove;
using ::emulated_memset;
}
#undef IN_A_REGISTER
#define memcpy emulated_memcpy
#define memmove emulated_memmove
#define memset emulated_memset
