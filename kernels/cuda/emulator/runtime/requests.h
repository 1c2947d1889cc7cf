// The requests of warps: one instruction's addresses in the lanes that run it together.
//
// A lane runs alone until the warp's next stop, so a request is put together from its lanes: the
// n-th time that an instruction is run since the last stop belongs to the n-th request.
#pragma once
#include "runtime.h"

struct Request {
    u32 mask;
    bool consecutive, same;  // lane n is at `start` + n sizes; all lanes are at `first`
    u64 start, first;
    u64 address[32];
};

struct Requests {
    Request* all;
    u32 used, capacity;
};

// One instruction on one argument; argument -1 is shared memory. Numbered from 1.
struct Site {
    int argument, size, kind;
    u32 next;         // the same instruction on another argument
    u32* occurrence;  // per thread, since its warp's last stop
    Requests* by_warp;
    u64 address;
    u64 requests, bytes, distinct, sectors, wavefronts, conflicts;
};

extern Site* sites;
extern u32* site_of_address;
extern u64 code_low, code_bytes;

void prepare_requests();
u32 make_site(u64 address, int kind, int size, int argument);
void more_requests(Requests& requests);

static inline u32 find_site(u64 address, int kind, int size, int argument) {
    for (u32 known = site_of_address[address - code_low]; known; known = sites[known].next)
        if (sites[known].argument == argument && sites[known].size == size) return known;
    return make_site(address, kind, size, argument);
}

static inline void note_request(u32 number, u64 address, u64 size) {
    Site& site = sites[number];
    u32 occurrence = site.occurrence[current]++;
    u64 lane = current % 32;
    Requests& requests = site.by_warp[current / 32];
    if (occurrence >= requests.used) {
        if (occurrence >= requests.capacity) more_requests(requests);
        requests.used = occurrence + 1;
        requests.all[occurrence].mask = 0;
    }
    Request& request = requests.all[occurrence];
    u64 start = address - lane * size;
    if (!request.mask) {
        request.start = start;
        request.first = address;
        request.consecutive = request.same = true;
    } else {
        request.consecutive &= start == request.start;
        request.same &= address == request.first;
    }
    request.mask |= 1u << lane;
    request.address[lane] = address;
}
