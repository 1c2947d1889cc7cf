// What to make of two threads that meet at one address with nothing between them.
#pragma once
#include "races.h"

enum Use { PLAIN, VOLATILE, EXCHANGE, COMPARE };  // an exchange replaces what may be anything

// This thread's access and whom it meets; argument -1 is shared memory, whose variable has a name.
struct Meeting {
    int argument;
    const char* name;
    u64 item, place, address, size;
    i64 offset;
    int kind, thread;
    u32 site;
    Use use;
    Conflict met;
};

extern bool store_held, block_did_atomic, races_unjudged;
extern u64 latest_address;

// A race, unless something orders the two or their values agree.
void judge(const Meeting& meeting);
// A store of what another lane stored is no race: told at this thread's next store or stop, since of
// a copy the store is announced before the load.
void judge_held_store();
// A read of what an atomic wrote is none if this thread's compare-and-swap follows it.
void judge_doubted_read();
void compare_and_swap(u64 address);
// The thread may hand on to others what it stored, or take over what they did.
void release();
void acquire();
// Before an access that may be one of a loop that waits for another thread.
void let_others_run(u64 address);
