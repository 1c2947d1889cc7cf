"""Answers to 07.9, bytes behind a cache: right ones written differently, and known-wrong ones."""

from kernels.grading.questions.ch07.reuse import moved


def by_ages(readings, capacity):
    sizes, read_at, total = {}, {}, 0
    for now, (name, size) in enumerate(readings):
        if name not in read_at:
            total += size
            sizes[name] = size
            while sum(sizes[other] for other in read_at) + size > capacity:
                del read_at[min(read_at, key=read_at.get)]
        read_at[name] = now
    return total


def by_distance(readings, capacity):
    """Count the distinct bytes since the last reading; blocks leave from the oldest on."""
    total = 0
    for place, (name, size) in enumerate(readings):
        before = [n for n, _ in readings[:place]]
        if name not in before:
            total += size
            continue
        last = place - 1 - before[::-1].index(name)
        total += 0 if kept(readings[:place], last, capacity) else size
    return total


def kept(readings, place, capacity):
    """Whether the block read at `place`, and not since, is in the cache after all readings."""
    stack = []  # newest first
    for name, size in readings:
        stack = [(name, size), *(block for block in stack if block[0] != name)]
        held, room = [], capacity
        for block in stack:
            if block[1] > room:
                break
            room -= block[1]
            held.append(block)
        stack = held
    return readings[place] in stack


def by_list(readings, capacity):
    blocks, total = [], 0
    for block in readings:
        if block in blocks:
            blocks.remove(block)
        else:
            total += block[1]
        while sum(size for _, size in blocks) + block[1] > capacity:
            blocks.pop(0)
        blocks.append(block)
    return total


def every_reading(readings, capacity):
    return sum(size for _, size in readings)


def distinct(readings, capacity):
    return sum(dict(readings).values())


def moved_with(**mistake):
    def moved_bytes(readings, capacity):
        return moved(readings, capacity, **mistake)

    return moved_bytes


def one_byte_less(readings, capacity):
    return moved(readings, capacity - 1)
