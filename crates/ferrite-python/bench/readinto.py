"""Times reads and writes of a pool in memory against the same on a file of tmpfs, in turn, in one run.

    python bench/readinto.py [ROUNDS]

Prints medians in microseconds, and tmpfs' time divided by Ferrite's: above 1, Ferrite is faster. The buffer is made
once and used by both. The goals are 0.6 for `readinto` of 1 MiB and 0.8 for 4 KiB.
"""

import os
import statistics
import sys
import tempfile
import time

import ferrite

FILE_BYTES = 64 << 20
TURN_S = 0.02


def timed(call, size):
    """Nanoseconds of a call, over a turn through the file."""
    calls, begin = 0, time.perf_counter_ns()
    while time.perf_counter_ns() - begin < TURN_S * 1e9:
        for _ in range(16):
            call(calls * size % FILE_BYTES)
            calls += 1
    return (time.perf_counter_ns() - begin) / calls


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        volume = ferrite.create(f"{folder}/pool", 4 * FILE_BYTES)
        ours = volume.open("/f", "w+b", 0)
        theirs = open(f"{folder}/f", "w+b", 0)
        for start in range(0, FILE_BYTES, 1 << 20):
            ours.pwrite(os.urandom(1 << 20), start)
            theirs.write(os.urandom(1 << 20))
        descriptor = theirs.fileno()
        for size, name in [(1 << 20, "1 MiB"), (4096, "4 KiB")]:
            space = bytearray(size)
            for what, mine, other in [
                ("readinto", lambda at: ours.preadinto(space, at), lambda at: os.preadv(descriptor, [space], at)),
                ("write", lambda at: ours.pwrite(space, at), lambda at: os.pwritev(descriptor, [space], at)),
            ]:
                pairs = [(timed(mine, size), timed(other, size)) for _ in range(rounds)][1:]
                medians = [statistics.median(side) / 1e3 for side in zip(*pairs)]
                ratio = statistics.median(other / mine for mine, other in pairs)
                print(f"{what} {name}: ferrite {medians[0]:.2f} us, tmpfs {medians[1]:.2f} us, ratio {ratio:.2f}")
        ours.close()
        theirs.close()
        volume.close()


if __name__ == "__main__":
    main()
