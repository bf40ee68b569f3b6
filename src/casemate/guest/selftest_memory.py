"""Uses more memory than the cell may have, spread over children so that no single process exceeds the limit."""

import mmap
import os

PIECE = 24 << 20
for _ in range(6):
    if os.fork() == 0:
        held = mmap.mmap(-1, PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for offset in range(0, PIECE, 4096):
            held[offset] = 1
        break
own = os.pipe()  # never written to
os.read(own[0], 1)
