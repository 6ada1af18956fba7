"""Types that several modules of the package name in signatures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    # Type checkers bring it along; at run time it is in Python 3.12 and later.
    from typing_extensions import Buffer
else:
    Buffer = object

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def path_bytes(path: Path) -> bytes:
    """The bytes of a path, as the engine takes them."""
    found = os.fsencode(path)
    if b"\0" in found:
        raise ValueError("embedded null byte in a path")
    return found


def stat_result(found: tuple[int, ...]) -> os.stat_result:
    """The attributes of a file as `os.stat` returns them."""
    mode, ino, nlink, uid, gid, size, blocks, rdev, *times = found
    seconds = [ns // 1_000_000_000 for ns in times]
    floats = [ns / 1e9 for ns in times]
    return os.stat_result((mode, ino, 0, nlink, uid, gid, size, *seconds, *floats, *times, 4096, blocks, rdev))
