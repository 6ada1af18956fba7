"""Ferrite, a file system in user space, in this process.

    with ferrite.create("/dev/shm/data.pool", 1 << 30) as volume:   # or ferrite.open
        with volume.open("/log", "w") as log:
            print("atomic and durable when it returns", file=log)

A `Volume` is a pool or an export of a server; its methods are those of `os` and `os.path`. Failures are `OSError` with
errno and path. Calls run without the interpreter lock, so threads work at the same time.
"""

from ._ferrite import __version__
from ._file import File
from ._volume import DirEntry, Volume, create, open

__all__ = ["DirEntry", "File", "Volume", "__version__", "create", "open"]
