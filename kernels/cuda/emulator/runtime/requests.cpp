// What a warp's requests cost: sectors of global memory, passes over the banks of shared memory.
#include "requests.h"
#include <algorithm>
#include <cstdlib>

static const u32 MAX_SITES = 1 << 21;  // far more than g++ compiles in its time, and not yet memory
Site* sites;
u32* site_of_address;
u64 code_low, code_bytes;
FILE* trace_file;
static u32 n_sites;

extern "C" char __executable_start, _end;

void prepare_requests() {
    code_low = reinterpret_cast<u64>(&__executable_start);
    code_bytes = reinterpret_cast<u64>(&_end) - code_low;
    site_of_address = zeroed<u32>(code_bytes);
    sites = zeroed<Site>(MAX_SITES);
}

u64 site_address(u32 site) { return site ? sites[site].address : 0; }

u32 make_site(u64 address, int kind, int size, int argument) {
    u32& first = site_of_address[address - code_low];
    Site& site = sites[++n_sites];
    site.address = address;
    site.kind = kind;
    site.size = size;
    site.argument = argument;
    site.next = first;
    site.turns = static_cast<Turn*>(calloc(1024, sizeof(Turn)));
    site.by_warp = new Requests[32]{};
    return first = n_sites;
}

static u32 new_request(Requests& requests, u64 key) {
    if (requests.used == requests.capacity) {
        requests.capacity = requests.capacity * 2 + 4;
        void* larger = realloc(requests.all, requests.capacity * sizeof(Request));
        // Lanes that go on without a barrier have all their requests kept until the others come.
        if (!larger) fault("endless");
        requests.all = static_cast<Request*>(larger);
    }
    requests.all[requests.used].key = key;
    requests.all[requests.used].mask = 0;
    return requests.used++;
}

// The request of a key, wherever it is; a new one if there is none.
u32 place_of_key(Requests& requests, u64 key) {
    if (!requests.used) requests.first_thread = current;
    bool alone = requests.first_thread == current && requests.by_key.empty();
    if (alone) return new_request(requests, key);  // unless it waits, a lane comes by no key twice
    if (requests.by_key.empty())
        for (u32 i = 0; i < requests.used; i++) requests.by_key[requests.all[i].key] = i;
    auto [found, is_new] = requests.by_key.try_emplace(key, requests.used);
    return is_new ? new_request(requests, key) : found->second;
}

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

// The lanes that take part are neighbours, one element each: their bytes have no gap.
static bool gapless(const Request& request) {
    u32 lanes = request.mask >> __builtin_ctz(request.mask);
    return request.consecutive && !(lanes & (lanes + 1));
}

// Shared memory has 32 banks of 4 bytes; lanes of 8 bytes go by halves of a warp, of 16 by quarters.
static void count_banks(Site& site, const Request& request) {
    int group = site.size <= 4 ? 32 : site.size == 8 ? 16 : 8;
    bool one_pass = request.same || (gapless(request) && request.start % 4 == 0);
    for (int first = 0; first < 32; first += group) {
        u32 taking_part = request.mask >> first & u32((1ull << group) - 1);
        if (!taking_part) continue;
        int wavefronts = 1;
        if (!one_pass || site.size > 16) {
            u64 addresses[32], words[1024];
            int lanes = 0, per_bank[32] = {};
            for (int lane = 0; lane < group; lane++)
                if (taking_part >> lane & 1) addresses[lanes++] = request.address[first + lane];
            int count = units_touched(addresses, lanes, site.size, 4, words);
            for (int i = 0; i < count; i++) per_bank[words[i] % 32]++;
            wavefronts = *std::max_element(per_bank, per_bank + 32);
        }
        site.wavefronts += wavefronts;
        site.conflicts += wavefronts - 1;
    }
}

static void write_trace(u32 number, const Request& request, int warp) {
    const Site& site = sites[number];
    u64 base = arguments[site.argument].base;
    i64 head[] = {block_number, warp, number, site.argument, site.kind, site.size, request.mask};
    fwrite(head, sizeof head, 1, trace_file);
    for (int lane = 0; lane < 32; lane++) {
        i64 offset = i64(request.address[lane] - base);
        if (request.mask >> lane & 1) fwrite(&offset, sizeof offset, 1, trace_file);
    }
}

static void count_request(u32 number, const Request& request, int warp) {
    Site& site = sites[number];
    u64 size = site.size, lanes = __builtin_popcount(request.mask);
    site.requests++;
    site.bytes += lanes * size;
    if (site.argument < 0) {
        count_banks(site, request);
        return;
    }
    if (trace_file) write_trace(number, request, warp);
    if (request.same || gapless(request)) {
        u64 first = request.same ? request.first
                                 : request.start + __builtin_ctz(request.mask) * size;
        u64 bytes = request.same ? size : lanes * size;
        site.sectors += (first + bytes - 1) / 32 - first / 32 + 1;
        site.distinct += bytes;
        return;
    }
    u64 addresses[32], units[1024];
    int count = 0;
    for (int lane = 0; lane < 32; lane++)
        if (request.mask >> lane & 1) addresses[count++] = request.address[lane];
    site.sectors += units_touched(addresses, count, size, 32, units);
    site.distinct += distinct(addresses, count) * size;
}

// All lanes of a warp have stopped at one place: its requests are whole.
void end_of_requests(int warp) {
    for (u32 number = 1; number <= n_sites; number++) {
        Site& site = sites[number];
        Requests& requests = site.by_warp[warp];
        if (!requests.used) continue;
        for (u32 i = 0; i < requests.used; i++)
            if (requests.all[i].mask) count_request(number, requests.all[i], warp);
        requests.used = 0;
        requests.by_key.clear();
        std::fill_n(site.turns + warp * 32, 32, Turn{});
    }
}

// What lanes asked for of one argument, reads (writes = false) or writes; an atomic is both.
u64 bytes_requested(int argument, bool writes) {
    u64 bytes = 0;
    for (u32 number = 1; number <= n_sites; number++) {
        bool counts = sites[number].kind != (writes ? LOAD : STORE);
        if (counts && sites[number].argument == argument) bytes += sites[number].bytes;
    }
    return bytes;
}

void report_sites(FILE* out) {
    for (u32 number = 1; number <= n_sites; number++) {
        const Site& site = sites[number];
        fprintf(out,
                "site number=%u address=%llu kind=%d size=%d argument=%d requests=%llu bytes=%llu "
                "distinct=%llu sectors=%llu wavefronts=%llu conflicts=%llu\n",
                number, (unsigned long long)site.address, site.kind, site.size, site.argument,
                (unsigned long long)site.requests, (unsigned long long)site.bytes,
                (unsigned long long)site.distinct, (unsigned long long)site.sectors,
                (unsigned long long)site.wavefronts, (unsigned long long)site.conflicts);
    }
}
