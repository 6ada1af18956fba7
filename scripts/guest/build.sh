#!/usr/bin/env bash
# Builds the guest of `make pmem` and `make rdma`: a small Debian of the release that runs here (so that programs built
# here run there), with a kernel that starts fast under emulation. Needs root, for debootstrap; some 3 GB in the cache
# folder; some minutes.
#
#   build.sh FOLDER     makes FOLDER/{root.img,vmlinux,initrd}, unless they are there
#
# The root file system is never written to: each start sees it as it was built.
set -euo pipefail

folder=$1
here=$(cd "$(dirname "$0")" && pwd)
packages=(linux-image-amd64 kmod udev busybox-static ndctl daxctl fuse3 e2fsprogs xfsprogs cpio tar git sqlite3 fio procps
    iproute2 rdma-core ibverbs-providers ibverbs-utils rdmacm-utils perftest libfabric1 libfabric-bin)

# What the guest is made of names it: another list, or another start, gives another guest.
stamp=$(printf '%s ' "${packages[@]}" | cat - "$here/build.sh" "$here/init.sh" | sha256sum | cut -c1-16)
[ "$(cat "$folder/stamp" 2>/dev/null)" != "$stamp" ] || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "SKIPPED: the guest is not built yet, and building it takes root (debootstrap); run this once as root, or with sudo" >&2
    exit 3
fi

# shellcheck disable=SC1091
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
mkdir -p "$folder"
work=$(mktemp -d "$folder/build.XXXXXX")
# debootstrap leaves mounts behind when it is interrupted.
trap 'umount -q "$work"/root/sys "$work"/root/proc 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
root=$work/root
echo "building a guest (Debian $release) in $folder; this takes some minutes"
debootstrap --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" "$release" "$root" >"$folder/debootstrap.log" 2>&1 || {
    tail -n 5 "$folder/debootstrap.log" >&2
    exit 1
}
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,locale,man} "$root"/boot/initrd*
install -m 755 "$here/init.sh" "$root/sbin/ferrite-guest"

# The kernel unpacked, as unpacking it is what takes longest under emulation.
offset=$(grep -abo -m1 $'\xfd7zXZ\x00' "$root"/boot/vmlinuz-* | head -n 1 | cut -d: -f1 || true)
if [ -n "$offset" ]; then
    tail -c +$((offset + 1)) "$root"/boot/vmlinuz-* | xz -dc >"$work/vmlinux" 2>/dev/null || true
fi
[ "$(head -c 4 "$work/vmlinux" 2>/dev/null | tail -c 3)" = ELF ] || cp "$root"/boot/vmlinuz-* "$work/vmlinux"

# A first root with just what it takes to reach the second.
version=$(basename "$root"/lib/modules/*)
first=$work/first
mkdir -p "$first"/{bin,proc,sys,dev,new}
cp "$root/bin/busybox" "$first/bin/busybox"
modules=$(chroot "$root" modprobe -S "$version" -aD virtio_pci virtio_blk crc32c_generic ext4 | awk '$1 == "insmod" && !seen[$2]++ {print $2}')
n=10
for module in $modules; do
    cp "$root$module" "$first/$n-$(basename "$module")"
    n=$((n + 1))
done
cat >"$first/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in /*.ko; do /bin/busybox insmod "$module" || echo "cannot load $module"; done
n=0
while [ ! -b /dev/vda ] && [ $n -lt 100 ]; do /bin/busybox sleep 0.1; n=$((n + 1)); done
/bin/busybox mount -t ext4 -o ro /dev/vda /new
for dir in proc sys dev; do /bin/busybox mount -o move /$dir /new/$dir; done
exec /bin/busybox switch_root /new /sbin/ferrite-guest
INIT
chmod 755 "$first/init"
(cd "$first" && find . | cpio -o -H newc --quiet) >"$work/initrd"

truncate -s 2G "$work/root.img"
mkfs.ext4 -q -F -d "$root" "$work/root.img"
mv "$work"/{root.img,vmlinux,initrd} "$folder/"
echo "$stamp" >"$folder/stamp"
