"""`Volume`: a pool or an export of a server, with the names of `os`."""

from __future__ import annotations

import atexit
import builtins
import errno
import io
import os
import stat as modes
import weakref
from typing import Any, Iterator

from ._ferrite import RawVolume
from ._file import File
from ._types import Path, path_bytes, stat_result

_open_volumes: weakref.WeakSet[Volume] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for volume in list(_open_volumes):
        try:
            volume.close()
        except OSError:
            pass  # A forked child cannot close its parent's pool, and at exit nobody can act on an error.


class DirEntry:
    """An entry of a directory, as `os.DirEntry`."""

    __slots__ = ("_attributes", "_ino", "_mode", "_volume", "name", "path")

    def __init__(self, volume: Volume, folder: str, entry: tuple[bytes, int, int, tuple[int, ...] | None]) -> None:
        name, self._mode, self._ino, self._attributes = entry
        self._volume = volume
        self.name: str = os.fsdecode(name)
        self.path: str = os.path.join(folder, self.name)

    def __repr__(self) -> str:
        return f"<ferrite.DirEntry {self.name!r}>"

    def __fspath__(self) -> str:
        return self.path

    def inode(self) -> int:
        """The number of the inode."""
        return self._ino

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return modes.S_ISLNK(self._mode)

    def _is(self, test: Any, follow_symlinks: bool) -> bool:
        if not follow_symlinks or not self.is_symlink():
            return test(self._mode)
        try:
            return test(self._volume.stat(self.path).st_mode)
        except FileNotFoundError:
            return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory, or a link to one."""
        return self._is(modes.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file, or a link to one."""
        return self._is(modes.S_ISREG, follow_symlinks)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """The attributes."""
        if self._attributes is not None and not (follow_symlinks and self.is_symlink()):
            return stat_result(self._attributes)
        return self._volume.stat(self.path, follow_symlinks=follow_symlinks)


def _flags(mode: str) -> int:
    letters = set(mode)
    known = letters <= set("rwaxbt+") and len(letters) == len(mode)
    if not known or len(letters & set("rwax")) != 1 or letters >= {"b", "t"}:
        raise ValueError(f"invalid mode: {mode!r}")
    access = os.O_RDWR if "+" in letters else os.O_RDONLY if "r" in letters else os.O_WRONLY
    for letter, flags in (("w", os.O_TRUNC), ("a", os.O_APPEND), ("x", os.O_EXCL)):
        if letter in letters:
            access |= flags | os.O_CREAT
    return access


