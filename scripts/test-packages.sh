#!/usr/bin/env bash
# Tries packages for Debian in a fresh Debian 12 without a compiler:
#
#   scripts/test-packages.sh DIRECTORY
#
# DIRECTORY is that of scripts/packages.sh. Needs root, mmdebstrap and a mirror; without them it is skipped, aloud. A step
# that needs more than the machine allows, such as /dev/fuse, is skipped aloud as well.
set -euo pipefail

packages=$(realpath "${1:?the directory with the packages}")
root=$(cd "$(dirname "$0")/.." && pwd)
if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
    echo "SKIPPED: packages are tried as root, with mmdebstrap"
    exit 0
fi
system=$(mktemp -d)
clean_up() {
    [ ! -s "$system/root/served" ] || kill "$(cat "$system/root/served")" 2>/dev/null || true
    umount -q "$system/mnt" "$system/dev/shm" "$system/dev/fuse" "$system/proc" 2>/dev/null || true
    rm -rf --one-file-system "$system"
}
trap clean_up EXIT
if ! mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$system" >"$system.log" 2>&1; then
    echo "SKIPPED: no Debian 12 could be made: $(tail -n 1 "$system.log")"
    exit 0
fi
rm -f "$system.log"
cp "$packages"/*.deb "$system/root/"
cp /etc/resolv.conf "$system/etc/" 2>/dev/null || true
inside() { chroot "$system" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
mount -t proc proc "$system/proc"
mkdir -p "$system/dev/shm"
mount -t tmpfs tmpfs "$system/dev/shm"
inside sh -c 'apt-get update -q && apt-get install -y -q --no-install-recommends /root/*.deb' >"$system/root/log" 2>&1 ||
    { tail -n 20 "$system/root/log"; exit 1; }
if inside sh -c 'command -v cc gcc clang rustc'; then
    echo "there is a compiler, so this shows nothing"
    exit 1
fi

inside ferrite --version
inside ferrite mkfs /dev/shm/pool --size 64M
inside sh -c 'ferrite serve /dev/shm/pool --no-root-squash --listen tcp://127.0.0.1:7471 & echo $! >/root/served
    for _ in $(seq 50); do ferrite ls tcp://127.0.0.1:7471:/ >/dev/null 2>&1 && break; sleep 0.1; done
    echo "over the network" >/root/text && ferrite cp /root/text tcp://127.0.0.1:7471:/text
    ferrite cat tcp://127.0.0.1:7471:/text | grep -q "over the network" && kill "$(cat /root/served)" && wait'
echo "served: well"
inside sh -c 'man=/usr/share/man/man1/ferrite-mkfs.1.gz; [ -s $man ] && [ -s /usr/lib/systemd/system/ferrite.service ]'

if [ -e /dev/fuse ] && touch "$system/dev/fuse" && mount --bind /dev/fuse "$system/dev/fuse"; then
    inside sh -c 'ferrite mount /dev/shm/pool /mnt && grep -q "over the network" /mnt/text && ferrite umount /mnt'
    echo "mounted: well"
else
    echo "SKIPPED: mounts need /dev/fuse"
fi

if [ -e "$system/usr/lib/python3/dist-packages/ferrite" ]; then
    inside python3 -c 'import ferrite
volume = ferrite.create("/dev/shm/python", 64 << 20)
with volume.open("/text", "w") as file:
    file.write("from Python")
assert volume.open("/text", "r").read() == "from Python"
volume.close()'
    echo "used from Python: well"
fi

# A program in C, compiled here with the package's own header and library.
if [ -e "$system/usr/include/ferrite.h" ] && command -v cc >/dev/null; then
    cc -I"$system/usr/include" "$root/crates/ferrite-c/examples/hello.c" -o "$system/root/hello" \
        -L"$(dirname "$(find "$system/usr/lib" -name libferrite.so -print -quit)")" -lferrite
    inside /root/hello /dev/shm/other | grep -q "atomic and durable"
    echo "used from C: well"
fi
