// Which threads meet at one piece of memory with nothing between them that orders them.
//
// Threads of a block are ordered by a barrier, lanes of a warp by __syncwarp() too, blocks by
// nothing. One clock, `now`, ticks at each of these; an access is stamped with it.
#pragma once
#include "runtime.h"

// A thread of its block (10 bits), a flag, and where in the code (21 bits): one word, so that it is
// written at once.
struct Who {
    u32 bits;
    Who(u32 thread, bool flag, u32 site) : bits(thread | u32(flag) << 10 | site << 11) {}
    u32 thread() const { return bits & 1023; }
    bool flag() const { return bits >> 10 & 1; }
    u32 site() const { return bits >> 11; }
};

// Who last wrote a piece of memory and who read it, and when; a stamp of 0 is never.
struct Cell {
    u32 write_stamp;
    Who writer;  // its flag: by an atomic
    // Two readers are kept, of two warps where there are two: a store meets one or the other.
    u32 read_stamp;
    Who reader;  // its flag: there were several blocks, and this is of the first
    u32 other_stamp, other_reader;
};

static inline bool ordered(u32 stamp, int thread) {
    if (stamp < interval_began || thread == current) return true;
    return thread / 32 == current / 32 && stamp < warp_synced[current / 32];
}

struct Conflict {
    const char* what;  // null where there is none
    u32 stamp, thread, site;
    bool by_atomic;
};

// BETWEEN_BLOCKS is false for shared memory, where each block has its own.
template <int KIND, bool BETWEEN_BLOCKS> static inline Conflict meet(Cell& cell, u32 site) {
    const Conflict none{nullptr, 0, 0, 0, false};
    const Who writer = cell.writer, reader = cell.reader;
    if (cell.write_stamp && !(KIND == ATOMIC && writer.flag())) {
        bool elsewhere = cell.write_stamp < block_began;
        if (elsewhere ? BETWEEN_BLOCKS : !ordered(cell.write_stamp, writer.thread()))
            return {"stored", cell.write_stamp, writer.thread(), writer.site(), writer.flag()};
    }
    u32 me = u32(current);
    if (KIND != LOAD) {
        if (cell.read_stamp >= block_began) {
            if (!ordered(cell.read_stamp, reader.thread()))
                return {"read", cell.read_stamp, reader.thread(), reader.site(), false};
            if (!ordered(cell.other_stamp, cell.other_reader))
                return {"read", cell.other_stamp, cell.other_reader, reader.site(), false};
        } else if (BETWEEN_BLOCKS && cell.read_stamp) {
            return {"read", cell.read_stamp, reader.thread(), reader.site(), false};
        }
        // A plain store stays one for the others, though its thread goes on with an atomic.
        bool mine = cell.write_stamp >= interval_began && writer.thread() == me && !writer.flag();
        cell.writer = Who(me, KIND == ATOMIC && !mine, site);
        cell.write_stamp = now;
        return none;
    }
    // Once two blocks have read, any store is a conflict with the first of them.
    if (BETWEEN_BLOCKS && reader.flag()) return none;
    if (cell.read_stamp < interval_began) {
        if (BETWEEN_BLOCKS && cell.read_stamp && cell.read_stamp < block_began) {
            cell.reader = Who(reader.thread(), true, reader.site());
            return none;
        }
        cell.reader = Who(me, false, site);
        cell.other_reader = me;
        cell.read_stamp = cell.other_stamp = now;
        return none;
    }
    bool same_warp = reader.thread() / 32 == me / 32;
    bool synced = same_warp && cell.read_stamp < warp_synced[me / 32];
    if (synced) cell.read_stamp = now;
    if (!synced && (!same_warp || cell.other_reader / 32 == reader.thread() / 32)) {
        cell.other_reader = me;
        cell.other_stamp = now;
    }
    cell.reader = Who(synced ? me : reader.thread(), false, site);
    return none;
}

// What this thread read there since the last barrier is a part of the compare-and-swap that follows.
static inline void forget_own_read(Cell& cell) {
    u32 me = u32(current);
    if (cell.read_stamp < interval_began || cell.reader.flag()) return;
    bool first = cell.reader.thread() == me, other = cell.other_reader == me;
    if (first && other) {
        cell.read_stamp = cell.other_stamp = 0;
    } else if (first) {
        cell.reader = Who(cell.other_reader, false, cell.reader.site());
        cell.read_stamp = cell.other_stamp;
    } else if (other) {
        cell.other_reader = cell.reader.thread();
        cell.other_stamp = cell.read_stamp;
    }
}
