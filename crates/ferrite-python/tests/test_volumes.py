"""Volumes: directories, attributes, errors, and processes that fork, end early or lose their server."""

import asyncio
import errno
import os
import subprocess
import sys
import textwrap
import time

import pytest

import ferrite
import ferrite.aio


def test_directories(volume):
    volume.makedirs("/a/b/c")
    volume.makedirs("a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        volume.makedirs("/a/b/c")
    for name in ["one", "zwei ü", b"raw \xff"]:
        volume.open(os.path.join(b"/a", os.fsencode(name)), "wb").close()
    assert sorted(volume.listdir("/a")) == ["b", "one", "raw \udcff", "zwei ü"]
    volume.symlink("one", "/a/link")
    volume.link("/a/one", "/a/hard")
    assert volume.readlink("/a/link") == "one" and volume.stat("/a/hard").st_nlink == 2
    entries = {entry.name: entry for entry in volume.scandir("/a", with_stat=True)}
    assert entries["b"].is_dir() and entries["link"].is_symlink() and entries["link"].is_file()
    assert entries["one"].stat().st_ino == entries["hard"].inode() == volume.stat("/a/one").st_ino
    walked = [(top, sorted(dirs), len(files)) for top, dirs, files in volume.walk("/a")]
    assert walked == [("/a", ["b"], 5), ("/a/b", ["c"], 0), ("/a/b/c", [], 0)]
    with pytest.raises(OSError) as caught:
        volume.rmdir("/a")
    assert caught.value.errno == errno.ENOTEMPTY
    volume.clone("/a", "/clone")
    assert sorted(volume.listdir("/clone")) == sorted(volume.listdir("/a"))
    with pytest.raises(FileExistsError):
        volume.clone("/a", "/clone")
    volume.rmtree("/clone")
    with volume.open("/a/one", "wb") as file:
        file.write(b"x" * 100_000)
    assert volume.copy("/a/one", "/copy") == 100_000
    assert volume.open("/copy").read() == b"x" * 100_000
    volume.remove("/copy")
    with volume.tempfile("/a") as file:
        file.write(b"all of it")
        assert len(volume.listdir("/a")) == 6
        file.link("/a/whole")
    assert volume.open("/a/whole").read() == b"all of it"
    volume.remove("/a/whole")
    volume.rename("/a/one", "/two")
    with pytest.raises(FileExistsError) as caught:
        volume.rename_new("/two", "/a/hard")
    assert (caught.value.filename, caught.value.filename2) == ("/two", "/a/hard")
    assert not volume.exists("/a/link") and volume.lexists("/a/link")
    volume.rmtree("/a")
    assert volume.listdir() == ["two"]


def test_attributes(volume):
    volume.open("/f", "wb", permissions=0o600).close()
    assert volume.stat("/f").st_mode == 0o100600
    volume.chmod("/f", 0o644)
    volume.chown("/f", 1, -1)
    volume.utime("/f", ns=(1_000_000_001, -5))
    found = volume.stat("/f")
    assert (found.st_mode, found.st_uid, found.st_gid) == (0o100644, 1, 0)
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_000_000_001, -5)
    before = time.time_ns() - 1_000_000_000
    volume.utime("/f")
    assert volume.stat("/f").st_mtime_ns >= before
    volume.setxattr("/f", "user.k", b"v\0w")
    assert volume.getxattr("/f", "user.k") == b"v\0w" and volume.listxattr("/f") == ["user.k"]
    with pytest.raises(FileExistsError):
        volume.setxattr("/f", "user.k", b"", os.XATTR_CREATE)
    volume.removexattr("/f", "user.k")
    with pytest.raises(OSError) as caught:
        volume.getxattr("/f", "user.k")
    assert caught.value.errno == errno.ENODATA and caught.value.filename == "/f"
    space = volume.statvfs()
    assert space.f_bsize in (4096, 1 << 20) and 0 < space.f_bavail <= space.f_blocks


