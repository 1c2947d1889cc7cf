// Every access of a kernel comes by here: checked, counted, and held against the others.
//
// The compiler's thread-sanitizer pass calls __tsan_read4(address) and its kin before each access.
// The hooks here are ours; the sanitizer's own library is never linked.
#include "judge.h"
#include "requests.h"
#include "runtime.h"
#include <algorithm>
#include <cstring>
#include <vector>

struct Shared {
    const char* name;
    const void* id;
    u64 start, size, item;
};

static const u64 SHARED_BYTES = 16 << 20, SHARED_GAP = 64 << 10, STATIC_LIMIT = 48 << 10;
Argument arguments[64];
Storage storages[64];
int n_arguments, n_storages;
u64 dynamic_shared_bytes;
u32 last_site;

static std::vector<Shared> shared;
static u64 shared_base, shared_top, static_shared;
static u8* shared_written;
static Cells shared_cells;

static u64 middle_of(int window) {
    return FIRST_WINDOW + (u64(window) << WINDOW_BITS) + (1ull << (WINDOW_BITS - 1));
}

static void make_cells(Cells& cells, u64 bytes, bool large_pages) {
    cells.bytes = bytes;
    cells.all = zeroed<Cell>((bytes >> cells.shift) + 16, large_pages);
}

void prepare_memory(int memory_file) {
    prepare_requests();
    int protection = PROT_READ | PROT_WRITE;
    for (int s = 0; s < n_storages; s++) {
        Storage& storage = storages[s];
        storage.flags = zeroed<u8>(storage.size + 16, true);
        make_cells(storage.cells, storage.size, true);
        if (storage.flags_offset)
            storage.unwritten =
                static_cast<u8*>(mmap(nullptr, storage.size, protection, MAP_SHARED, memory_file,
                                      off_t(storage.flags_offset)));
    }
    for (int a = 0; a < n_arguments; a++) {
        Storage& storage = storages[arguments[a].storage];
        void* window = reinterpret_cast<void*>(middle_of(a));
        mmap(window, std::max<u64>(storage.size, 1), protection, MAP_SHARED | MAP_FIXED,
             memory_file, off_t(storage.offset));
        arguments[a].base = middle_of(a) + arguments[a].start;
    }
    shared_base = middle_of(n_arguments);
    mmap(reinterpret_cast<void*>(shared_base), SHARED_BYTES, protection,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    shared_written = zeroed<u8>(SHARED_BYTES);
    shared_cells.shift = 2;
    make_cells(shared_cells, SHARED_BYTES, false);
    shared_top = shared_base;
    if (dynamic_shared_bytes) {
        shared.push_back({"", nullptr, shared_base, dynamic_shared_bytes, 1});
        shared_top += (dynamic_shared_bytes / SHARED_GAP + 2) * SHARED_GAP;
    }
}

void begin_block() {
    block_did_atomic = false;
    for (Shared& variable : shared)
        memset(shared_written + (variable.start - shared_base), 0, variable.size);
}

// Where a __shared__ variable lives; `id` tells it from others, and those of a template's instances.
extern "C" void* emulated_shared(const void* id, const char* name, u64 size, u64 item) {
    for (Shared& variable : shared)
        if (variable.id == id)
            return reinterpret_cast<void*>(variable.start);
    static_shared += size;
    if (static_shared > STATIC_LIMIT)
        fault("static_shared bytes=%llu", (unsigned long long)static_shared);
    Shared made{name, id, shared_top, size, item};
    shared_top += (size / SHARED_GAP + 2) * SHARED_GAP;
    shared.push_back(made);
    return reinterpret_cast<void*>(made.start);
}

extern "C" void* emulated_dynamic_shared(const char* name, u64 item) {
    if (!dynamic_shared_bytes) fault("no_dynamic name=%s", name);
    shared[0].name = name;
    shared[0].item = item;
    return reinterpret_cast<void*>(shared_base);
}

// ---------------------------------------------------------------- one access

static const u64 ONES = 0x0101010101010101;  // 1 in each byte

// Flags of `size` neighbouring bytes, SIZE of them where that is known when this is compiled.
template <int SIZE> struct Width;
template <> struct Width<2> { using type = u16; };
template <> struct Width<4> { using type = u32; };

template <int SIZE> static inline void raise_flags(u8* flags, u64 size, u8 flag) {
    if constexpr (SIZE) {
        typename Width<SIZE>::type value, wanted;
        memset(&wanted, flag, SIZE);
        memcpy(&value, flags, SIZE);
        value |= wanted;
        memcpy(flags, &value, SIZE);
    } else {
        for (u64 byte = 0; byte < size; byte++) flags[byte] |= flag;
    }
}

// Whether each of `size` flags is 1.
template <int SIZE> static inline bool all_raised(const u8* flags, u64 size) {
    if constexpr (SIZE) {
        typename Width<SIZE>::type value;
        memcpy(&value, flags, SIZE);
        return value == typename Width<SIZE>::type(ONES);
    } else {
        return !memchr(flags, 0, size);
    }
}

// What names a cell of a storage, whichever argument it is reached by.
static u64 place_of(int storage, u64 cell) { return u64(storage) << 40 | cell; }

// An access to a part of a cell: from now on the cells are as small as it.
[[gnu::noinline]] static void split_cells(Cells& cells, u64 place, u64 size, u64 in_use) {
    Cells finer{nullptr, 0, u32(__builtin_ctzll(place | size))};
    make_cells(finer, cells.bytes, false);
    for (u64 part = 0; part << finer.shift < in_use; part++) {
        const Cell& whole = cells.all[part << finer.shift >> cells.shift];
        if (whole.write_stamp || whole.read_stamp) finer.all[part] = whole;
    }
    cells = finer;
}

static inline bool is_part(const Cells& cells, u64 place, u64 size) {
    return (place | size) & ((1u << cells.shift) - 1);
}

[[gnu::noinline]] static void meet_unwritten(int index, u64 place, u64 size, int kind, Use use) {
    const Argument& argument = arguments[index];
    Storage& storage = storages[argument.storage];
    for (u64 byte = place; byte < place + size; byte++) {
        if (storage.unwritten[byte] && kind != STORE && use != EXCHANGE)
            suspect(UNWRITTEN_ARGUMENT, place_of(argument.storage, byte >> storage.cells.shift),
                    "unwritten argument=%d offset=%lld kind=%d", index,
                    (long long)(byte - argument.start), kind);
        if (kind != LOAD) storage.unwritten[byte] = 0;
    }
}

[[gnu::cold]] static void argument_met(int index, u64 cell, u64 address, u64 size, int kind, Use use,
                                       Conflict met) {
    const Argument& argument = arguments[index];
    judge({index, "", argument.item, place_of(argument.storage, cell), address, size,
           i64(address - argument.base), kind, current, last_site, use, met});
}

[[noreturn, gnu::cold]] static void bounds_fault(int index, i64 offset, u64 size, int kind) {
    fault("bounds argument=%d offset=%lld size=%llu kind=%d", index, (long long)offset,
          (unsigned long long)size, kind);
}

template <int SIZE, int KIND>
static inline void touch_argument(int index, u64 address, u64 size, u32 site, Use use) {
    Argument& argument = arguments[index];
    i64 offset = i64(address - argument.base);
    if (offset < 0 || offset + i64(size) > i64(argument.span))
        bounds_fault(index, offset, size, KIND);
    Storage& storage = storages[argument.storage];
    u64 place = argument.start + offset;
    if (KIND == ATOMIC) block_did_atomic = true;
    raise_flags<SIZE>(storage.flags + place, size, KIND == LOAD ? 1 : KIND == STORE ? 2 : 3);
    if (storage.unwritten) meet_unwritten(index, place, size, KIND, use);
    Cells& cells = storage.cells;
    if (is_part(cells, place, size)) split_cells(cells, place, size, cells.bytes);
    u64 last = (place + size - 1) >> cells.shift;
    for (u64 cell = place >> cells.shift; cell <= last; cell++) {
        if (use == COMPARE) forget_own_read(cells.all[cell]);
        Conflict met = meet<KIND, true>(cells.all[cell], site);
        if (met.what) argument_met(index, cell, address, size, KIND, use, met);
    }
}

[[gnu::cold]] static void shared_met(const Shared& variable, u64 address, u64 size, int kind, Use use,
                                     Conflict met) {
    judge({-1, variable.name, variable.item, address, address, size,
           i64(address - variable.start), kind, current, last_site, use, met});
}

[[gnu::cold]] static void shared_unwritten(const Shared& variable, u64 address, int kind) {
    suspect(UNWRITTEN_SHARED, address, "uninitialised name=%s offset=%lld item=%llu kind=%d",
            variable.name, (long long)(address - variable.start),
            (unsigned long long)variable.item, kind);
}

static const Shared& shared_at(u64 address, u64 size, int kind) {
    static u32 latest;
    if (latest < shared.size() && address - shared[latest].start < shared[latest].size &&
        address - shared[latest].start + size <= shared[latest].size)
        return shared[latest];
    const Shared* variable = nullptr;
    for (const Shared& one : shared)
        if (!variable || one.start <= address) variable = &one;
    if (!variable) fault("pointer address=%llu kind=%d", (unsigned long long)address, kind);
    i64 offset = i64(address - variable->start);
    if (offset < 0 || offset + size > variable->size)
        fault("shared_bounds name=%s offset=%lld bytes=%llu item=%llu kind=%d",
              variable->name, (long long)offset, (unsigned long long)variable->size,
              (unsigned long long)variable->item, kind);
    latest = u32(variable - shared.data());
    return *variable;
}

template <int SIZE, int KIND>
static inline void touch_shared(u64 address, u64 size, u32 site, Use use) {
    const Shared& variable = shared_at(address, size, KIND);
    u8* written = shared_written + (address - shared_base);
    if (KIND != STORE && use != EXCHANGE && !all_raised<SIZE>(written, size))
        shared_unwritten(variable, address, KIND);
    if (KIND != LOAD) raise_flags<SIZE>(written, size, 1);
    u64 place = address - shared_base;
    if (is_part(shared_cells, place, size))
        split_cells(shared_cells, place, size, shared_top - shared_base);
    u64 last = (place + size - 1) >> shared_cells.shift;
    for (u64 cell = place >> shared_cells.shift; cell <= last; cell++) {
        if (use == COMPARE) forget_own_read(shared_cells.all[cell]);
        Conflict met = meet<KIND, false>(shared_cells.all[cell], site);
        if (met.what) shared_met(variable, address, size, KIND, use, met);
    }
}

[[noreturn, gnu::cold]] static void pointer_fault(u64 address, u64 from, int size, int kind) {
    last_site = find_site(from, kind, size, -1);
    fault("pointer address=%llu kind=%d", (unsigned long long)address, kind);
}

[[noreturn, gnu::cold]] static void misaligned_fault(int index, u64 address, int size, int kind) {
    u64 offset = index < 0 ? 0 : address - arguments[index].base;
    fault("misaligned argument=%d offset=%lld size=%d kind=%d", index, (long long)offset, size,
          kind);
}

// SIZE is 0 where only `bytes` knows it.
template <int SIZE, int KIND>
static inline void access(void* pointer, u64 bytes, void* from, bool must_align = true,
                          Use use = PLAIN) {
    u64 address = reinterpret_cast<u64>(pointer), size = SIZE ? SIZE : bytes;
    if (KIND != LOAD && store_held) judge_held_store();
    latest_address = address;
    u64 window = (address - FIRST_WINDOW) >> WINDOW_BITS;
    if (window > u64(n_arguments)) {
        bool of_source = address - code_low < code_bytes;
        if (KIND == ATOMIC && of_source) block_did_atomic = true;  // on a __device__ variable
        if (of_source || address - stack_low < STACK_BYTES) return;
        pointer_fault(address, reinterpret_cast<u64>(from), int(size), KIND);
    }
    bool is_shared = window == u64(n_arguments);
    u32 site = find_site(reinterpret_cast<u64>(from), KIND, int(size),
                         is_shared ? -1 : int(window));
    last_site = site;
    if (is_shared)
        touch_shared<SIZE, KIND>(address, size, site, use);
    else
        touch_argument<SIZE, KIND>(int(window), address, size, site, use);
    if (must_align && address & (size - 1))
        misaligned_fault(is_shared ? -1 : int(window), address, int(size), KIND);
    note_request(site, address, size);
}

// For sizes that are rarer than 2 and 4, so that the runtime compiles sooner.
template <int KIND>
[[gnu::noinline]] static void any_access(void* p, u64 bytes, void* from, bool must_align = true,
                                         Use use = PLAIN) {
    if (bytes) access<0, KIND>(p, bytes, from, must_align, use);
}

[[gnu::noinline]] static void any_atomic(void* p, u64 size, void* from, Use use = PLAIN) {
    u64 address = reinterpret_cast<u64>(p);
    let_others_run(address);
    if (use == COMPARE) compare_and_swap(address);
    if (use == EXCHANGE) acquire();
    any_access<ATOMIC>(p, size, from, true, use);
    if (use == EXCHANGE) release();
}

// As many bytes as a call asks for, by no more at once than a thread can.
template <int KIND> static void many_bytes(void* p, u64 size, void* from) {
    for (u64 done = 0; done < size; done += 16)
        any_access<KIND>(static_cast<u8*>(p) + done, std::min<u64>(16, size - done), from, false);
}

#define HERE __builtin_return_address(0)
#define UNALIGNED_HOOKS(SIZE)                                                                    \
    void __tsan_unaligned_read##SIZE(void* p) { any_access<LOAD>(p, SIZE, HERE, false); }        \
    void __tsan_unaligned_write##SIZE(void* p) { any_access<STORE>(p, SIZE, HERE, false); }         \
    void __tsan_volatile_read##SIZE(void* p) {                                                   \
        let_others_run(reinterpret_cast<u64>(p));                                                \
        any_access<LOAD>(p, SIZE, HERE, true, VOLATILE);                                         \
    }                                                                                            \
    void __tsan_volatile_write##SIZE(void* p) {                                                  \
        any_access<STORE>(p, SIZE, HERE, true, VOLATILE);                                        \
    }
