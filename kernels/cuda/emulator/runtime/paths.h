// In which turn of which loops a lane is: lanes that are in the same one run an instruction together.
//
// g++ calls __sanitizer_cov_trace_pc() where a basic block begins. Blocks stand nearly in the order
// of the source, so a step back is the next turn of a loop, and one past its last block leaves it.
#pragma once
#include "runtime.h"

struct Loop {
    u64 first, last;  // its blocks' addresses
    u64 turn;
};

constexpr int MOST_LOOPS = 16;

struct Path {
    u64 block, key;  // where it is, and a number for the turns of all its loops
    int depth;
    Loop loops[MOST_LOOPS];
};

extern Path paths[1024];
void begin_path(int thread);
// What a loop did that only waits is not to be told from its first turns.
void forget_turns(u64 turns);
