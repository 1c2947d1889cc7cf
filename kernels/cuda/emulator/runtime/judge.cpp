// See judge.h.
#include "judge.h"
#include "paths.h"
#include "requests.h"
#include <cstring>

static const int OFTEN = 64;  // a loop that asked one address so often waits for somebody

bool store_held, block_did_atomic, races_unjudged;
u64 latest_address;

static Meeting held;
static u8 before[16];
static Meeting doubted[1024];
static bool in_doubt[1024];
static u32 released_at[1024], acquired_at[1024], waited_at[1024];
static int asked_again;

static void tell(const Meeting& one) {
    char where[400];
    if (one.argument < 0)
        snprintf(where, sizeof where, "shared name=%s item=%llu", one.name,
                 (unsigned long long)one.item);
    else
        snprintf(where, sizeof where, "global");
    int running = current;
    u32 site = last_site;
    current = one.thread;
    last_site = one.site;
    suspect(RACE, one.place,
            "race where=%s argument=%d offset=%lld kind=%d did=%s otherblock=%u otherthread=%u "
            "otheraddress=%llu",
            where, one.argument, (long long)one.offset, one.kind, one.met.what,
            block_of(one.met.stamp), one.met.thread, (unsigned long long)site_address(one.met.site));
    current = running;
    last_site = site;
}

static bool is_now(const u32* when, u32 thread) { return when[thread] == interval_began; }

// One of the two waited for the other, or took over what the other handed on.
static bool may_be_ordered(const Meeting& one) {
    u32 me = u32(current), other = one.met.thread;
    if (is_now(waited_at, me) || is_now(waited_at, other)) return true;
    if (!is_now(released_at, other)) return false;
    if (one.use == VOLATILE && one.kind == LOAD) acquire();
    return is_now(acquired_at, me);
}

void judge(const Meeting& one) {
    bool same_block = one.met.stamp >= block_began, stored = one.met.what[0] == 's';
    if (same_block ? may_be_ordered(one) : block_did_atomic) {
        races_unjudged = true;
        return;
    }
    bool same_warp = same_block && one.met.thread / 32 == u32(current) / 32;
    if (one.kind == STORE && stored && same_warp && !one.met.by_atomic &&
        one.size <= sizeof before && !store_held) {
        held = one;
        memcpy(before, reinterpret_cast<void*>(one.address), one.size);
        store_held = true;
    } else if (one.kind == LOAD && stored && one.met.by_atomic && !in_doubt[current]) {
        doubted[current] = one;
        in_doubt[current] = true;
    } else {
        tell(one);
    }
}

void judge_held_store() {
    store_held = false;
    if (memcmp(before, reinterpret_cast<void*>(held.address), held.size)) tell(held);
}

void judge_doubted_read() {
    if (!in_doubt[current]) return;
    in_doubt[current] = false;
    tell(doubted[current]);
}

void compare_and_swap(u64 address) {
    acquire();
    if (in_doubt[current] && doubted[current].address == address) in_doubt[current] = false;
}

void release() { released_at[current] = interval_began; }

void acquire() { acquired_at[current] = interval_began; }

void let_others_run(u64 address) {
    asked_again = address == latest_address ? asked_again + 1 : 0;
    if (asked_again < OFTEN) return;
    asked_again = 0;
    waited_at[current] = interval_began;
    // What it asked meanwhile counts once: how often a GPU would ask, nobody knows.
    if (last_site) sites[last_site].by_warp[current / 32].first_thread = -1;
    forget_turns(OFTEN);
    wait_for_others();
}
