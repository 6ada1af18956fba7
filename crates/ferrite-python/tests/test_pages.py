"""The blocks of Python in README.md and docs/python.md run."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize("page, count", [("README.md", 1), ("docs/python.md", 4)])
def test_blocks(page, count, folder, monkeypatch):
    if page != "README.md":
        pytest.importorskip("fsspec", reason="the wheel fsspec is not installed")
    monkeypatch.chdir(folder)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    assert len(blocks) == count
    names = {}
    for block in blocks:
        # The same, elsewhere and smaller.
        exec(block.replace("/dev/shm/", f"{folder}/").replace("1 << 30", "64 << 20"), names)
    assert (folder / "data.pool").exists()
