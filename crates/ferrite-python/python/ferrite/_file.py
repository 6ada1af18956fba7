"""`File`: an open file, unbuffered, as an `io.RawIOBase`."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from typing import Iterator

from ._ferrite import RawFile
from ._types import Buffer, Path, path_bytes, stat_result


class File(io.RawIOBase):
    """An open file without buffering. `Volume.open` makes them, and wraps them for buffers and text.

    Buffers are used in place and without the interpreter lock: until a call returns, no other thread may change them.
    A write that has returned is durable as the pool's options say.
    """

    def __init__(self, raw: RawFile, name: str | bytes, flags: int, volume: object = None) -> None:
        self._raw = raw
        # A pool that is open cannot be opened again, so it must not be forgotten while a file is open.
        self._volume = volume
        self.name = name
        access = flags & os.O_ACCMODE
        self._readable = access != os.O_WRONLY
        self._writable = access != os.O_RDONLY
        self._plus = access == os.O_RDWR
        self._letter = "a" if flags & os.O_APPEND else "x" if flags & os.O_EXCL else "w" if flags & os.O_TRUNC else "r"

    def __repr__(self) -> str:
        return f"<ferrite.File name={self.name!r} mode={self.mode!r}{' closed' if self.closed else ''}>"

    @property
    def mode(self) -> str:
        """The mode, as `io.FileIO` has it."""
        return f"{self._letter}b{'+' if self._plus else ''}"

    def readable(self) -> bool:
        self._checkClosed()
        return self._readable

    def writable(self) -> bool:
        self._checkClosed()
        return self._writable

    def seekable(self) -> bool:
        self._checkClosed()
        return True

    def _check(self, allowed: bool, what: str) -> None:
        if not allowed:
            self._checkClosed()
            raise io.UnsupportedOperation(f"the file is not open for {what}")

    def readinto(self, buffer: Buffer) -> int:
        """Reads into `buffer` at the position; returns the number of bytes, 0 at the end."""
        self._check(self._readable, "reading")
        return self._raw.readinto(buffer)

    def read(self, size: int | None = -1) -> bytes:
        """At most `size` bytes from the position; all that follow if it is negative or None."""
        self._check(self._readable, "reading")
        return self._raw.read(-1 if size is None else size)

    def readall(self) -> bytes:
        """All bytes from the position."""
        return self.read(-1)

    def write(self, data: Buffer) -> int:
        """Writes at the position, or at the end in mode "a"; returns the number of bytes."""
        self._check(self._writable, "writing")
        return self._raw.write(data)

    def pread(self, size: int, offset: int) -> bytes:
        """At most `size` bytes from `offset`. The position stays."""
        self._check(self._readable, "reading")
        return self._raw.pread(size, offset)

    def preadinto(self, buffer: Buffer, offset: int) -> int:
        """Reads into `buffer` from `offset`; returns the number of bytes. The position stays."""
        self._check(self._readable, "reading")
        return self._raw.preadinto(buffer, offset)

    def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes at `offset`; returns the number of bytes. The position stays."""
        self._check(self._writable, "writing")
        return self._raw.pwrite(data, offset)

    def append(self, data: Buffer) -> int:
        """Appends all of `data` atomically; returns its offset."""
        self._check(self._writable, "writing")
        return self._raw.append(data)

    def link(self, path: Path) -> None:
        """Gives the file a name: its first, if `Volume.tempfile` made it, or a further one."""
        self._checkClosed()
        self._raw.link(path_bytes(path))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position; returns it."""
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._raw.tell()

    def truncate(self, size: int | None = None) -> int:
        """Sets the length, by default to the position; returns it."""
        self._check(self._writable, "writing")
        size = self.tell() if size is None else size
        self._raw.truncate(size)
        return size

    def fallocate(self, offset: int, size: int, mode: str = "allocate", *, keep_size: bool = False) -> None:
        """Allocates a range of bytes, or makes it read as zeros: mode "punch" frees its space, "zero" keeps it."""
        self._check(self._writable, "writing")
        self._raw.fallocate(mode, offset, size, keep_size)

    def fsync(self) -> None:
        """Makes everything written so far durable."""
        self._raw.fsync()

    def stat(self) -> os.stat_result:
        """The attributes, as `os.fstat`."""
        return stat_result(self._raw.stat())

    def fileno(self) -> int:
        """Refuses: the file is not one of the kernel's."""
        raise io.UnsupportedOperation("a file of Ferrite has no descriptor")

    def lock(self, exclusive: bool = True, *, blocking: bool = True, timeout: float | None = None) -> None:
        """Locks the file against other open files that lock it; `timeout` in seconds. `BlockingIOError` if it fails."""
        self._raw.lock(exclusive, blocking, timeout)

    def unlock(self) -> None:
        """Releases the lock on the file."""
        self._raw.unlock()

    @contextmanager
    def locked(self, exclusive: bool = True, *, timeout: float | None = None) -> Iterator[None]:
        """Holds a lock on the file for the block."""
        self.lock(exclusive, timeout=timeout)
        try:
            yield
        finally:
            self.unlock()

    def lock_range(
        self, start: int, size: int, exclusive: bool = True, *, blocking: bool = True, timeout: float | None = None
    ) -> None:
        """Locks a range of bytes, which may lie past the end."""
        self._raw.lock_range((start, size), exclusive, blocking, timeout)

    def unlock_range(self, start: int, size: int) -> None:
        """Releases the locks on a range."""
        self._raw.unlock_range((start, size))

    def close(self) -> None:
        """Closes the file and releases its locks."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._raw.close()
                self._volume = None
