// Which threads meet at one piece of memory with nothing between them that orders them.
//
// Threads of a block are ordered by a barrier, lanes of a warp by __syncwarp() too, blocks by nothing.
#pragma once
#include "runtime.h"

// Who last wrote a piece of memory and who read it, and when.
struct Cell {
    u32 write_epoch, write_warp_epoch, write_block, write_site;
    u32 read_epoch, read_warp_epoch, other_warp_epoch, read_block, read_site;
    u16 writer, reader, other_reader;
    u8 atomic, several_blocks;
};

static bool ordered(u32 epoch, u32 warp_epoch, int thread) {
    if (epoch != barrier_epoch || thread == current) return true;
    return thread / 32 == current / 32 && warp_epoch != warp_epochs[current / 32];
}

struct Conflict {
    const char* what;  // "" where there is none
    u32 block, thread, site;
};

static Conflict meet(Cell& cell, int kind, u32 site, bool between_blocks) {
    if (cell.write_epoch && !(kind == ATOMIC && cell.atomic)) {
        bool elsewhere = cell.write_epoch < block_first_epoch;
        if (elsewhere ? between_blocks : !ordered(cell.write_epoch, cell.write_warp_epoch, cell.writer))
            return {"stored", cell.write_block, cell.writer, cell.write_site};
    }
    if (kind != LOAD && cell.read_epoch) {
        bool elsewhere = cell.read_epoch < block_first_epoch ||
                         (between_blocks && cell.several_blocks);
        bool first = !ordered(cell.read_epoch, cell.read_warp_epoch, cell.reader);
        bool other = !ordered(cell.read_epoch, cell.other_warp_epoch, cell.other_reader);
        if (elsewhere ? between_blocks : first || other) {
            u32 who = first || elsewhere ? cell.reader : cell.other_reader;
            return {"read", cell.read_block, who, cell.read_site};
        }
    }
    u16 me = u16(current);
    u32 warp_epoch = warp_epochs[current / 32];
    if (kind == LOAD) {
        // Two readers are kept, of two warps where there are two: a store meets one or the other.
        bool same_warp = cell.reader / 32 == me / 32;
        if (cell.read_epoch == barrier_epoch && same_warp && cell.read_warp_epoch != warp_epoch) {
            cell.reader = me;
            cell.read_warp_epoch = warp_epoch;
        } else if (cell.read_epoch == barrier_epoch) {
            if (!same_warp || cell.other_reader / 32 == cell.reader / 32) {
                cell.other_reader = me;
                cell.other_warp_epoch = warp_epoch;
            }
        } else {
            if (cell.read_epoch && cell.read_epoch < block_first_epoch) cell.several_blocks = 1;
            cell.reader = cell.other_reader = me;
            cell.read_epoch = barrier_epoch;
            cell.read_warp_epoch = cell.other_warp_epoch = warp_epoch;
            if (!cell.several_blocks) cell.read_block = block_number;
        }
        cell.read_site = site;
    } else {
        // A plain store stays one for the others, though its thread goes on with an atomic.
        bool mine = cell.write_epoch == barrier_epoch && cell.writer == me && !cell.atomic;
        cell.atomic = kind == ATOMIC && !mine;
        cell.write_epoch = barrier_epoch;
        cell.write_warp_epoch = warp_epoch;
        cell.write_block = block_number;
        cell.write_site = site;
        cell.writer = me;
    }
    return {"", 0, 0, 0};
}
