// Which threads meet at one piece of memory with nothing between them that orders them.
//
// Threads of a block are ordered by a barrier, lanes of a warp by __syncwarp() too, blocks by
// nothing. One clock, `now`, ticks at each of these; an access is stamped with it.
#pragma once
#include "runtime.h"

// Who last wrote a piece of memory and who read it, and when; a stamp of 0 is never.
struct Cell {
    u32 write_stamp;
    u32 writer : 10, atomic : 1, write_site : 21;
    // Two readers are kept, of two warps where there are two: a store meets one or the other.
    u32 read_stamp;
    u32 reader : 10, several_blocks : 1, read_site : 21;
    u32 other_stamp, other_reader;
};

static inline bool ordered(u32 stamp, int thread) {
    if (stamp < interval_began || thread == current) return true;
    return thread / 32 == current / 32 && stamp < warp_synced[current / 32];
}

struct Conflict {
    const char* what;  // null where there is none
    u32 stamp, thread, site;
};

// BETWEEN_BLOCKS is false for shared memory, where each block has its own.
template <int KIND, bool BETWEEN_BLOCKS> static inline Conflict meet(Cell& cell, u32 site) {
    if (cell.write_stamp && !(KIND == ATOMIC && cell.atomic)) {
        bool elsewhere = cell.write_stamp < block_began;
        if (elsewhere ? BETWEEN_BLOCKS : !ordered(cell.write_stamp, cell.writer))
            return {"stored", cell.write_stamp, cell.writer, cell.write_site};
    }
    u32 me = u32(current);
    if (KIND != LOAD) {
        if (cell.read_stamp >= block_began) {
            bool first = !ordered(cell.read_stamp, cell.reader);
            if (first || !ordered(cell.other_stamp, cell.other_reader))
                return {"read", first ? cell.read_stamp : cell.other_stamp,
                        first ? cell.reader : cell.other_reader, cell.read_site};
        } else if (BETWEEN_BLOCKS && cell.read_stamp) {
            return {"read", cell.read_stamp, cell.reader, cell.read_site};
        }
        // A plain store stays one for the others, though its thread goes on with an atomic.
        bool mine = cell.write_stamp >= interval_began && cell.writer == me && !cell.atomic;
        cell.atomic = KIND == ATOMIC && !mine;
        cell.write_stamp = now;
        cell.writer = me;
        cell.write_site = site;
        return {nullptr, 0, 0, 0};
    }
    // Once two blocks have read, any store is a conflict with the first of them.
    if (BETWEEN_BLOCKS && cell.several_blocks) return {nullptr, 0, 0, 0};
    if (cell.read_stamp < interval_began) {
        if (BETWEEN_BLOCKS && cell.read_stamp && cell.read_stamp < block_began) {
            cell.several_blocks = 1;
            return {nullptr, 0, 0, 0};
        }
        cell.reader = cell.other_reader = me;
        cell.read_stamp = cell.other_stamp = now;
    } else {
        bool same_warp = cell.reader / 32 == me / 32;
        if (same_warp && cell.read_stamp < warp_synced[me / 32]) {
            cell.reader = me;
            cell.read_stamp = now;
        } else if (!same_warp || cell.other_reader / 32 == cell.reader / 32) {
            cell.other_reader = me;
            cell.other_stamp = now;
        }
    }
    cell.read_site = site;
    return {nullptr, 0, 0, 0};
}
