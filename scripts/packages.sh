#!/usr/bin/env bash
# Makes packages of what is built: `make packages` calls it.
#
#   scripts/packages.sh TARGET-FOLDER DIRECTORY
#
# TARGET-FOLDER has the program `ferrite`, libferrite_c.a and lib_ferrite.so (of Python), such as target/release. The
# result is in DIRECTORY: for Debian ferrite, libferrite0, libferrite-dev and python3-ferrite; if rpmbuild is installed,
# the same program as an RPM. A library that was not built has no package. FERRITE_COMPRESSION=none is for tests.
#
# The files come from the rules install-…files of the Makefile, which `make install` and its like use, too.
set -euo pipefail

built=$(realpath "${1:?the folder of what is built}")
mkdir -p "${2:?the directory for the packages}"
out=$(realpath "$2")
root=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
arch=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}

# The files of `make install`, below a folder.
staged() {
    make -s -C "$root" "$1" DESTDIR="$2" PREFIX=/usr LIBDIR="$3" FERRITE="$built/ferrite" \
        C_LIBRARY="$built/libferrite_c.a" PYTHON_EXTENSION="$built/lib_ferrite.so"
}

# The libraries that programs need, as names of packages with versions.
needed() {
    mkdir -p "$work/debian"
    touch "$work/debian/control"
    # Its warnings on libraries that nothing of a package needs would drown an error.
    (cd "$work" && dpkg-shlibdeps --warnings=0 --ignore-missing-info -O "$@") | sed 's/^shlibs:Depends=//'
}

# Documents that each package has, compressed as Debian wants them.
documents() {
    local folder=$2/usr/share/doc/$1
    mkdir -p "$folder"
    { echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
      echo "Upstream-Name: Ferrite"
      echo
      echo "Files: *"
      echo "Copyright: 2025-$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y) the authors of Ferrite"
      echo "License: Apache-2.0"
      echo " On Debian systems the text of the licence is in /usr/share/common-licenses/Apache-2.0."
    } >"$folder/copyright"
    printf 'ferrite (%s) unstable; urgency=medium\n\n  * CHANGELOG.md in the source has the changes.\n\n -- %s  %s\n' \
        "$version" "Ferrite maintainers <maintainers@ferrite.invalid>" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" |
        gzip -9n >"$folder/changelog.gz"
    find "$2/usr/share/man" -name '*.[1-8]' -exec gzip -9n {} + 2>/dev/null || true
}

# A package of a folder: name, section, what it needs, other fields, description.
package() {
    local name=$1 folder=$2 size
    documents "$name" "$folder"
    size=$(du -sk "$folder" | cut -f1)
    mkdir -p "$folder/DEBIAN"
    { echo "Package: $name"
      echo "Version: $version"
      echo "Section: $3"
      echo "Priority: optional"
      echo "Architecture: $arch"
      echo "Installed-Size: $size"
      echo "Maintainer: Ferrite maintainers <maintainers@ferrite.invalid>"
      [ -z "$4" ] || echo "Depends: $4"
      [ -z "$5" ] || echo "$5"
      echo "Description: $6"
    } >"$folder/DEBIAN/control"
    if [ -d "$folder/etc" ]; then (cd "$folder" && find etc -type f -printf '/%p\n' >DEBIAN/conffiles); fi
    (cd "$folder" && find usr -type f -printf '%P\0' | LC_ALL=C sort -z | sed -z 's|^|usr/|' | xargs -0 md5sum >DEBIAN/md5sums)
    dpkg-deb --root-owner-group "-Z${FERRITE_COMPRESSION:-xz}" --build "$folder" "$out" >/dev/null
    echo "$out/${name}_${version}_$arch.deb"
}

