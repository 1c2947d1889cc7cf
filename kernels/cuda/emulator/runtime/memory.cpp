// Every access of a kernel comes by here: checked, counted, and held against the others.
//
// The compiler's thread-sanitizer pass calls __tsan_read4(address) and its kin before each access.
// The hooks here are ours; the sanitizer's own library is never linked.
#include "races.h"
#include "runtime.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <vector>

extern "C" char __executable_start, _end;

struct Shared {
    std::string name;
    u64 id, start, size, item;
};

// The addresses of one instruction in the lanes of one warp.
struct Request {
    u32 mask;
    u64 address[32];
};

struct Site {
    u64 address;
    int kind, size, argument;  // argument -1: shared memory
    u32 next;                  // the same instruction on another argument
    u64 requests, bytes, distinct, sectors, wavefronts, conflicts;
    std::vector<u32> occurrence;                  // per thread, since the warp's last stop
    std::vector<std::vector<Request>> by_warp;
    std::vector<u32> used;                        // requests in use, per warp
};

static const u64 SHARED_BYTES = 16 << 20, SHARED_GAP = 64 << 10, STATIC_LIMIT = 48 << 10;
Argument arguments[64];
Storage storages[64];
int n_arguments, n_storages;
u64 dynamic_shared_bytes, shared_granule;
u32 last_site;
FILE* trace_file;

static std::vector<Site> sites;
static u32* site_of_address;
static std::vector<Shared> shared;
static u64 shared_base, shared_top, static_shared;
static u8* shared_written;
static Cell* shared_cells;
static bool block_did_atomic, races_unjudged;
static u64 code_low, code_bytes;

template <class T> static T* zeroed(u64 count) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    u64 bytes = std::max<u64>(count * sizeof(T), 4096);
    return static_cast<T*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0));
}

static u64 middle_of(int window) {
    return FIRST_WINDOW + (u64(window) << WINDOW_BITS) + (1ull << (WINDOW_BITS - 1));
}

void prepare_memory(int memory_file) {
    code_low = reinterpret_cast<u64>(&__executable_start);
    code_bytes = reinterpret_cast<u64>(&_end) - code_low;
    site_of_address = zeroed<u32>(code_bytes);
    for (int s = 0; s < n_storages; s++) {
        if (storages[s].flags_offset)
            storages[s].unwritten = static_cast<u8*>(
                mmap(nullptr, storages[s].size, PROT_READ | PROT_WRITE, MAP_SHARED, memory_file,
                     off_t(storages[s].flags_offset)));
        storages[s].flags = zeroed<u8>(storages[s].size + 16);
        storages[s].cells = zeroed<Cell>(storages[s].size / storages[s].granule + 16);
    }
    int protection = PROT_READ | PROT_WRITE;
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
    shared_cells = zeroed<Cell>(SHARED_BYTES / shared_granule);
    shared_top = shared_base;
    if (dynamic_shared_bytes) {
        shared.push_back({"", 0, shared_base, dynamic_shared_bytes, 1});
        shared_top += (dynamic_shared_bytes / SHARED_GAP + 2) * SHARED_GAP;
    }
}

void begin_block() {
    block_did_atomic = false;
    for (Shared& variable : shared)
        memset(shared_written + (variable.start - shared_base), 0, variable.size);
}

