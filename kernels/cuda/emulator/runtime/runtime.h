// What the parts of the emulator's runtime share. None of this is instrumented.
#pragma once
#include <cstdint>
#include <cstdio>
#include <sys/mman.h>

using i64 = int64_t;
using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

struct dim3 {
    unsigned x, y, z;
};

enum Kind { LOAD = 0, STORE = 1, ATOMIC = 2 };
enum State { READY, AT_BARRIER, AT_COLLECTIVE, RETURNED, WAITING };

// One pointer argument: a window of addresses of its own, mapped onto its storage.
struct Argument {
    int storage;
    u64 start, span;  // bytes within the storage
    u64 item;         // bytes of one element of the tensor
    u64 base;         // the address the kernel gets
};

struct Cell;

// A cell for each 2^shift bytes of memory: races are told apart at so many.
struct Cells {
    Cell* all;
    u64 bytes;
    u32 shift;
};

struct Storage {
    u64 offset, size;  // bytes within the memory file
    Cells cells;
    u64 flags_offset;  // where the file says what nobody has written, 0 if all is written
    u8* unwritten;     // per byte: 1 while nobody has written it; null if all is written
    u8* flags;         // per byte: 1 read, 2 written, 4 told
};

extern "C" {
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
}

// scheduler.cpp
constexpr u64 STACK_BYTES = 128 << 10;
extern int n_threads, current;
extern u32 block_number;
// The clock, and when this block, the interval since its last barrier, and the one since a warp's
// last __syncwarp() began.
extern u32 now, block_began, interval_began, warp_synced[32];
extern u64 stack_low, stacks_low, stacks_high;
void run_grid(int entry, void** arguments);
u32 block_of(u32 stamp);
void wait_for_others();

// memory.cpp
constexpr u64 WINDOW_BITS = 36, FIRST_WINDOW = 1ull << 44;
extern Argument arguments[64];
extern Storage storages[64];
extern int n_arguments, n_storages;
extern u64 dynamic_shared_bytes;
extern u32 last_site;
void prepare_memory(int memory_file);
void begin_block();
void report_memory(FILE* out);

// requests.cpp
extern FILE* trace_file;
void end_of_requests(int warp);
u64 bytes_requested(int argument, bool writes);
void report_sites(FILE* out);
u64 site_address(u32 site);

// Memory that is 0 and costs nothing until it is touched; in large pages where all of it will be.
template <class T> inline T* zeroed(u64 count, bool large_pages = false) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    u64 bytes = count * sizeof(T) + 4096;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (large_pages) madvise(memory, bytes, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
}

// main.cpp: say what went wrong and end the process.
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The same, but later. A read of what nobody wrote is a race if another thread writes there: in
// shared memory before the next barrier, in an argument before the grid ends. And a race is a
// divergent barrier if one of the two threads missed one. `place` is the address.
enum Rank { UNWRITTEN_ARGUMENT = 1, UNWRITTEN_SHARED = 2, RACE = 3 };
void suspect(int rank, u64 place, const char* format, ...) __attribute__((format(printf, 3, 4)));
void judge_suspect(bool grid_ended);
// A lane got what no lane gave: wrong only if it is used.
void stray(const char* format, ...) __attribute__((format(printf, 1, 2)));
extern u64 nobodys_value;
