// See paths.h.
#include "paths.h"

Path paths[1024];
static bool between_updates;  // inside an atomic's own update, which is no block of the kernel

void begin_path(int thread) { paths[thread] = Path{}; }

static void set_key(Path& path) {
    u64 key = 0;
    for (int i = 0; i < path.depth; i++)
        key = (key ^ path.loops[i].last * 31 ^ path.loops[i].turn) * 0x9E3779B97F4A7C15 + 1;
    path.key = key;
}

void forget_turns(u64 turns) {
    Path& path = paths[current];
    if (!path.depth) return;
    u64& turn = path.loops[path.depth - 1].turn;
    turn -= turn > turns ? turns : 0;
    set_key(path);
}

static void leave_loops(Path& path, u64 block) {
    while (path.depth && block > path.loops[path.depth - 1].last) path.depth--;
    set_key(path);
}

// A loop is known by the block that it comes back from: its body may begin at another block when an
// inner loop has no turn, and an inner loop may begin where it does.
[[gnu::noinline]] static void next_turn(Path& path, u64 block, u64 from) {
    auto other = [&](const Loop& loop) { return loop.last != from; };
    while (path.depth && other(path.loops[path.depth - 1]) &&
           path.loops[path.depth - 1].first > block)
        path.depth--;
    if (!path.depth || other(path.loops[path.depth - 1])) {
        if (path.depth == MOST_LOOPS) return;
        path.loops[path.depth++] = Loop{block, from, 0};
    }
    Loop& loop = path.loops[path.depth - 1];
    if (block < loop.first) loop.first = block;
    loop.turn++;
    set_key(path);
}

extern "C" {
void __sanitizer_cov_trace_pc() {
    if (between_updates) return;
    u64 block = reinterpret_cast<u64>(__builtin_return_address(0));
    Path& path = paths[current];
    u64 from = path.block;
    path.block = block;
    if (block <= from)
        next_turn(path, block, from);
    else if (path.depth && block > path.loops[path.depth - 1].last)
        leave_loops(path, block);
}
void emulated_update_begins() { between_updates = true; }
void emulated_update_ends() { between_updates = false; }
}
