#!/bin/sh
# Tests the Python package on this machine's Python: builds the extension by cargo, puts it beside the package's sources
# in a temporary folder, and runs pytest there.
#
#     scripts/test-python.sh [PYTEST ARGUMENT...]
#
# FERRITE_BIN names the program `ferrite`, for tests with a server. Wheels are kept in ~/.cache/ferrite/python. Without
# them, or without Python 3.11, tests are skipped, aloud. FERRITE_PYTHON_WHEELS names further ones; `make soak` adds
# torch, which is too large for every run.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
package=$root/crates/ferrite-python
python=${PYTHON:-python3}
target=${CARGO_TARGET_DIR:-$root/target}
venv=${XDG_CACHE_HOME:-$HOME/.cache}/ferrite/python

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "SKIPPED: tests of the Python package need Python 3.11"
    exit 0
fi
(cd "$root" && cargo build --quiet -p ferrite-python --features ferrite-python/postgres)

# Their versions are fixed, so that a release of theirs does not fail a test here.
wheels="fsspec==2026.9.0 numpy==2.4.6 pytest==9.2.0"
if ! { [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"; } ||
    ! "$venv/bin/python" -c 'import fsspec, numpy, pytest' 2>/dev/null &&
    ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $wheels; then
    echo "SKIPPED: tests of the Python package need the wheels fsspec, numpy and pytest, and a module venv"
    exit 0
fi
# The libraries whose users read and write volumes.
for wheel in pandas==3.1.1 pyarrow==26.0.1 zarr==3.1.6 xarray==2026.9.0 dask==2026.8.0 datasets==5.2.0 \
    safetensors==0.8.0 ${FERRITE_PYTHON_WHEELS:-}; do
    "$venv/bin/python" -c 'import importlib.metadata as known, sys
name, _, version = sys.argv[1].partition("==")
sys.exit(known.version(name) != (version or known.version(name)))' "$wheel" 2>/dev/null ||
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel" ||
        echo "SKIPPED: the wheel $wheel cannot be had"
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$package/python/ferrite" "$folder/ferrite"
cp "$target/debug/lib_ferrite.so" "$folder/ferrite/_ferrite.abi3.so"
# The entry point, which pip would have written.
mkdir "$folder/ferrite-0.dist-info"
printf 'Metadata-Version: 2.1\nName: ferrite\nVersion: 0\n' >"$folder/ferrite-0.dist-info/METADATA"
printf '[fsspec.specs]\nferrite = ferrite.fsspec:FerriteFileSystem\n' >"$folder/ferrite-0.dist-info/entry_points.txt"
PYTHONPATH=$folder PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m pytest -q -rs --disable-warnings -p no:cacheprovider \
    "$package/tests" "$@"
