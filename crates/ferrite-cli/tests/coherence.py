"""Direct writes, truncations and mappings beside buffered reads of one file: what was written is what everybody reads.

coherence.py FILE aio|sync|mmap|truncate ROUNDS    prints how often somebody read something old afterwards, and once what
"""
import ctypes, mmap, os, platform, struct, sys, threading

FILE, KIND, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SIZE = 1 << 20
PAGE = 4096

libc = ctypes.CDLL(None, use_errno=True)
SETUP, SUBMIT, GETEVENTS = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}[platform.machine()]


def call(*arguments):
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


context = ctypes.c_ulong(0)
call(SETUP, 64, ctypes.byref(context))
# Memory on a page boundary, as direct writes want it.
buffer = mmap.mmap(-1, SIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def aio_write(fd):
    # struct iocb: data, key, rw flags, opcode 1 (pwrite), priority, fd, buffer, bytes, offset, and what is not used.
    control = ctypes.create_string_buffer(struct.pack("<QIIHHIQQqQII", 0, 0, 0, 1, 0, fd, address, SIZE, 0, 0, 0, 0))
    pointer = ctypes.c_void_p(ctypes.addressof(control))
    call(SUBMIT, context.value, 1, ctypes.byref(pointer))
    event = ctypes.create_string_buffer(32)
    call(GETEVENTS, context.value, 1, 1, event, None)
    written = struct.unpack("<QQqq", event.raw)[2]
    assert written == SIZE, written


def write(fd):
    aio_write(fd) if KIND != "sync" else os.pwrite(fd, buffer, 0)


with open(FILE, "wb") as new:
    new.write(bytes(SIZE))
buffered = os.open(FILE, os.O_RDWR)
direct = os.open(FILE, os.O_RDWR | os.O_DIRECT)
mapped = mmap.mmap(buffered, SIZE, prot=mmap.PROT_READ)

# Readers are processes: the threads of this interpreter take turns.
readers = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        while True:
            for at in range(0, SIZE, PAGE):
                if KIND == "mmap":
                    mapped[at]
                else:
                    os.pread(buffered, PAGE, at)
            if os.getppid() == 1:
                os._exit(0)
    readers.append(pid)

stale = 0
try:
    for number in range(1, ROUNDS + 1):
        new = bytes([number % 255 + 1]) * SIZE
        buffer[:] = new
        expected = new
        if KIND == "truncate":
            # Cut while the write is under way: the file ends at the cut, or holds all that was written.
            cut = threading.Thread(target=os.ftruncate, args=(buffered, SIZE // 2))
            cut.start()
            write(direct)
            cut.join()
            # What lies there now, past the cache.
            os.preadv(direct, [buffer], 0)
            expected = bytes(buffer[: os.fstat(direct).st_size])
        else:
            write(direct)
        found = mapped[:] if KIND == "mmap" else os.pread(buffered, SIZE, 0)
        if found != expected:
            stale += 1
            if stale == 1:
                wrong = [at // PAGE for at in range(0, SIZE, PAGE) if found[at : at + PAGE] != expected[at : at + PAGE]]
                print(f"round {number}: {len(wrong)} pages, first {wrong[:1]}", file=sys.stderr)
        if KIND == "truncate":
            os.ftruncate(buffered, SIZE)
finally:
    for pid in readers:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
print(stale)