def test_errors_name_the_cause(folder):
    with pytest.raises(FileNotFoundError) as caught:
        ferrite.open(folder / "none")
    assert "none" in str(caught.value)
    for address, options, text in [
        (folder / "p", {"nonsense": 1}, "nonsense"),
        (folder / "p", {"durability": "maybe"}, "durability"),
        (folder / "p", {"timeout_ms": 5}, "timeout"),
        ("gopher://x", {}, "gopher"),
    ]:
        if not (folder / "p").exists():
            ferrite.create(folder / "p", 16 << 20, mapping="leaf").close()
        with pytest.raises(OSError) as caught:
            ferrite.open(address, **options)
        assert text in str(caught.value)
    for size in [-1, 0, 1, (1 << 63) - 1]:
        with pytest.raises(OSError):
            ferrite.create(folder / f"size{size}", size)
    with pytest.raises(ValueError, match="hashfs"):
        ferrite.create(folder / "q", 16 << 20, mapping="none")
    with ferrite.open(folder / "p", read_only=True) as volume:
        assert volume.info()["mapping"] == "leaf"
        with pytest.raises(OSError) as caught:
            volume.mkdir("/d")
        assert caught.value.errno == errno.EROFS


def python(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_forked_child_gets_an_error(pool):
    file = pool.open("/f", "w+b", 0)
    file.write(b"parent")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in [lambda: pool.listdir(), lambda: file.pread(1, 0), lambda: file.write(b"x"), pool.close]:
            try:
                call()
                said.append("nothing")
            except OSError as error:
                said.append(f"{error.errno} {error.strerror}")
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 1 << 16).decode().split("\n")
    os.waitpid(child, 0)
    assert len(said) == 4 and all("fork" in line for line in said), said
    assert file.pread(9, 0) == b"parent"
    file.close()


def test_interpreter_exit_with_open_files(folder):
    ended = python(
        """
        import ferrite, sys, threading
        volume = ferrite.create(sys.argv[1], 32 << 20)
        buffered = volume.open("/buffered", "wb")
        buffered.write(b"kept")
        raw = volume.open("/raw", "w+b", 0)
        raw.write(b"kept")
        space = bytearray(1 << 20)
        def work():
            while True:
                raw.preadinto(space, 0)
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        text = volume.open("/text", "w")
        text.write("kept")
        print("end")
        """,
        folder / "p",
    )
    assert ended.returncode == 0 and ended.stdout == "end\n", ended
    with ferrite.open(folder / "p") as volume:
        assert volume.info()["was_clean"]
        assert all(volume.open(name).read() == b"kept" for name in ["/buffered", "/text", "/raw"])


def test_a_forgotten_volume_is_closed(folder):
    ferrite.create(folder / "p", 16 << 20).mkdir("/d")
    with ferrite.open(folder / "p") as volume:
        assert volume.info()["was_clean"] and volume.listdir() == ["d"]


def test_an_exception_leaves_nothing_open(folder):
    with pytest.raises(ZeroDivisionError):
        with ferrite.create(folder / "p", 16 << 20) as volume, volume.open("/f", "w") as file:
            file.write("kept")
            1 / 0
    with ferrite.open(folder / "p") as volume:
        assert volume.open("/f").read() == b"kept"


def test_a_server_that_is_killed(server):
    process, address = server
    volume = ferrite.open(address, timeout_ms=1500)
    file = volume.open("/f", "w+b", 0)
    file.write(b"x")
    process.kill()
    process.wait()
    begin = time.monotonic()
    with pytest.raises(OSError) as caught:
        file.pwrite(b"y", 0)
        file.fsync()
    assert caught.value.errno and time.monotonic() - begin < 20
    file.close()
    try:
        volume.close()
    except OSError:
        pass


def test_coroutines(folder):
    ferrite.create(folder / "p", 32 << 20).close()

    async def one(volume, number):
        async with await volume.open(f"/{number}", "w+b", 0) as file:
            await file.pwrite(b"%d" % number, 0)
            return await file.pread(10, 0)

    async def main():
        async with await ferrite.aio.open(folder / "p") as volume:
            found = await asyncio.gather(*(one(volume, number) for number in range(200)))
            assert found == [b"%d" % number for number in range(200)]
            assert len(await volume.listdir()) == 200
            with pytest.raises(FileNotFoundError):
                await volume.open("/none")

    asyncio.run(main())