class Volume:
    """An open volume. Its methods are those of `os` and `os.path`; a relative path begins at the root.

    Threads may share it. A forked child gets an error from every call: open the volume there, after the fork.
    """

    def __init__(self, raw: RawVolume, address: str) -> None:
        self._raw = raw
        #: The address or path that it was opened at.
        self.address = address
        self.closed = False
        self._buffered: weakref.WeakSet[Any] = weakref.WeakSet()
        _open_volumes.add(self)

    def __repr__(self) -> str:
        return f"<ferrite.Volume {self.address!r}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Volume:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Open files keep the volume, so none is left.
        try:
            self.close()
        except (AttributeError, OSError):
            pass  # It was never opened, or belongs to the parent of this process; nobody would see the error.

    def close(self) -> None:
        """Closes the volume: a pool is marked as closed cleanly. Files that are still open fail from then on.

        Files with a write buffer are flushed and closed first. Their first error is raised once the volume is closed.
        """
        failure = None
        for file in list(self._buffered):
            try:
                file.close()
            except OSError as error:
                failure = failure or error
        self.closed = True
        self._raw.close()
        if failure is not None:
            raise failure

    def open(
        self,
        path: Path,
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o644,
    ) -> Any:
        """Opens a file, as the built-in `open`: for text if `mode` has no "b", but the default is binary.

        `buffering=0` gives a `File`, with the calls that Python's buffered files lack: `pread`, `append`, locks.
        """
        flags = _flags(mode)
        text = "b" not in mode
        if not text and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("binary mode takes no encoding, errors or newline")
        if text and buffering == 0:
            raise ValueError("text needs a buffer")
        raw = File(self._raw.open_file(path_bytes(path), flags, permissions), os.fspath(path), flags, self)
        try:
            if flags & os.O_APPEND:
                raw.seek(0, os.SEEK_END)
            if buffering == 0:
                return raw
            size = buffering if buffering > 1 else 128 << 10
            access = flags & os.O_ACCMODE
            wrap: dict[int, Any] = {os.O_RDONLY: io.BufferedReader, os.O_WRONLY: io.BufferedWriter}
            buffered = wrap.get(access, io.BufferedRandom)(raw, size)
            if access != os.O_RDONLY:
                self._buffered.add(buffered)
            if not text:
                return buffered
            file: Any = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
            file.mode = mode
            if access != os.O_RDONLY:
                # Text has a buffer of its own, and closing it closes the other.
                self._buffered.discard(buffered)
                self._buffered.add(file)
            return file
        except BaseException:
            raw.close()
            raise

    def listdir(self, path: Path = "/") -> builtins.list[str]:
        """The names in a directory."""
        return [os.fsdecode(entry[0]) for entry in self._raw.list(path_bytes(path), False)]

    def scandir(self, path: Path = "/", *, with_stat: bool = False) -> Iterator[DirEntry]:
        """The entries of a directory; `with_stat` fetches all attributes at once."""
        folder = os.fsdecode(path)
        return iter([DirEntry(self, folder, entry) for entry in self._raw.list(path_bytes(path), with_stat)])

    def walk(
        self, top: Path = "/", topdown: bool = True
    ) -> Iterator[tuple[str, builtins.list[str], builtins.list[str]]]:
        """All directories below `top`, as `os.walk`: path, names of directories, names of files. Follows no links."""
        folder = os.fsdecode(top)
        entries = list(self.scandir(folder))
        dirs = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        found = (folder, dirs, [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)])
        if topdown:
            yield found
        for name in dirs:
            yield from self.walk(os.path.join(folder, name), topdown)
        if not topdown:
            yield found

    def mkdir(self, path: Path, mode: int = 0o755) -> None:
        """Makes a directory."""
        self._raw.mkdir(path_bytes(path), mode)

    def makedirs(self, path: Path, mode: int = 0o755, exist_ok: bool = False) -> None:
        """Makes a directory and all that lead to it."""
        path = os.fsdecode(path)
        parent = os.path.dirname(path.rstrip("/"))
        if parent.strip("/") and not self.exists(parent):
            self.makedirs(parent, exist_ok=True)
        try:
            self.mkdir(path, mode)
        except FileExistsError:
            if not exist_ok or not self.isdir(path):
                raise

    def rmdir(self, path: Path) -> None:
        """Removes an empty directory."""
        self._raw.rmdir(path_bytes(path))

    def rmtree(self, path: Path) -> None:
        """Removes a directory and everything below it."""
        self._raw.rmtree(path_bytes(path))

    def remove(self, path: Path) -> None:
        """Removes a name of a file."""
        self._raw.remove(path_bytes(path))

    unlink = remove

    def rename(self, old: Path, new: Path) -> None:
        """Renames atomically, and replaces what has the new name, as rename(2)."""
        self._raw.rename(path_bytes(old), path_bytes(new), True)

    replace = rename

    def rename_new(self, old: Path, new: Path) -> None:
        """Renames atomically; `FileExistsError` if the new name exists."""
        self._raw.rename(path_bytes(old), path_bytes(new), False)

    def link(self, original: Path, link: Path) -> None:
        """Gives a file a further name."""
        self._raw.link(path_bytes(original), path_bytes(link))

    def copy(self, original: Path, copy: Path) -> int:
        """Copies the content and the permission bits of a file; returns its length. Content is shared where it can be."""
        return self._raw.copy(path_bytes(original), path_bytes(copy))

    def clone(self, original: Path, clone: Path) -> None:
        """Clones a file, or a directory with all below it, to a new name, in one step that shares its content."""
        self._raw.clone_tree(path_bytes(original), path_bytes(clone))

    def tempfile(self, folder: Path = "/", *, permissions: int = 0o600) -> File:
        """Makes a file without a name in a folder, open for reading and writing. `File.link` gives it one; without that
        it is gone when it is closed."""
        flags = os.O_RDWR | os.O_TMPFILE
        return File(self._raw.open_file(path_bytes(folder), flags, permissions), os.fspath(folder), os.O_RDWR, self)

    def symlink(self, target: Path, link: Path) -> None:
        """Makes a symbolic link."""
        self._raw.symlink(path_bytes(target), path_bytes(link))

    def readlink(self, path: Path) -> str:
        """The target of a symbolic link."""
        return os.fsdecode(self._raw.readlink(path_bytes(path)))

    def stat(self, path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """The attributes of a file."""
        return stat_result(self._raw.stat(path_bytes(path), follow_symlinks))

    def lstat(self, path: Path) -> os.stat_result:
        """The attributes of a file, or of a symbolic link itself."""
        return self.stat(path, follow_symlinks=False)

    def _mode(self, path: Path, follow_symlinks: bool = True) -> int:
        try:
            return self.stat(path, follow_symlinks=follow_symlinks).st_mode
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return 0

    def exists(self, path: Path) -> bool:
        """Whether the path leads to something."""
        return self._mode(path) != 0

    def lexists(self, path: Path) -> bool:
        """Whether the name exists, be it a symbolic link that leads nowhere."""
        return self._mode(path, False) != 0

    def isdir(self, path: Path) -> bool:
        """Whether the path leads to a directory."""
        return modes.S_ISDIR(self._mode(path))

    def isfile(self, path: Path) -> bool:
        """Whether the path leads to a regular file."""
        return modes.S_ISREG(self._mode(path))

    def islink(self, path: Path) -> bool:
        """Whether the path is a symbolic link."""
        return modes.S_ISLNK(self._mode(path, False))

    def chmod(self, path: Path, mode: int, *, follow_symlinks: bool = True) -> None:
        """Sets the permission bits."""
        self._raw.chmod(path_bytes(path), mode, follow_symlinks)

    def chown(self, path: Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """Sets owner and group; -1 leaves one as it is."""
        owner, group = (None if value == -1 else value for value in (uid, gid))
        self._raw.chown(path_bytes(path), owner, group, follow_symlinks)

    def utime(
        self,
        path: Path,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets the times of access and change, in seconds or nanoseconds; by default to now."""
        if times is not None and ns is not None:
            raise ValueError("give times or ns, not both")
        if times is not None:
            ns = (int(times[0] * 1e9), int(times[1] * 1e9))
        self._raw.utime(path_bytes(path), ns, follow_symlinks)

    def truncate(self, path: Path, size: int) -> None:
        """Sets the length of a file."""
        self._raw.truncate(path_bytes(path), size)

    def getxattr(self, path: Path, name: Path, *, follow_symlinks: bool = True) -> bytes:
        """The value of an extended attribute."""
        return self._raw.getxattr(path_bytes(path), path_bytes(name), follow_symlinks)

    def setxattr(self, path: Path, name: Path, value: bytes, flags: int = 0, *, follow_symlinks: bool = True) -> None:
        """Sets an extended attribute; flags as in `os.setxattr`."""
        self._raw.setxattr(path_bytes(path), path_bytes(name), bytes(value), flags, follow_symlinks)

    def listxattr(self, path: Path = "/", *, follow_symlinks: bool = True) -> builtins.list[str]:
        """The names of the extended attributes."""
        return [os.fsdecode(name) for name in self._raw.listxattr(path_bytes(path), follow_symlinks)]

    def removexattr(self, path: Path, name: Path, *, follow_symlinks: bool = True) -> None:
        """Removes an extended attribute."""
        self._raw.removexattr(path_bytes(path), path_bytes(name), follow_symlinks)

    def statvfs(self) -> os.statvfs_result:
        """Space and inodes."""
        block, blocks, free, available, inodes, inodes_free, fsid = self._raw.statvfs()
        space, nodes = (block, block, blocks, free, available), (inodes, inodes_free, inodes_free)
        return os.statvfs_result((*space, *nodes, 0, 255, fsid))

    def info(self) -> dict[str, Any]:
        """Facts about a pool in this process, such as `mapping` and `durability`; empty for other volumes."""
        return self._raw.info()


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return os.fsdecode(value) if hasattr(value, "__fspath__") else str(value)


def open(address: Path, **options: object) -> Volume:
    """Opens the volume at `address`: the path of a pool, `tcp://HOST:PORT/EXPORT`, or `nvme:POOL.toml`.

    Options are those of a mount, such as `read_only=True`, `durability="fsync"`, `key="FILE"`, `timeout_ms=5000`. One
    that is unknown or has no meaning for the address is an `OSError` that names it.
    """
    pairs = [(name, _text(value)) for name, value in options.items()]
    return Volume(RawVolume.open(path_bytes(address), pairs), os.fsdecode(address))


def create(path: Path, size: int, *, mapping: str | None = None, data_checksum: bool = False) -> Volume:
    """Makes a pool of `size` bytes in a new or empty file and opens it.

    `mapping` is the structure that finds the pages of files: hashfs, cuckoo, radix, extent or leaf.
    """
    return Volume(RawVolume.create(path_bytes(path), size, mapping, data_checksum), os.fsdecode(path))
