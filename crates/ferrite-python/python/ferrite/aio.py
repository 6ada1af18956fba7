"""Volumes and files for `asyncio`: calls run in a bounded number of threads.

    async with await ferrite.aio.open("/dev/shm/pool") as volume:
        file = await volume.open("/data", buffering=0)
        text = await file.pread(4096, 0)

Every method of a `ferrite.Volume` or a file becomes a coroutine function; `wrap` does the same for other objects.
A call that has begun runs to its end, even if its task is cancelled.
"""

from __future__ import annotations

import asyncio
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

from . import _volume
from ._types import Path

#: Threads that work for all event loops of the process; more calls wait.
THREADS = min(32, 4 * (os.cpu_count() or 1))


@functools.cache
def _executor(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, f"ferrite-aio-{pid}")


async def run(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Calls `function` in one of the threads."""
    call = functools.partial(function, *arguments, **named)
    # A forked child has none of its parent's threads.
    return await asyncio.get_running_loop().run_in_executor(_executor(os.getpid()), call)


class wrap:
    """An object whose methods are coroutine functions."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        async def call(*arguments: Any, **named: Any) -> Any:
            result = await run(found, *arguments, **named)
            return wrap(result) if name == "open" else result

        return call

    async def __aenter__(self) -> wrap:
        return self

    async def __aexit__(self, *_: object) -> None:
        await run(self.inner.close)


async def open(address: Path, **options: object) -> wrap:
    """As `ferrite.open`; the volume's methods are coroutine functions."""
    return wrap(await run(_volume.open, address, **options))
