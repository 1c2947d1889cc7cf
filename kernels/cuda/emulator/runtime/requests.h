// The requests of warps: one instruction's addresses in the lanes that run it together.
//
// A lane runs alone until the warp's next stop, so a request is put together from its lanes: those
// that run an instruction in the same turn of the same loops run it together.
#pragma once
#include "paths.h"
#include <unordered_map>

struct Request {
    u64 key;  // in which turn of its loops
    u32 mask;
    bool consecutive, same;  // lane n is at `start` + n sizes; all lanes are at `first`
    u64 start, first;
    u64 address[32];
};

struct Requests {
    Request* all;
    u32 used, capacity;
    int first_thread;  // whose requests these were before any other lane had one
    std::unordered_map<u64, u32> by_key;  // filled, once lanes have gone different ways
};

// Where a thread was when it last ran an instruction: `times` counts calls of one function.
struct Turn {
    u64 key;
    u32 next, times;  // `next` is the request that is likely its next one
};

// One instruction on one argument; argument -1 is shared memory. Numbered from 1.
struct Site {
    int argument, size, kind;
    u32 next;         // the same instruction on another argument
    Turn* turns;  // per thread, since its warp's last stop
    Requests* by_warp;
    u64 address;
    u64 requests, bytes, distinct, sectors, wavefronts, conflicts;
};

extern Site* sites;
extern u32* site_of_address;
extern u64 code_low, code_bytes;

void prepare_requests();
u32 make_site(u64 address, int kind, int size, int argument);
u32 place_of_key(Requests& requests, u64 key);

static inline u32 find_site(u64 address, int kind, int size, int argument) {
    for (u32 known = site_of_address[address - code_low]; known; known = sites[known].next)
        if (sites[known].argument == argument && sites[known].size == size) return known;
    return make_site(address, kind, size, argument);
}

static inline void note_request(u32 number, u64 address, u64 size) {
    Site& site = sites[number];
    Turn& turn = site.turns[current];
    u64 lane = current % 32, key = paths[current].key;
    turn.times = turn.next && turn.key == key ? turn.times + 1 : 0;
    turn.key = key;
    key += turn.times;
    Requests& requests = site.by_warp[current / 32];
    u32 place = turn.next;
    if (place >= requests.used || requests.all[place].key != key)
        place = place_of_key(requests, key);
    turn.next = place + 1;
    Request& request = requests.all[place];
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
