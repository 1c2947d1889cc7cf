// Philox4x32-10: random numbers from a key and a counter, with no state to keep.
// Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//
// One call gives four words of 32 bits. A dropout needs 16 for an element, so one call serves
// eight elements: those of block e / 8. kernels/philox.py has the same numbers in NumPy.
#pragma once

__device__ inline uint4 philox(unsigned long long key, uint4 counter) {
    unsigned int key_low = (unsigned int)key, key_high = (unsigned int)(key >> 32);
    for (int round = 0; round < 10; round++) {
        // Two products of 32 bits by 32; the upper halves cross over and are mixed with the key.
        unsigned int upper_0 = __umulhi(0xD2511F53u, counter.x), lower_0 = 0xD2511F53u * counter.x;
        unsigned int upper_1 = __umulhi(0xCD9E8D57u, counter.z), lower_1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(upper_1 ^ counter.y ^ key_low, lower_1, upper_0 ^ counter.w ^ key_high,
                             lower_0);
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    return counter;
}

// The four words for the eight elements of a block. seed_offset holds the seed, which is the key,
// and the call's offset: in device memory, so that a CUDA graph can be replayed with new ones.
__device__ inline uint4 dropout_words(const long long* seed_offset, unsigned long long block) {
    unsigned long long offset = seed_offset[1];
    return philox(seed_offset[0], make_uint4((unsigned int)block, (unsigned int)(block >> 32),
                                             (unsigned int)offset, (unsigned int)(offset >> 32)));
}

// Whether element i of the block, 0 to 7, is kept: if its 16 bits, low half first, reach
// `threshold`, which is 65536 times the probability to drop.
__device__ inline bool dropout_keeps(uint4 words, int i, unsigned int threshold) {
    unsigned int word = i < 4 ? (i < 2 ? words.x : words.y) : (i < 6 ? words.z : words.w);
    return (i % 2 ? word >> 16 : word & 0xffffu) >= threshold;
}
