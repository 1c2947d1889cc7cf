// What a kernel does wrong without touching memory: a failed assert, a number that fits no integer,
// a shift by more bits than there are. g++ calls the hooks of its undefined-behaviour sanitizer,
// whose own library is never linked.
#include "runtime.h"
#include <cstring>

struct SourcePlace {
    const char* file;
    u32 line, column;
};

struct TypeName {
    u16 kind, info;  // of an integer: signed, and twice the logarithm of its bits
    char name[1];    // in quotes
};

// As one field of a fault, which holds no space.
static void joined(char* out, u64 size, const char* text) {
    u64 i = 0;
    for (; text[i] && i + 1 < size; i++) out[i] = text[i] == ' ' ? '\1' : text[i];
    out[i] = 0;
}

extern "C" {
[[noreturn]] void emulated_assert(int line, const char* wanted) {
    char text[200];
    joined(text, sizeof text, wanted);
    fault("assert line=%d wanted=%s", line, text);
}

[[noreturn]] void emulated_trap(int line) { fault("trap line=%d", line); }

struct Conversion {
    SourcePlace place;
    const TypeName *from, *to;
};

void __ubsan_handle_float_cast_overflow(Conversion* what, u64 bits) {
    double value;
    float narrow;
    memcpy(&value, &bits, sizeof value);
    memcpy(&narrow, &bits, sizeof narrow);
    char name[80];
    joined(name, sizeof name, what->to->name);
    fault("conversion line=%u value=%g type=%s", what->place.line,
          what->from->info == 32 ? double(narrow) : value, name);
}

struct Shift {
    SourcePlace place;
    const TypeName *left, *right;
};

void __ubsan_handle_shift_out_of_bounds(Shift* what, u64, u64 by) {
    bool wide = what->right->info >> 1 == 6;
    fault("shift line=%u bits=%d by=%lld", what->place.line, 1 << (what->left->info >> 1),
          wide ? (long long)by : (long long)int(by));
}
}
