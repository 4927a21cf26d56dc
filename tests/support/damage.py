"""Damaged copies of files."""

import random


def variants(content, number, seed, often=()):
    """Yield ``(name, bytes)`` of ``number`` damaged copies.

    Bits are flipped, bytes overwritten or inserted, the end is cut off, or blocks are zeroed or swapped. Half of the
    places
    are anywhere, half within one of the ranges ``often`` (for example headers), if any. A copy may equal the original.
    """
    chance = random.Random(seed)

    def place():
        start, end = chance.choice(often) if often and chance.random() < 0.5 else (0, len(content))
        return chance.randrange(start, min(end, len(content)))

    def block(at):
        return at, min(at + chance.choice((1, 4, 8, 64, 512)), len(content))

    def flip(data):
        for _ in range(chance.choice((1, 1, 1, 8))):
            data[place()] ^= 1 << chance.randrange(8)

    def overwrite(data):
        for _ in range(chance.choice((1, 1, 1, 8))):
            data[place()] = chance.randrange(256)

    def truncate(data):
        del data[place() :]

    def insert(data):
        at = place()
        data[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 2, 5, 8, 100))))

    def zero(data):
        start, end = block(place())
        data[start:end] = bytes(end - start)

    def swap(data):
        (a, a_end), b = block(place()), place()
        length = min(a_end - a, abs(a - b), len(data) - b)
        data[a : a + length], data[b : b + length] = data[b : b + length], data[a : a + length]

    ways = (flip, overwrite, truncate, insert, zero, swap)
    for index in range(number):
        data = bytearray(content)
        way = ways[index % len(ways)]
        way(data)
        yield f"{way.__name__} {index}", bytes(data)
