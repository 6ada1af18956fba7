#!/usr/bin/env bash
# Installs what Ferrite needs on Debian (12 or later): C and C++ toolchains, FUSE, libfabric for `fabric://`, RocksDB for
# the NVMe engine, LevelDB for the lab, and a Rust toolchain if none that is new enough is installed.
#
#   scripts/setup-debian.sh build     what is needed to build and mount
#   scripts/setup-debian.sh test      that, the programs the tests run on a mount, PostgreSQL and Ceph
#   scripts/setup-debian.sh pmem      what is needed to build and boot the guest of `make pmem`
#   scripts/setup-debian.sh rdma      the same for `make rdma`
#
# Prints nothing if everything is installed already. Needs root (or sudo) only to install.
set -euo pipefail

minimum_rust=1.90
build_packages=(gcc g++ libc6-dev libleveldb-dev libsnappy-dev librocksdb-dev libzstd-dev liblz4-dev libbz2-dev
    zlib1g-dev libfabric-dev make pkg-config fuse3 sqlite3 git ca-certificates python3)
test_packages=(libfuse3-dev fio stress-ng rsync attr acl tar python3-venv groff dpkg-dev)
# Servers that some tests start in temporary folders. Tests that miss one are skipped, with a message.
server_packages=(ceph-mon ceph-mgr ceph-osd ceph-common librados-dev)
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || server_packages+=(postgresql-15)
pmem_packages=(qemu-system-x86 debootstrap cpio xz-utils e2fsprogs binutils)

packages=("${build_packages[@]}")
[ "${1:-build}" = test ] && packages+=("${test_packages[@]}")
[[ "${1:-build}" =~ ^(pmem|rdma)$ ]] && packages+=("${pmem_packages[@]}")
[ "${1:-build}" = rdma ] && packages+=(libibverbs-dev librdmacm-dev)

run_as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

is_installed() {
    dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'
}

# Installs one package, and starts nothing: Debian would run a database, and again at each boot. Not all releases have
# all of them, so a package that cannot be had is named, and that is all.
install_server() {
    local policy=/usr/sbin/policy-rc.d settings=/etc/postgresql-common/createcluster.conf is_mine='' failed=''
    if [ ! -e "$policy" ]; then
        is_mine=1
        trap "run_as_root rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' | run_as_root tee "$policy" >/dev/null
        run_as_root chmod 755 "$policy"
    fi
    if [[ "$1" = postgresql-* ]] && [ ! -e "$settings" ]; then
        run_as_root mkdir -p "${settings%/*}"
        echo 'create_main_cluster = false' | run_as_root tee "$settings" >/dev/null
    fi
    # The answer to a question on a file of settings that exists already: keep it.
    DEBIAN_FRONTEND=noninteractive run_as_root apt-get install -y -q --no-install-recommends \
        -o Dpkg::Options::=--force-confold "$1" >/dev/null 2>&1 || failed=1
    [ -z "$is_mine" ] || run_as_root rm -f "$policy"
    [ -z "$failed" ] || echo "not installed: $1; tests that need it are skipped" >&2
}

missing=()
for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
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
if [ "${1:-build}" = test ]; then
    missing=()
    for package in "${server_packages[@]}"; do
        is_installed "$package" || missing+=("$package")
    done
    if [ "${#missing[@]}" -gt 0 ]; then
        echo "installing: ${missing[*]}"
        run_as_root apt-get update -q >/dev/null || true
        for package in "${missing[@]}"; do install_server "$package"; done
    fi
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
# Prometheus' checker of metrics and rules, without the server, which Debian would start at each boot.
if [ "${1:-build}" = test ] && [ ! -x "$tools/bin/promtool" ] && ! command -v promtool >/dev/null; then
    echo "installing: promtool"
    folder=$(mktemp -d)
    if (cd "$folder" && apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb .) >/dev/null 2>&1; then
        install -D "$folder/usr/bin/promtool" "$tools/bin/promtool"
    else
        echo "not installed: promtool; tests that need it are skipped" >&2
    fi
    rm -rf "$folder"
fi
# The source of fio, with which its engine for Ferrite is built.
if [ "${1:-build}" = test ] && [ ! -e "$tools/$(fio --version)/config-host.h" ]; then
    echo "installing: the source of $(fio --version)"
    "$(dirname "$0")/fio-engine.sh" --fetch || echo "not installed: the source of fio; tests that need it are skipped" >&2
fi
if [ ! -e /dev/fuse ]; then
    run_as_root modprobe fuse 2>/dev/null || true
fi
