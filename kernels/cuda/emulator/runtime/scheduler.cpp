// One fiber for each thread of a block; blocks run one after another.
//
// A fiber runs until it stops: at a barrier, at a warp's collective, or because it returns. So
// every thread's own order holds, and a run is the same each time.
#include "judge.h"
#include "paths.h"
#include <algorithm>
#include <vector>

asm(".text\n.globl switch_fiber\nswitch_fiber:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
extern "C" void switch_fiber(void** save, void* load);
extern "C" void emulated_entry(int entry, void** arguments);

extern "C" {
dim3 threadIdx, blockIdx, blockDim, gridDim;
}

enum Collective { SHUFFLE, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR, BALLOT, ANY, ALL, SYNC, ADD };

struct alignas(64) Fiber {
    void* stack_pointer;
    State state;
    int line;
    dim3 index;
    int how;        // the collective it waits at
    u32 mask;
    u64 value;
    int argument, width;
};

static const u64 PAGE = 4096;
static Fiber fibers[1024];
static void* scheduler_stack;
static int entry_number;
static void** entry_arguments;
static int barrier_votes, warp_end;
static std::vector<u32> blocks_began;

int n_threads, current;
u32 block_number, now, block_began, interval_began, warp_synced[32];
u64 stack_low, stacks_low, stacks_high;

u32 block_of(u32 stamp) {
    auto after = std::upper_bound(blocks_began.begin(), blocks_began.end(), stamp);
    return u32(after - blocks_began.begin()) - 1;
}

static void enter(int thread) {
    current = thread;
    threadIdx = fibers[thread].index;
    stack_low = stacks_low + thread * STACK_BYTES;
}

// Go on with the next lane of the warp that can, without the scheduler between them.
static void stop(State state, int line) {
    Fiber& me = fibers[current];
    if (store_held) judge_held_store();
    if (state != WAITING) judge_doubted_read();
    latest_address = 0;
    me.state = state;
    me.line = line;
    int next = current + 1;
    while (next < warp_end && fibers[next].state != READY) next++;
    if (next == warp_end) {
        switch_fiber(&me.stack_pointer, scheduler_stack);
    } else {
        enter(next);
        switch_fiber(&me.stack_pointer, fibers[next].stack_pointer);
    }
}

void wait_for_others() { stop(WAITING, 0); }

static void first_step() {
    emulated_entry(entry_number, entry_arguments);
    stop(RETURNED, 0);
}

// The stacks lie a power of two apart; begun at one place in each, all would fall into the same few
// lines of the processor's caches.
static u64 stack_top(int thread) {
    return stacks_low + (thread + 1) * STACK_BYTES - 64 - thread % 32 * 448;
}

static void make_fiber(int thread) {
    Fiber& fiber = fibers[thread];
    u64 top = stack_top(thread);
    void** stack = reinterpret_cast<void**>(top);
    *--stack = nullptr;
    *--stack = reinterpret_cast<void*>(first_step);
    fiber.stack_pointer = stack - 6;
    fiber.state = READY;
    begin_path(thread);
}

// ---------------------------------------------------------------- barriers and collectives

extern "C" int emulated_barrier(int line, int vote) {
    fibers[current].value = vote != 0;
    stop(AT_BARRIER, line);
    return barrier_votes;
}

extern "C" u64 emulated_collective(int line, int how, u32 mask, u64 value, int argument, int width) {
    Fiber& me = fibers[current];
    if (!(mask >> (current % 32) & 1))
        fault("mask line=%d mask=%u", line, mask);
    me.how = how;
    me.mask = mask;
    me.value = value;
    me.argument = argument;
    me.width = width;
    stop(AT_COLLECTIVE, line);
    return me.value;
}

static int source_lane(const Fiber& fiber, int lane) {
    int segment = lane & ~(fiber.width - 1), n = fiber.argument;
    int last = segment + fiber.width - 1;
    switch (fiber.how) {
    case SHUFFLE: return segment + (n & (fiber.width - 1));
    case SHUFFLE_UP: return lane - n < segment ? lane : lane - n;
    case SHUFFLE_DOWN: return lane + n > last ? lane : lane + n;
    default: return (lane ^ n) > last ? lane : lane ^ n;
    }
}

static void perform(int first, u32 taking_part) {
    u64 before[32], ballot = 0, sum = 0;
    for (int lane = 0; lane < 32; lane++)
        if (taking_part >> lane & 1) {
            before[lane] = fibers[first + lane].value;
            ballot |= u64(before[lane] != 0) << lane;
            sum += before[lane];
        }
    for (int lane = 0; lane < 32; lane++) {
        if (!(taking_part >> lane & 1)) continue;
        Fiber& fiber = fibers[first + lane];
        fiber.state = READY;
        if (fiber.how <= SHUFFLE_XOR) {
            int from = source_lane(fiber, lane);
            if (!(taking_part >> from & 1)) {
                current = first + lane;
                const char* why = first + from >= n_threads                    ? "absent"
                                  : fibers[first + from].state == RETURNED ? "returned"
                                                                           : "masked";
                stray("lane line=%d from=%d why=%s", fiber.line, from, why);
            }
            fiber.value = taking_part >> from & 1 ? before[from] : nobodys_value;
        } else if (fiber.how == BALLOT) {
            fiber.value = ballot;
        } else if (fiber.how == ANY) {
            fiber.value = ballot != 0;
        } else if (fiber.how == ALL) {
            fiber.value = ballot == taking_part;
        } else if (fiber.how == ADD) {
            fiber.value = sum;
        }
    }
    if (fibers[first + __builtin_ctz(taking_part)].how == SYNC)
        warp_synced[first / 32] = ++now;
}

// Let every lane of a warp run as far as it can.
static void run_warp(int first) {
    int end = warp_end = first + 32 < n_threads ? first + 32 : n_threads;
    for (;;) {
        int ready = first;
        while (ready < end && fibers[ready].state != READY) ready++;
        if (ready < end) {
            enter(ready);
            switch_fiber(&scheduler_stack, fibers[ready].stack_pointer);
        }
        u32 live = 0, waiting = 0;
        bool some_wait = false;
        for (int t = first; t < end; t++) {
            if (fibers[t].state != RETURNED) live |= 1u << (t - first);
            if (fibers[t].state == AT_COLLECTIVE) waiting |= 1u << (t - first);
            some_wait |= fibers[t].state == WAITING;
        }
        if (!waiting) return;
        bool progress = false;
        int waiter = -1, missing = -1;
        for (u32 left = waiting; left;) {
            int lane = __builtin_ctz(left);
            const Fiber& one = fibers[first + lane];
            u32 needed = one.mask & live, together = 0;
            for (int t = first; t < end; t++) {
                const Fiber& other = fibers[t];
                bool same_place = other.line == one.line || one.how == SYNC;
                if (other.state == AT_COLLECTIVE && other.how == one.how &&
                    other.mask == one.mask && same_place)
                    together |= 1u << (t - first);
            }
            left &= ~together;
            if (together == needed) {
                if (needed == live) end_of_requests(first / 32);
                perform(first, together);
                progress = true;
            } else if (waiter < 0) {
                waiter = first + lane;
                u32 absent = needed & ~together;
                missing = absent ? first + __builtin_ctz(absent) : -1;
            }
        }
        if (progress) continue;
        if (some_wait) return;
        current = waiter;
        threadIdx = fibers[waiter].index;
        if (missing < 0) fault("mask line=%d mask=%u", fibers[waiter].line, fibers[waiter].mask);
        fault("collective line=%d how=%d other=%d otherline=%d otherstate=%d", fibers[waiter].line,
              fibers[waiter].how, missing, fibers[missing].line, int(fibers[missing].state));
    }
}

// Let every thread run until none can go on; those that waited for others may go on then.
static void run_warps() {
    bool again = true;
    while (again) {
        again = false;
        for (int first = 0; first < n_threads; first += 32) run_warp(first);
        for (int t = 0; t < n_threads; t++)
            if (fibers[t].state == WAITING) {
                fibers[t].state = READY;
                again = true;
            }
    }
}

// True when the block has ended; otherwise all its threads have passed one barrier.
static bool next_barrier() {
    run_warps();
    int returned = 0, at_barrier = -1, votes = 0;
    for (int t = 0; t < n_threads; t++) {
        returned += fibers[t].state == RETURNED;
        if (fibers[t].state == AT_BARRIER && at_barrier < 0) at_barrier = t;
    }
    for (int first = 0; first < n_threads; first += 32) end_of_requests(first / 32);
    if (returned == n_threads) {
        judge_suspect(false);
        return true;
    }
    for (int t = 0; t < n_threads; t++) {
        bool here = fibers[t].state == AT_BARRIER && fibers[t].line == fibers[at_barrier].line;
        if (here) {
            votes += int(fibers[t].value);
            continue;
        }
        current = at_barrier;
        threadIdx = fibers[at_barrier].index;
        fault("barrier line=%d other=%d otherline=%d otherstate=%d", fibers[at_barrier].line, t,
              fibers[t].line, int(fibers[t].state));
    }
    judge_suspect(false);
    barrier_votes = votes;
    for (int t = 0; t < n_threads; t++) fibers[t].state = READY;
    interval_began = ++now;
    return false;
}

void run_grid(int entry, void** pointers) {
    entry_number = entry;
    entry_arguments = pointers;
    n_threads = blockDim.x * blockDim.y * blockDim.z;
    u64 bytes = n_threads * STACK_BYTES;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    stacks_low = reinterpret_cast<u64>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0));
    stacks_high = stacks_low + bytes;
    for (int t = 0; t < n_threads; t++)
        mprotect(reinterpret_cast<void*>(stacks_low + t * STACK_BYTES), PAGE, PROT_NONE);
    for (unsigned t = 0; t < unsigned(n_threads); t++)
        fibers[t].index = {t % blockDim.x, t / blockDim.x % blockDim.y,
                           t / blockDim.x / blockDim.y};
    for (unsigned z = 0; z < gridDim.z; z++)
        for (unsigned y = 0; y < gridDim.y; y++)
            for (unsigned x = 0; x < gridDim.x; x++) {
                blockIdx = {x, y, z};
                block_number = x + gridDim.x * (y + gridDim.y * z);
                block_began = interval_began = ++now;
                blocks_began.push_back(now);
                begin_block();
                for (int t = 0; t < n_threads; t++) make_fiber(t);
                while (!next_barrier()) {
                }
            }
    judge_suspect(true);
}