#define FREQUENT_HOOKS(SIZE)                                                                     \
    void __tsan_read##SIZE(void* p) { access<SIZE, LOAD>(p, SIZE, HERE); }                       \
    void __tsan_write##SIZE(void* p) { access<SIZE, STORE>(p, SIZE, HERE); }                     \
    UNALIGNED_HOOKS(SIZE)
#define RARE_HOOKS(SIZE)                                                                         \
    void __tsan_read##SIZE(void* p) { any_access<LOAD>(p, SIZE, HERE); }                         \
    void __tsan_write##SIZE(void* p) { any_access<STORE>(p, SIZE, HERE); }                       \
    UNALIGNED_HOOKS(SIZE)
extern "C" {
RARE_HOOKS(1)
FREQUENT_HOOKS(2)
FREQUENT_HOOKS(4)
RARE_HOOKS(8)
RARE_HOOKS(16)
void __tsan_read_range(void* p, u64 size) { any_access<LOAD>(p, size, HERE, false); }
void __tsan_write_range(void* p, u64 size) { any_access<STORE>(p, size, HERE, false); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void emulated_atomic(void* p, u64 size) { any_atomic(p, size, HERE); }
void emulated_atomic_exchange(void* p, u64 size) { any_atomic(p, size, HERE, EXCHANGE); }
void emulated_atomic_compare(void* p, u64 size) { any_atomic(p, size, HERE, COMPARE); }
void emulated_fence() { release(); }
void emulated_read(const void* p, u64 size) { many_bytes<LOAD>(const_cast<void*>(p), size, HERE); }
void emulated_write(void* p, u64 size) { many_bytes<STORE>(p, size, HERE); }
void* emulated_move(void* to, const void* from, u64 size) { return memmove(to, from, size); }
void* emulated_fill(void* to, int value, u64 size) { return memset(to, value, size); }
}

// ---------------------------------------------------------------- the report

void report_memory(FILE* out) {
    for (int a = 0; a < n_arguments; a++) {
        u64 read_requested = bytes_requested(a, false), write_requested = bytes_requested(a, true);
        if (!read_requested && !write_requested) continue;
        u8* flags = storages[arguments[a].storage].flags + arguments[a].start;
        u64 read = 0, written = 0, step;
        for (u64 byte = 0; byte < arguments[a].span; byte += step) {
            u64 eight = 0;
            step = std::min<u64>(8, arguments[a].span - byte);
            memcpy(&eight, flags + byte, step);
            u64 untold = ~(eight >> 2) & ONES;
            read += (eight & untold) * ONES >> 56;  // the sum of the bytes
            written += (eight >> 1 & untold) * ONES >> 56;
            eight |= 4 * ONES;
            memcpy(flags + byte, &eight, step);
        }
        fprintf(out, "total argument=%d read=%llu asked=%llu written=%llu told=%llu\n", a,
                (unsigned long long)read, (unsigned long long)read_requested,
                (unsigned long long)written, (unsigned long long)write_requested);
    }
    report_sites(out);
    if (races_unjudged) fprintf(out, "unjudged atomics=1\n");
}
