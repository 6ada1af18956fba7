"""Libraries for data and training, as their users use them with volumes; each is skipped where it is not installed.

FERRITE_SOAK=1 makes the checkpoint as large as a small model's, 1 GiB.
"""

import os
import subprocess
import sys

import pytest

import ferrite

fsspec = pytest.importorskip("fsspec", reason="the wheel fsspec is not installed")

import ferrite.fsspec  # noqa: E402

MAKE_PARENTS = {"auto_mkdir": True}


def wheel(name):
    return pytest.importorskip(name, reason=f"the wheel {name} is not installed")


@pytest.fixture
def url(folder):
    """The URL of the root of a pool."""
    ferrite.create(folder / "u.pool", 256 << 20).close()
    yield f"ferrite://{folder}/u.pool!/"
    ferrite.fsspec.FerriteFileSystem.clear_instance_cache()


def test_pyarrow_datasets_with_partitions(url):
    dataset, pyarrow = wheel("pyarrow.dataset"), wheel("pyarrow")
    fs, _ = fsspec.url_to_fs(url)
    table = pyarrow.table({"year": [2025, 2025, 2026], "value": [1.0, 2.0, 3.0]})
    dataset.write_dataset(table, "/table", format="parquet", partitioning=["year"], filesystem=fs)
    found = dataset.dataset("/table", partitioning=["year"], filesystem=fs)
    assert found.to_table(filter=dataset.field("year") == 2025)["value"].to_pylist() == [1.0, 2.0]


def test_xarray_in_zarr_and_chunks_in_dask(url):
    xarray, numpy = wheel("xarray"), wheel("numpy")
    wheel("zarr")
    wheel("dask")
    heat = xarray.DataArray(numpy.arange(10_000.0).reshape(100, 100), dims=("x", "y"), name="heat")
    heat.to_dataset().to_zarr(url + "heat.zarr", storage_options=MAKE_PARENTS, encoding={"heat": {"chunks": (25, 25)}})
    chunked = xarray.open_zarr(url + "heat.zarr", storage_options=MAKE_PARENTS, chunks={})
    assert len(chunked.heat.chunks[0]) == 4
    assert float(chunked.heat.sum().compute(scheduler="threads")) == 9999 * 5000


def test_dask_frames(url):
    frames, pandas = wheel("dask.dataframe"), wheel("pandas")
    wheel("pyarrow")
    frame = frames.from_pandas(pandas.DataFrame({"n": range(1000)}), npartitions=4)
    frame.to_parquet(url + "frame", storage_options=MAKE_PARENTS)
    again = frames.read_parquet(url + "frame")
    assert again.npartitions >= 4 and again.n.sum().compute(scheduler="threads") == 499_500


def test_datasets(url):
    datasets = wheel("datasets")
    rows = datasets.Dataset.from_dict({"text": [f"line {n}" for n in range(1000)]})
    rows.save_to_disk(url + "rows")
    again = datasets.load_from_disk(url + "rows")
    assert len(again) == 1000 and again[999]["text"] == "line 999"


def test_torch_saves_and_loads_a_checkpoint(folder):
    torch = wheel("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint", reason="this torch has no checkpoints")
    over = "torch.distributed.checkpoint.fsspec_filesystem"
    storage = pytest.importorskip(over, reason="this torch has no checkpoints over fsspec")
    size = 1 << 30 if os.environ.get("FERRITE_SOAK") else 32 << 20
    ferrite.create(folder / "model.pool", 3 * size + (64 << 20)).close()
    url = f"ferrite://{folder}/model.pool!/checkpoints/1"
    layers = 8
    state = {f"layer{n}": torch.randn(size // layers // 4) for n in range(layers)}
    checkpoint.save(state, storage_writer=storage.FsspecWriter(url, auto_mkdir=True), no_dist=True)
    again = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    checkpoint.load(again, storage_reader=storage.FsspecReader(url), no_dist=True)
    assert all(torch.equal(state[name], again[name]) for name in state)
    # The plain way, through a file of the volume.
    with fsspec.open(f"ferrite://{folder}/model.pool!/plain.pt", "wb") as file:
        torch.save({"layer0": state["layer0"]}, file)
    with fsspec.open(f"ferrite://{folder}/model.pool!/plain.pt", "rb") as file:
        assert torch.equal(torch.load(file)["layer0"], state["layer0"])
    ferrite.fsspec.FerriteFileSystem.clear_instance_cache()


# A program of its own, since workers import the module of their data set.
LOADER = '''
import sys, torch, ferrite

class Samples(torch.utils.data.Dataset):
    """Samples of 4 KiB, one behind the other in one file."""

    def __init__(self, address):
        self.address, self.file = address, None

    def __len__(self):
        return 512

    def __getitem__(self, number):
        if self.file is None:  # in the worker, which opens the volume anew
            self.file = ferrite.open(self.address).open("/samples", "rb", 0)
        return torch.frombuffer(bytearray(self.file.pread(4096, number * 4096)), dtype=torch.uint8)

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        Samples(sys.argv[1]), batch_size=32, shuffle=True, num_workers=2, multiprocessing_context="spawn"
    )
    seen = sorted(int(sample[0]) + 256 * int(sample[1]) for batch in loader for sample in batch)
    assert seen == list(range(512)), seen
'''


def test_torch_loads_samples_in_workers(server, folder):
    wheel("torch")
    address = server[1]
    with ferrite.open(address) as volume, volume.open("/samples", "wb") as file:
        for number in range(512):
            file.write(number.to_bytes(2, "little") * 2048)
    (folder / "loader.py").write_text(LOADER)
    said = subprocess.run([sys.executable, folder / "loader.py", address], capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