program=$work/ferrite
staged install-files "$program" /usr/lib
strip --strip-unneeded "$program/usr/bin/ferrite"
install -D -m 644 "$root/dist/udev/60-ferrite.rules" "$program/usr/lib/udev/rules.d/60-ferrite.rules"
mkdir -p "$program/usr/share/ferrite"
cp -r "$root/dist/grafana" "$root/dist/prometheus" "$program/usr/share/ferrite/"
# RocksDB comes as a static library, and so do the compressors that it needs.
mkdir -p "$program/usr/share/lintian/overrides"
printf 'ferrite: embedded-library %s [usr/bin/ferrite]\n' bzip2 zlib >"$program/usr/share/lintian/overrides/ferrite"
libraries=$(needed -e"$program/usr/bin/ferrite")
if command -v rpmbuild >/dev/null; then cp -r "$program" "$work/rpm-root"; fi
mkdir -p "$program/DEBIAN"
# The unit is off until an administrator enables it.
cat >"$program/DEBIAN/postinst" <<'S'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl --system daemon-reload >/dev/null || true; fi
if command -v udevadm >/dev/null; then udevadm control --reload >/dev/null 2>&1 || true; fi
S
chmod 755 "$program/DEBIAN/postinst"
package ferrite "$program" admin "$libraries, fuse3" "" "file system in user space for storage as fast as memory
 Ferrite keeps files on persistent memory, DRAM, NVMe devices and disks.
 Programs mount it, link it as a library, or reach it over the network.
 Every completed operation is atomic and durable."

if [ -e "$built/libferrite_c.a" ]; then
    multiarch=/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
    dev=$work/dev library=$work/library
    staged install-c-files "$dev" "$multiarch"
    mkdir -p "$library$multiarch"
    mv "$dev$multiarch"/libferrite.so.0* "$library$multiarch/"
    strip --strip-unneeded "$library$multiarch"/libferrite.so.0.*.*
    chmod 644 "$library$multiarch"/libferrite.so.0.*.*
    strip --strip-debug "$dev$multiarch/libferrite.a"
    mkdir -p "$library/DEBIAN"
    echo "libferrite 0 libferrite0 (>= $version)" >"$library/DEBIAN/shlibs"
    echo "activate-noawait ldconfig" >"$library/DEBIAN/triggers"
    package libferrite0 "$library" libs "$(needed -e"$(echo "$library$multiarch"/libferrite.so.0.*.*)")" \
        "Multi-Arch: same" "Ferrite file system, as a library
 Programs in C open pools and servers of Ferrite with it, in their own process."
    package libferrite-dev "$dev" libdevel "libferrite0 (= $version)" "Multi-Arch: same" \
        "Ferrite file system, as a library (development)
 The header, the static library and a file for pkg-config."
fi

if [ -e "$built/lib_ferrite.so" ]; then
    python=$work/python
    staged install-python-files "$python" ""
    extension=$python/usr/lib/python3/dist-packages/ferrite/_ferrite.abi3.so
    strip --strip-unneeded "$extension"
    libraries=$(needed -e"$extension")
    mkdir -p "$python/DEBIAN"
    # Byte code is made at the installation, and goes with the package, as for others of Debian.
    cat >"$python/DEBIAN/postinst" <<'S'
#!/bin/sh
set -e
if command -v py3compile >/dev/null 2>&1; then py3compile -p python3-ferrite; fi
S
    cat >"$python/DEBIAN/prerm" <<'S'
#!/bin/sh
set -e
if command -v py3clean >/dev/null 2>&1; then py3clean -p python3-ferrite; fi
S
    chmod 755 "$python/DEBIAN/postinst" "$python/DEBIAN/prerm"
    package python3-ferrite "$python" python "$libraries, python3 (>= 3.11)" "Suggests: python3-fsspec" \
        "Ferrite file system, for Python
 Programs in Python open pools and servers of Ferrite with it, in their own
 process and without the interpreter lock; fsspec knows it as ferrite://."
fi

if command -v rpmbuild >/dev/null; then
    cat >"$work/ferrite.spec" <<S
Name: ferrite
Version: $version
Release: 1
Summary: File system in user space for storage as fast as memory
License: Apache-2.0
Requires: fuse3
%global debug_package %{nil}
%global __os_install_post %{nil}
%description
Ferrite keeps files on persistent memory, DRAM, NVMe devices and disks. Programs mount it, link it as a library, or
reach it over the network. Every completed operation is atomic and durable.
%install
cp -a $work/rpm-root/. %{buildroot}/
%files
/usr
S
    rpmbuild -bb --quiet --buildroot "$work/rpm-build" --define "_topdir $work/rpm" --define "_rpmdir $out" \
        --define '_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm' "$work/ferrite.spec" >/dev/null
    ls "$out"/ferrite-"$version"-1.*.rpm
fi
