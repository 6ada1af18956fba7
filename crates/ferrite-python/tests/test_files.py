"""Files: what is written is read, through every way that Python has, and nothing else."""

import io
import os
import random
import threading

import pytest

import ferrite

SEED = int(os.environ.get("FERRITE_SEED", "7"))


def test_positions_and_offsets(volume):
    with volume.open("/f", "w+b", 0) as file:
        assert file.write(b"0123456789") == 10 and file.tell() == 10
        assert file.pwrite(memoryview(b"AB"), 4) == 2 and file.tell() == 10
        assert file.seek(-6, os.SEEK_END) == 4 and file.read(3) == b"AB6"
        assert file.pread(100, 8) == b"89" and file.pread(5, 100) == b""
        space = bytearray(b"." * 6)
        assert file.preadinto(memoryview(space)[1:4], 3) == 3 and space == b".3AB.."
        file.seek(7)
        assert file.readinto(space) == 3 and space == b"789B.."
        assert file.append(b"end") == 10 and file.readall() == b"end"
        assert file.truncate(4) == 4 and file.stat().st_size == 4
        file.fallocate(0, 2, "punch")
        assert file.pread(9, 0) == b"\0\x0023"
        file.fsync()
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()


def test_buffered_and_text(volume):
    with volume.open("/text", "w", encoding="utf-8") as file:
        print("Grüße", file=file)
    with volume.open("/text", "a") as file:
        assert file.tell() == 8
        file.write("zwei\n")
    with volume.open("/text", "r") as file:
        assert list(file) == ["Grüße\n", "zwei\n"]
    assert isinstance(volume.open("/text"), io.BufferedReader)
    with volume.open("/text", "r+b") as file:
        assert isinstance(file, io.BufferedRandom)
        file.seek(8)
        file.write(b"drei")
    assert volume.open("/text", "rb").read().endswith(b"drei\n")
    with pytest.raises(FileExistsError) as caught:
        volume.open("/text", "x")
    assert caught.value.filename == "/text"
    for mode in ["", "b", "rw", "rr", "rbt", "q", "r+bz"]:
        with pytest.raises(ValueError):
            volume.open("/text", mode)


def test_random_operations_agree_with_a_bytearray(volume):
    print("FERRITE_SEED", SEED)
    rng = random.Random(SEED)
    model = bytearray()
    with volume.open("/model", "w+b", 0) as file:
        for _ in range(300):
            offset, size = rng.randrange(100_000), rng.randrange(20_000)
            kind = rng.randrange(4)
            if kind == 0:
                data = rng.randbytes(size)
                assert file.pwrite(data, offset) == size
                if size:
                    model.extend(bytes(max(0, offset + size - len(model))))
                    model[offset : offset + size] = data
            elif kind == 1:
                data = rng.randbytes(size)
                assert file.append(bytearray(data)) == len(model)
                model += data
                if len(model) > 150_000:
                    file.truncate(50_000)
                    del model[50_000:]
            elif kind == 2:
                file.truncate(offset)
                model[offset:] = bytes(max(0, offset - len(model)))
            else:
                assert file.pread(size, offset) == model[offset : offset + size]
        assert file.pread(1 << 20, 0) == model


def test_hostile_arguments(volume):
    with volume.open("/f", "w+b", 0) as file:
        file.write(b"x" * 100)
        for call in [
            lambda: file.pread(1, -1),
            lambda: file.pread(-1, 0),
            lambda: file.pwrite(b"x", -1),
            lambda: file.seek(-1),
            lambda: file.seek(-101, os.SEEK_END),
            lambda: file.truncate(-1),
        ]:
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == 22 and caught.value.filename == "/f"
        for huge in [1 << 63, 1 << 200]:
            with pytest.raises(OverflowError):
                file.pread(1, huge)
        assert file.pread((1 << 63) - 1, 0) == b"x" * 100, "memory for what there is"
        assert file.pread(10, (1 << 63) - 1) == b""
        with pytest.raises(OSError):
            file.pwrite(b"x", (1 << 63) - 1)
        with pytest.raises(OSError):
            file.truncate((1 << 63) - 1)
        for bad in [b"read-only", memoryview(b"read-only"), memoryview(bytearray(10))[::2], "text", None, 3]:
            with pytest.raises((TypeError, BufferError)):
                file.preadinto(bad, 0)
        for bad in [memoryview(bytearray(10))[::2], "text", None]:
            with pytest.raises((TypeError, BufferError)):
                file.write(bad)
        assert file.readinto(bytearray()) == 0 and file.write(b"") == 0
        gone = memoryview(bytearray(4))
        gone.release()
        with pytest.raises(ValueError):
            file.preadinto(gone, 0)
        with pytest.raises(ValueError):
            file.seek(0, 9)
    for call in [lambda: file.pread(1, 0), lambda: file.write(b"x"), file.tell, file.lock, file.fsync, file.readable]:
        with pytest.raises(ValueError):
            call()
    file.close()
    for path in ["/a\0b", b"\0"]:
        with pytest.raises(ValueError):
            volume.open(path)
        with pytest.raises(ValueError):
            volume.mkdir(path)
    with pytest.raises(OSError):
        volume.open("/" + "n" * 300, "wb")
    with volume.open("/f", "rb", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.write(b"x")
    with volume.open("/f", "wb", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.read()


def test_a_buffer_in_use_cannot_be_resized_and_others_run(pool):
    size = 24 << 20
    with pool.open("/big", "w+b", 0) as file:
        file.write(bytes(size))
        space, refused, done = bytearray(size), 0, threading.Event()

        def read():
            for _ in range(40):
                assert file.preadinto(space, 0) == size
            done.set()

        thread = threading.Thread(target=read)
        thread.start()
        steps = 0
        while not done.is_set():
            steps += 1
            try:
                space.append(0)
                space.pop()
            except BufferError:
                refused += 1
        thread.join()
    # With the interpreter lock held, this thread would only run between two calls, when nothing is refused.
    assert steps > 100 and refused > 0


def test_eight_threads_append_whole_records(volume):
    def work(number):
        with volume.open("/log", "ab", 0) as file:
            for _ in range(50):
                file.write(bytes([number]) * 100)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = volume.open("/log").read()
    assert len(content) == 8 * 50 * 100
    assert all(len(set(content[at : at + 100])) == 1 for at in range(0, len(content), 100))


def test_locks(volume):
    with volume.open("/l", "w+b", 0) as one, volume.open("/l", "r+b", 0) as two:
        with one.locked():
            for options in [{"blocking": False}, {"timeout": 0.1}]:
                with pytest.raises(BlockingIOError):
                    two.lock(**options)
        two.lock(exclusive=False)
        one.lock(exclusive=False)
        one.lock_range(0, 10)
        with pytest.raises(BlockingIOError):
            two.lock_range(5, 10, blocking=False)
        two.lock_range(10, 10)
        one.unlock_range(0, 10)
        two.lock_range(0, 10)
        for bad in [(-1, 1), (0, -1), ((1 << 63) - 1, 9)]:
            with pytest.raises(OSError):
                one.lock_range(*bad)
        with pytest.raises(ValueError):
            one.lock(timeout=-1)


def test_a_closed_volume(folder):
    volume = ferrite.create(folder / "p", 16 << 20)
    file = volume.open("/f", "w+b", 0)
    volume.close()
    volume.close()
    with pytest.raises(ValueError):
        volume.listdir()
    with pytest.raises(OSError):
        file.write(b"x")
    file.close()
    with ferrite.open(folder / "p") as volume:
        assert volume.info()["was_clean"]
