#!/usr/bin/env bash
# Makes libferrite.so of the static library, with a soname and with versions of its functions:
#
#   scripts/c-library.sh STATIC-LIBRARY DIRECTORY
#
# FERRITE_C_LIBS are the libraries that it needs beside the system's: those of the features it was built with.
#
# A compiler of C does it, because cargo gives shared libraries neither.
set -euo pipefail

library=${1:?the static library} directory=${2:?the directory for the result}
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
versions=$(mktemp)
trap 'rm -f "$versions"' EXIT
echo 'FERRITE_0.1 { global: ferrite_*; local: *; };' >"$versions"
${CC:-cc} -shared -o "$directory/libferrite.so.$version" -Wl,--whole-archive "$library" -Wl,--no-whole-archive \
    -Wl,-soname,libferrite.so.0 -Wl,--version-script="$versions" -Wl,--gc-sections -Wl,-z,relro,-z,now,-z,defs \
    ${FERRITE_C_LIBS:-} -lpthread -ldl -lm -lrt
ln -sf "libferrite.so.$version" "$directory/libferrite.so.0"
ln -sf libferrite.so.0 "$directory/libferrite.so"
