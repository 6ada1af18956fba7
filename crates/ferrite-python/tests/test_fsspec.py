"""fsspec: its own suite, URLs, and the libraries that use it, each skipped where it is not installed."""

import posixpath
import threading

import pytest

import ferrite

fsspec = pytest.importorskip("fsspec", reason="the wheel fsspec is not installed")

from fsspec.tests import abstract  # noqa: E402

import ferrite.fsspec  # noqa: E402


class Fixtures(abstract.AbstractFixtures):
    """What fsspec's suite needs to know."""

    @pytest.fixture
    def fs(self, pool):
        return fsspec.filesystem("ferrite", volume=pool, auto_mkdir=True, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self):
        return "/"

    @pytest.fixture
    def fs_join(self):
        return posixpath.join


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


@pytest.fixture
def url(folder):
    """The URL of the root of a pool."""
    ferrite.create(folder / "u.pool", 128 << 20).close()
    yield f"ferrite://{folder}/u.pool!/"
    ferrite.fsspec.FerriteFileSystem.clear_instance_cache()


def test_urls(url, folder):
    with fsspec.open(url + "d/x.txt", "w", auto_mkdir=True) as file:
        file.write("text")
    fs, path = fsspec.url_to_fs(url + "d/x.txt")
    assert path == "/d/x.txt" and fs.cat(path) == b"text" and fs.unstrip_protocol(path) == url + "d/x.txt"
    assert fs.cat_file(path, -3, -1) == b"ex"
    with fsspec.open("ferrite://d/x.txt", volume=str(folder / "u.pool")) as file:
        assert file.read() == b"text"
    assert fs.glob("/**/*.txt") == ["/d/x.txt"] and fs.du("/") == 4
    with pytest.raises(ValueError, match="VOLUME"):
        fsspec.filesystem("ferrite")
    with pytest.raises(FileNotFoundError):
        fs.info("/none")


def test_threads_share_a_volume(url):
    failures = []

    def work(number):
        try:
            with fsspec.open(f"{url}t{number}", "wb") as file:
                file.write(b"x")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(fsspec.url_to_fs(url)[0].ls("/")) == 8


def test_numpy(pool):
    numpy = pytest.importorskip("numpy", reason="the wheel numpy is not installed")
    array = numpy.arange(1 << 18, dtype="<f8").reshape(512, 512)
    with pool.open("/a.npy", "wb") as file:
        numpy.save(file, array)
    with pool.open("/a.npy") as file:
        assert (numpy.load(file) == array).all()
    space = numpy.empty_like(array)
    with pool.open("/raw", "w+b", 0) as file:
        assert file.pwrite(array, 0) == array.nbytes and file.preadinto(space, 0) == array.nbytes
    assert (space == array).all()


def test_pandas_and_parquet(url):
    pandas = pytest.importorskip("pandas", reason="the wheel pandas is not installed")
    pytest.importorskip("pyarrow", reason="the wheel pyarrow is not installed")
    frame = pandas.DataFrame({"n": range(10_000), "s": [str(n) for n in range(10_000)]})
    frame.to_parquet(url + "t.parquet")
    assert pandas.read_parquet(url + "t.parquet", columns=["n"]).n.sum() == frame.n.sum()
    frame.to_csv(url + "t.csv", index=False)
    assert len(pandas.read_csv(url + "t.csv")) == len(frame)


def test_zarr(url):
    zarr = pytest.importorskip("zarr", reason="the wheel zarr is not installed")
    options = {"auto_mkdir": True}
    array = zarr.create_array(url + "a.zarr", shape=(256, 256), chunks=(64, 64), dtype="i4", storage_options=options)
    array[:] = 7
    again = zarr.open_array(url + "a.zarr", mode="r", storage_options=options)
    assert int(again[:].sum()) == 7 * 256 * 256


def test_safetensors(pool):
    numpy = pytest.importorskip("numpy", reason="the wheel numpy is not installed")
    tensors = pytest.importorskip("safetensors.numpy", reason="the wheel safetensors is not installed")
    pool.open("/m", "wb", 0).write(tensors.save({"w": numpy.ones((64, 64), dtype="f4")}))
    assert tensors.load(pool.open("/m").read())["w"].sum() == 64 * 64