// Where a __shared__ variable lives; `id` is its place in the source.
extern "C" void* emulated_shared(u64 id, const char* name, u64 size, u64 item) {
    for (Shared& variable : shared)
        if (variable.id == id && variable.size == size)
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

u64 site_address(u32 site) { return site ? sites[site - 1].address : 0; }

static u32 find_site(u64 address, int kind, int size, int argument) {
    u32& first = site_of_address[address - code_low];
    for (u32 known = first; known; known = sites[known - 1].next)
        if (sites[known - 1].argument == argument) return known;
    Site site{};
    site.address = address;
    site.kind = kind;
    site.size = size;
    site.argument = argument;
    site.next = first;
    site.occurrence.resize(1024);
    site.by_warp.resize(32);
    site.used.resize(32);
    sites.push_back(site);
    return first = u32(sites.size());
}

static void note_request(u32 number, u64 address) {
    Site& site = sites[number - 1];
    u32 occurrence = site.occurrence[current]++;
    int warp = current / 32;
    std::vector<Request>& requests = site.by_warp[warp];
    if (occurrence >= site.used[warp]) {
        if (occurrence >= requests.size()) requests.resize(occurrence * 2 + 4);
        site.used[warp] = occurrence + 1;
        requests[occurrence].mask = 0;
    }
    requests[occurrence].mask |= 1u << (current % 32);
    requests[occurrence].address[current % 32] = address;
}

// ---------------------------------------------------------------- one access

static void suspect_race(const char* where, u64 place, int argument, i64 offset, int kind,
                         Conflict met) {
    suspect(RACE, place,
            "race where=%s argument=%d offset=%lld kind=%d did=%s otherblock=%u otherthread=%u "
            "otheraddress=%llu",
            where, argument, (long long)offset, kind, met.what, met.block, met.thread,
            (unsigned long long)site_address(met.site));
}

// What names a granule of a storage, whichever argument it is reached by.
static u64 place_of(int storage, u64 cell) { return u64(storage) << 40 | cell; }

// `value_used` is false for an exchange: what it replaces may have been anything.
static void meet_unwritten(int index, u64 place, u64 size, int kind, bool value_used) {
    const Argument& argument = arguments[index];
    Storage& storage = storages[argument.storage];
    for (u64 byte = place; byte < place + size; byte++) {
        if (storage.unwritten[byte] && kind != STORE && value_used)
            suspect(UNWRITTEN_ARGUMENT, place_of(argument.storage, byte / storage.granule),
                    "unwritten argument=%d offset=%lld kind=%d", index,
                    (long long)(byte - argument.start), kind);
        if (kind != LOAD) storage.unwritten[byte] = 0;
    }
}

static void touch_argument(int index, u64 address, u64 size, int kind, u32 site, bool value_used) {
    Argument& argument = arguments[index];
    i64 offset = i64(address - argument.base);
    if (offset < 0 || offset + i64(size) > i64(argument.span))
        fault("bounds argument=%d offset=%lld kind=%d size=%d", index, (long long)offset, kind,
              int(size));
    if (kind != STORE) argument.read_requested += size;
    if (kind != LOAD) argument.write_requested += size;
    Storage& storage = storages[argument.storage];
    u64 place = argument.start + offset;
    u8 flag = kind == LOAD ? 1 : kind == STORE ? 2 : 3;
    for (u64 byte = 0; byte < size; byte++) storage.flags[place + byte] |= flag;
    block_did_atomic |= kind == ATOMIC;
    if (storage.unwritten) meet_unwritten(index, place, size, kind, value_used);
    u64 last = (place + size - 1) / storage.granule;
    for (u64 cell = place / storage.granule; cell <= last; cell++) {
        Conflict met = meet(storage.cells[cell], kind, site, true);
        if (!*met.what) continue;
        if (met.block != block_number && block_did_atomic)
            races_unjudged = true;
        else
            suspect_race("global", place_of(argument.storage, cell), index, offset, kind, met);
    }
}

static void touch_shared(u64 address, u64 size, int kind, u32 site) {
    const Shared* variable = nullptr;
    for (const Shared& one : shared)
        if (!variable || one.start <= address) variable = &one;
    if (!variable) fault("pointer address=%llu kind=%d", (unsigned long long)address, kind);
    i64 offset = i64(address - variable->start);
    const char* name = variable->name.c_str();
    if (offset < 0 || offset + size > variable->size)
        fault("shared_bounds name=%s offset=%lld bytes=%llu item=%llu kind=%d", name,
              (long long)offset, (unsigned long long)variable->size,
              (unsigned long long)variable->item, kind);
    u8* written = shared_written + (address - shared_base);
    for (u64 byte = 0; byte < size; byte++) {
        if (kind != STORE && !written[byte])
            suspect(UNWRITTEN_SHARED, address, "uninitialised name=%s offset=%lld item=%llu kind=%d", name,
                    (long long)offset, (unsigned long long)variable->item, kind);
        written[byte] |= kind != LOAD;
    }
    u64 last = (address + size - 1 - shared_base) / shared_granule;
    for (u64 cell = (address - shared_base) / shared_granule; cell <= last; cell++) {
        Conflict met = meet(shared_cells[cell], kind, site, false);
        if (*met.what) {
            std::string where = std::string("shared name=") + name + " item=" +
                                std::to_string(variable->item);
            suspect_race(where.c_str(), address, -1, offset, kind, met);
        }
    }
}

static inline void access(void* pointer, u64 size, int kind, bool must_align, void* from,
                          bool value_used = true) {
    u64 address = reinterpret_cast<u64>(pointer);
    u64 window = (address - FIRST_WINDOW) >> WINDOW_BITS;
    if (window > u64(n_arguments)) {
        if (address - stack_low < (128 << 10) || address - code_low < code_bytes) return;
        last_site = find_site(reinterpret_cast<u64>(from), kind, int(size), -1);
        fault("pointer address=%llu kind=%d", (unsigned long long)address, kind);
    }
    bool is_shared = window == u64(n_arguments);
    u32 site = find_site(reinterpret_cast<u64>(from), kind, int(size),
                         is_shared ? -1 : int(window));
    last_site = site;
    if (is_shared)
        touch_shared(address, size, kind, site);
    else
        touch_argument(int(window), address, size, kind, site, value_used);
    if (must_align && address % size)
        fault("misaligned argument=%d offset=%lld size=%d kind=%d", is_shared ? -1 : int(window),
              is_shared ? 0ll : (long long)(address - arguments[window].base), int(size), kind);
    note_request(site, address);
}

#define HERE __builtin_return_address(0)
#define HOOKS(SIZE)                                                                              \
    void __tsan_read##SIZE(void* p) { access(p, SIZE, LOAD, true, HERE); }                       \
    void __tsan_write##SIZE(void* p) { access(p, SIZE, STORE, true, HERE); }                     \
    void __tsan_unaligned_read##SIZE(void* p) { access(p, SIZE, LOAD, false, HERE); }            \
    void __tsan_unaligned_write##SIZE(void* p) { access(p, SIZE, STORE, false, HERE); }
extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* p, u64 size) { access(p, size, LOAD, false, HERE); }
void __tsan_write_range(void* p, u64 size) { access(p, size, STORE, false, HERE); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void emulated_atomic(void* p, u64 size) { access(p, size, ATOMIC, true, HERE); }
void emulated_atomic_store(void* p, u64 size) { access(p, size, ATOMIC, true, HERE, false); }
}

