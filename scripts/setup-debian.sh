#!/usr/bin/env bash
# Installs what Ferrite needs on Debian (12 or later): C and C++ toolchains, FUSE, libfabric for `fabric://`, RocksDB for
# the NVMe engine, LevelDB for the lab, and a Rust toolchain if none that is new enough is installed.
#
#   scripts/setup-debian.sh build     what is needed to build and mount
#   scripts/setup-debian.sh test      that, and the programs the tests run on a mount
#   scripts/setup-debian.sh pmem      what is needed to build and boot the guest of `make pmem`
#   scripts/setup-debian.sh rdma      the same for `make rdma`
#
# Prints nothing if everything is installed already. Needs root (or sudo) only to install.
set -euo pipefail

minimum_rust=1.90
build_packages=(gcc g++ libc6-dev libleveldb-dev libsnappy-dev librocksdb-dev libzstd-dev liblz4-dev libbz2-dev
    zlib1g-dev libfabric-dev make pkg-config fuse3 sqlite3 git ca-certificates)
test_packages=(libfuse3-dev fio stress-ng rsync attr acl tar python3)
pmem_packages=(qemu-system-x86 debootstrap cpio xz-utils e2fsprogs binutils)

packages=("${build_packages[@]}")
[ "${1:-build}" = test ] && packages+=("${test_packages[@]}")
[[ "${1:-build}" =~ ^(pmem|rdma)$ ]] && packages+=("${pmem_packages[@]}")
[ "${1:-build}" = rdma ] && packages+=(libibverbs-dev librdmacm-dev)

run_as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done

rust_is_new_enough() {
    local version
    version=$(rustc --version 2>/dev/null | cut -d' ' -f2) || return 1
    [ -n "$version" ] && [ "$(printf '%s\n%s\n' "$minimum_rust" "$version" | sort -V | head -n 1)" = "$minimum_rust" ]
}
rust_is_new_enough || missing+=(rustc-web cargo-web)

if [ "${#missing[@]}" -gt 0 ]; then
    echo "installing: ${missing[*]}"
    run_as_root apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive run_as_root apt-get install -y -q "${missing[@]}" >/dev/null
fi
if ! rust_is_new_enough; then
    echo "Ferrite needs rustc $minimum_rust or newer; found: $(rustc --version 2>/dev/null || echo none)." >&2
    echo "Install a newer Rust toolchain and put it first in PATH." >&2
    exit 1
fi
# The file system exerciser. Its version is fixed, so that a seed gives the same operations everywhere.
tools="$HOME/.cache/ferrite/tools"
if [ "${1:-build}" = test ] && [ ! -x "$tools/bin/fsx" ]; then
    echo "installing: fsx 0.3.2"
    cargo install --quiet --locked --root "$tools" --version 0.3.2 fsx
fi
if [ ! -e /dev/fuse ]; then
    run_as_root modprobe fuse 2>/dev/null || true
fi
