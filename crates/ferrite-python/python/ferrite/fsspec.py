"""Ferrite for fsspec, and so for pandas, pyarrow, zarr, dask, torch and others.

    pandas.read_parquet("ferrite:///dev/shm/data.pool!/tables/one.parquet")
    fsspec.filesystem("ferrite", volume="/dev/shm/data.pool").ls("/tables")

A URL is `ferrite://VOLUME!/PATH`: the first `!/` ends the address of the volume. If `storage_options` has the volume,
the URL is `ferrite://PATH`. Further storage options are those of `ferrite.open`; `auto_mkdir=True` makes parents.

File systems of one process at one address with the same options share a volume. It is closed when the last is gone;
since fsspec keeps file systems for the next caller, that is when the process ends, or after
`FerriteFileSystem.clear_instance_cache()`.
"""

from __future__ import annotations

import os
import stat as modes
import threading
import weakref
from datetime import datetime, timezone
from typing import Any

from fsspec.spec import AbstractFileSystem

from . import _volume

_SEPARATOR = "!/"
_shared: weakref.WeakValueDictionary[tuple[Any, ...], _volume.Volume] = weakref.WeakValueDictionary()
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _volume_at(address: str, options: dict[str, Any]) -> _volume.Volume:
    key = (os.getpid(), address, *sorted((name, str(value)) for name, value in options.items()))
    with _lock:
        found = _shared.get(key)
        if found is None or found.closed:
            found = _shared[key] = _volume.open(address, **options)
        return found


class FerriteFileSystem(AbstractFileSystem):
    """The files of a volume. `volume` is its address, or a `ferrite.Volume`."""

    protocol = "ferrite"
    root_marker = "/"

    def __init__(self, volume: Any = None, auto_mkdir: bool = False, **options: Any) -> None:
        own = {name: options.pop(name) for name in _OF_FSSPEC if name in options}
        super().__init__(volume=volume, auto_mkdir=auto_mkdir, **own, **options)
        if volume is None:
            raise ValueError("name the volume: ferrite://VOLUME!/PATH, or the storage option `volume`")
        self.auto_mkdir = auto_mkdir
        if isinstance(volume, _volume.Volume):
            self.volume = volume
        else:
            self.volume = _volume_at(os.fsdecode(volume), options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fsdecode(path)
        if path.startswith("ferrite://"):
            path = path.removeprefix("ferrite://")
            address, separator, inner = path.partition(_SEPARATOR)
            path = inner if separator else path
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        address, separator, _ = path.removeprefix("ferrite://").partition(_SEPARATOR)
        return {"volume": address} if separator else {}

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return f"ferrite://{self.volume.address}!{self._strip_protocol(name)}"

    def _described(self, path: str, found: os.stat_result) -> dict[str, Any]:
        kinds = {modes.S_IFDIR: "directory", modes.S_IFREG: "file", modes.S_IFLNK: "link"}
        return {
            "name": path,
            "size": found.st_size,
            "type": kinds.get(modes.S_IFMT(found.st_mode), "other"),
            "created": found.st_ctime,
            "mtime": found.st_mtime,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "islink": False,
        }

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """The attributes of a file; of a link, those of its target."""
        path = self._strip_protocol(path)
        found = self.volume.lstat(path)
        if not modes.S_ISLNK(found.st_mode):
            return self._described(path, found)
        try:
            described = self._described(path, self.volume.stat(path))
        except OSError:
            described = self._described(path, found)
        return described | {"islink": True, "destination": self.volume.readlink(path)}

    def ls(self, path: str, detail: bool = False, **_: Any) -> list[Any]:
        """The entries of a directory, or the file itself."""
        path = self._strip_protocol(path)
        if not self.volume.isdir(path):
            described = self.info(path)
            return [described] if detail else [path]
        if not detail:
            return [os.path.join(path, name) for name in self.volume.listdir(path)]
        found = []
        for entry in self.volume.scandir(path, with_stat=True):
            try:
                plain = not entry.is_symlink()
                found.append(self._described(entry.path, entry.stat()) if plain else self.info(entry.path))
            except FileNotFoundError:
                pass  # Removed meanwhile.
        return found

    def _make_parent(self, path: str) -> None:
        if self.auto_mkdir:
            self.volume.makedirs(self._parent(path) or "/", exist_ok=True)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Makes a directory."""
        path = self._strip_protocol(path)
        if create_parents:
            self.volume.makedirs(path)
        else:
            self.volume.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory and all that lead to it."""
        path = self._strip_protocol(path)
        if path == "/" and exist_ok:
            return
        self.volume.makedirs(path, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        self.volume.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        """Removes a file."""
        self.volume.remove(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, and with `recursive` directories and all below them."""
        for one in [path] if isinstance(path, (str, os.PathLike)) else path:
            one = self._strip_protocol(one)
            if "*" in one or maxdepth is not None:
                super().rm(one, recursive, maxdepth)
            elif not self.volume.isdir(one) or self.volume.islink(one):
                self.volume.remove(one)
            elif recursive:
                self.volume.rmtree(one)
            else:
                self.volume.rmdir(one)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copies a file, or makes a directory like it."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parent(path2)
        if self.volume.isdir(path1):
            self.volume.makedirs(path2, exist_ok=True)
            return
        self.volume.copy(path1, path2)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Renames, atomically where no pattern is used."""
        if isinstance(path1, str) and isinstance(path2, str) and "*" not in path1 and maxdepth is None:
            old, new = self._strip_protocol(path1), self._strip_protocol(path2)
            if self.volume.isdir(new) and not self.volume.isdir(old):
                new = os.path.join(new, os.path.basename(old))
            self._make_parent(new)
            self.volume.rename(old, new)
            return
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **_: Any,
    ) -> Any:
        if not autocommit:
            raise NotImplementedError("Ferrite has no transactions of fsspec; write a new file and rename it")
        path = self._strip_protocol(path)
        if "r" not in mode:
            self._make_parent(path)
        return self.volume.open(path, mode, block_size if block_size and block_size > 1 else -1)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a file, or a range of them; negative bounds count from the end."""
        with self.volume.open(self._strip_protocol(path), "rb", 0) as file:
            size = file.stat().st_size
            first, last, _step = slice(start, end).indices(size)
            return file.pread(max(last - first, 0), first)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        """Writes a whole file."""
        path = self._strip_protocol(path)
        self._make_parent(path)
        with self.volume.open(path, "xb" if mode == "create" else "wb", 0) as file:
            _write_all(file, memoryview(value).cast("B"))

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        """Creates a file, empties it, or with `truncate=False` sets its times."""
        path = self._strip_protocol(path)
        self._make_parent(path)
        with self.volume.open(path, "wb" if truncate else "ab", 0):
            pass
        self.volume.utime(path)

    def created(self, path: str) -> datetime:
        """When the attributes were changed last."""
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path: str) -> datetime:
        """When the content was changed last."""
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)


#: Options of fsspec's base class, which no volume knows.
_OF_FSSPEC = ("use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "asynchronous", "loop")


def _write_all(file: Any, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]