// ---------------------------------------------------------------- requests of whole warps

// Sort and keep each value once; returns how many are left.
static int distinct(u64* values, int count) {
    if (!std::is_sorted(values, values + count)) std::sort(values, values + count);
    return int(std::unique(values, values + count) - values);
}

static int units_touched(const u64* addresses, int lanes, u64 size, u64 unit, u64* units) {
    int count = 0;
    for (int i = 0; i < lanes; i++)
        for (u64 u = addresses[i] / unit; u <= (addresses[i] + size - 1) / unit; u++)
            if (count < 1024 && !(count && units[count - 1] == u)) units[count++] = u;
    return distinct(units, count);
}

// Shared memory has 32 banks of 4 bytes; lanes of 8 bytes go by halves of a warp, of 16 by quarters.
static void count_banks(Site& site, const Request& request) {
    int group = site.size <= 4 ? 32 : site.size == 8 ? 16 : 8;
    for (int first = 0; first < 32; first += group) {
        u64 addresses[32], words[1024];
        int lanes = 0, per_bank[32] = {};
        for (int lane = first; lane < first + group; lane++)
            if (request.mask >> lane & 1) addresses[lanes++] = request.address[lane];
        if (!lanes) continue;
        int count = units_touched(addresses, lanes, site.size, 4, words);
        for (int i = 0; i < count; i++) per_bank[words[i] % 32]++;
        int wavefronts = *std::max_element(per_bank, per_bank + 32);
        site.wavefronts += wavefronts;
        site.conflicts += wavefronts - 1;
    }
}

static void end_of_request(u32 number, const Request& request, int warp) {
    Site& site = sites[number];
    u64 addresses[32], units[1024];
    int lanes = 0;
    for (int lane = 0; lane < 32; lane++)
        if (request.mask >> lane & 1) addresses[lanes++] = request.address[lane];
    site.requests++;
    site.bytes += lanes * site.size;
    if (site.argument < 0) {
        count_banks(site, request);
        return;
    }
    if (trace_file) {
        u64 base = arguments[site.argument].base;
        i64 head[] = {block_number, warp, i64(number + 1), site.argument, site.kind, site.size,
                      request.mask};
        fwrite(head, sizeof head, 1, trace_file);
        for (int i = 0; i < lanes; i++) {
            i64 offset = i64(addresses[i] - base);
            fwrite(&offset, sizeof offset, 1, trace_file);
        }
    }
    site.sectors += units_touched(addresses, lanes, site.size, 32, units);
    site.distinct += distinct(addresses, lanes) * site.size;
}

// All lanes of a warp have stopped at one place: its requests are whole.
void end_of_requests(int warp) {
    for (u32 number = 0; number < sites.size(); number++) {
        Site& site = sites[number];
        if (!site.used[warp]) continue;
        for (u32 i = 0; i < site.used[warp]; i++)
            if (site.by_warp[warp][i].mask) end_of_request(number, site.by_warp[warp][i], warp);
        site.used[warp] = 0;
        std::fill_n(site.occurrence.begin() + warp * 32, 32, 0u);
    }
}

void report_memory(FILE* out) {
    for (int a = 0; a < n_arguments; a++) {
        Argument& argument = arguments[a];
        if (!argument.read_requested && !argument.write_requested) continue;
        u8* flags = storages[argument.storage].flags;
        u64 read = 0, written = 0;
        for (u64 byte = argument.start; byte < argument.start + argument.span; byte++) {
            if (!(flags[byte] & 4)) {
                read += flags[byte] & 1;
                written += flags[byte] >> 1 & 1;
            }
            flags[byte] |= 4;
        }
        fprintf(out, "total argument=%d read=%llu asked=%llu written=%llu told=%llu\n", a,
                (unsigned long long)read, (unsigned long long)argument.read_requested,
                (unsigned long long)written, (unsigned long long)argument.write_requested);
    }
    u32 number = 0;
    for (const Site& site : sites)
        fprintf(out,
                "site number=%u address=%llu kind=%d size=%d argument=%d requests=%llu bytes=%llu "
                "distinct=%llu sectors=%llu wavefronts=%llu conflicts=%llu\n",
                ++number, (unsigned long long)site.address, site.kind, site.size, site.argument,
                (unsigned long long)site.requests, (unsigned long long)site.bytes,
                (unsigned long long)site.distinct, (unsigned long long)site.sectors,
                (unsigned long long)site.wavefronts, (unsigned long long)site.conflicts);
    if (races_unjudged) fprintf(out, "unjudged atomics=1\n");
}
