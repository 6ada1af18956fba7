#!/usr/bin/env bash
# Makes fio's engine for Ferrite, libferrite-fio.so, for the fio that is installed:
#
#   scripts/fio-engine.sh STATIC-LIBRARY DIRECTORY
#   scripts/fio-engine.sh --fetch                     only gets the source of fio
#
# An engine is built with the source of the very fio that loads it, which Debian's package does not have. The script
# gets it as a source package, once, and keeps it in ~/.cache/ferrite/tools. FIO_SOURCE names another folder with it.
# Exit code 77: the source cannot be had.
set -euo pipefail

if [ "${1:?the static library}" != --fetch ]; then
    library=$(realpath "$1") directory=$(realpath "${2:?the directory for the result}")
fi
root=$(cd "$(dirname "$0")/.." && pwd)
version=$(fio --version 2>/dev/null | sed 's/^fio-//') || true
[ -n "$version" ] || { echo "fio is not installed" >&2; exit 77; }
tools=$HOME/.cache/ferrite/tools
source=${FIO_SOURCE:-$tools/fio-$version}

# The source package of the installed version, by a list of sources of its own.
fetch() {
    local folder release
    folder=$(mktemp -d "$tools/fio.XXXXXX")
    trap 'rm -rf "$folder"' RETURN
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    echo "deb-src http://deb.debian.org/debian $release main" >"$folder/sources.list"
    mkdir -p "$folder/lists/partial"
    local apt=(apt-get -q -o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$folder/lists" -o APT::Sandbox::User="$(id -un)")
    local package
    package=fio=$(dpkg-query -W -f '${Version}' fio)
    (cd "$folder" && "${apt[@]}" update && "${apt[@]}" source --download-only "$package") >"$folder/log" 2>&1 ||
        { tail -n 3 "$folder/log" >&2; return 1; }
    tar -xf "$(find "$folder" -name 'fio_*.orig.tar.*' ! -name '*.asc')" -C "$folder" &&
        (cd "$folder"/fio-*/ && ./configure >/dev/null) &&
        rm -rf "$tools/fio-$version" && mv "$folder"/fio-*/ "$tools/fio-$version"
}

mkdir -p "$tools"
if [ ! -e "$source/config-host.h" ] && { [ -n "${FIO_SOURCE:-}" ] || ! fetch; }; then
    echo "no configured source of fio $version in $source; set FIO_SOURCE to a folder in which ./configure ran" >&2
    exit 77
fi
[ "$1" != --fetch ] || exit 0
exports=$(mktemp)
trap 'rm -f "$exports"' EXIT
# fio has names of its own, so nothing else may be seen of the library.
echo '{ global: ioengine; local: *; };' >"$exports"
${CC:-cc} -O2 -std=gnu11 -Wall -D_GNU_SOURCE -include "$source/config-host.h" \
    -I"$source" -I"$root/crates/ferrite-c/include" -shared -fPIC -o "$directory/libferrite-fio.so" \
    "$root/crates/ferrite-c/fio/ferrite.c" "$library" \
    -Wl,--version-script="$exports" -Wl,-Bsymbolic -Wl,--gc-sections -Wl,-z,relro \
    ${FERRITE_C_LIBS:-} -lpthread -ldl -lm -lrt
echo "$directory/libferrite-fio.so"
