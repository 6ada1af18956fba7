"""Volumes for the tests: each test that takes `volume` runs on a pool in memory and on an export of a server."""

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import pytest

import ferrite

SERVER = os.environ.get("FERRITE_BIN")


@pytest.fixture
def folder():
    """A folder in memory."""
    found = tempfile.mkdtemp(prefix="ferrite-python-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    yield pathlib.Path(found)
    shutil.rmtree(found)


def serve(pool):
    """A server of a pool, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    server = subprocess.Popen(
        [SERVER, "serve", str(pool), "--listen", address, "--no-root-squash"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server, address
        except OSError:
            assert server.poll() is None, "the server has ended"
            time.sleep(0.05)
    server.kill()
    raise AssertionError("the server does not listen")


@pytest.fixture
def server(folder):
    """A server of a fresh pool, and its address."""
    if not SERVER:
        pytest.skip("FERRITE_BIN names no program `ferrite`, so there is no server")
    ferrite.create(folder / "served.pool", 64 << 20).close()
    process, address = serve(folder / "served.pool")
    yield process, address
    process.kill()
    process.wait()


@pytest.fixture
def devices(folder):
    """The address of a fresh pool on devices, which are files."""
    if not SERVER:
        pytest.skip("FERRITE_BIN names no program `ferrite`, so there is no pool on devices")
    make = [SERVER, "mkfs", "nvme:pool.toml", "--meta", "meta", "--data", "a.data", "--size", "64M"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    return f"nvme:{folder}/pool.toml"


@pytest.fixture(params=["pool", "server", "devices"])
def volume(request, folder):
    """An empty volume."""
    if request.param == "pool":
        found = ferrite.create(folder / "data.pool", 64 << 20)
    elif request.param == "devices":
        found = ferrite.open(request.getfixturevalue("devices"))
    else:
        found = ferrite.open(request.getfixturevalue("server")[1])
    yield found
    found.close()


@pytest.fixture
def pool(folder):
    """An empty pool in memory."""
    with ferrite.create(folder / "data.pool", 64 << 20) as found:
        yield found
