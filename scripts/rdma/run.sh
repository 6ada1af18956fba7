#!/usr/bin/env bash
# Boots a Debian guest whose kernel has RDMA in software (rdma_rxe), under QEMU's emulation, and runs there
#
#   tools   third-party programs with each other: does the device work?
#   stock   third-party programs as clients of files by RDMA, `ferrite serve --rdma`
#   tests   what `fabric://` consists of over libfabric's provider `verbs`: transport and network file system
#   bench   a short benchmark of that
#
# The result is a table, result.md in the cache folder.
#
#   FERRITE_RDMA_PHASES=...     some of these (all)
#   FERRITE_RDMA_TESTS=...      only tests whose name has one of these words (all)
#   FERRITE_RDMA_NICE=N         niceness of the guest (10)
#   FERRITE_RDMA_DOCS=1         put the result into docs/rdma.md
#   FERRITE_RDMA_NET=HERE:THERE connect the guest's network with a program on this host (below)
#
# `scripts/guest/boot.sh` boots the guest, and says where it is kept and by what it can be told more.
#
# The guest's network interface has the addresses 10.99.0.2/24 and fd99::2/64, an MTU of 9000 (path MTU 4096) and the
# RDMA device rxe0. It leads nowhere: all that the guest talks to is itself. With FERRITE_RDMA_NET QEMU sends each
# Ethernet frame of it as one UDP datagram from 127.0.0.1:HERE to 127.0.0.1:THERE and takes those that come back, which
# takes no privileges. A program on THERE that answers ARP (or neighbour discovery) for 10.99.0.1 and fd99::1 can so
# answer RoCEv2, UDP port 4791, as another host would.
#
# Prints what it skips, and fails if anything failed. `scripts/setup-debian.sh rdma` installs what it needs.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)

name=rdma
nice=${FERRITE_RDMA_NICE:-10}
# shellcheck source=SCRIPTDIR/../guest/boot.sh
. "$here/../guest/boot.sh"
for library in libfabric libibverbs librdmacm; do
    pkg-config --exists $library || skip "$library's headers are not installed; scripts/setup-debian.sh rdma"
done

phases=${FERRITE_RDMA_PHASES:-tools stock tests bench}
has_phase() {
    [[ " $phases " == *" $1 "* ]]
}
# Under emulation it hardly matters whether programs are optimized, and building them in release takes minutes.
cd "$here/../.."
features=ferrite-transport/fabric,ferrite-server/fabric,ferrite-server/rdma
build_for_guest() {
    cargo "$1" --message-format json-render-diagnostics --features "$features" "${@:2}" |
        sed -nE 's/.*"package_id":"[^"]*\/(ferrite-[a-z]+)#.*"name":"([a-z]+)".*"executable":"([^"]+)".*/\1 \2 \3/p'
}
if has_phase tools || has_phase bench; then
    build_for_guest build -p ferrite-transport -p ferrite-server --examples |
        while read -r _ name path; do cp "$path" "$job/bin/$name"; done
fi
if has_phase tests; then
    build_for_guest test -p ferrite-transport -p ferrite-server --no-run --test fabric --test restart |
        while read -r crate test path; do cp "$path" "$job/tests/$crate,$test"; done
fi
if has_phase stock; then
    build_for_guest build -p ferrite-cli -p ferrite-server --bin ferrite --example responder --example broker |
        while read -r _ name path; do cp "$path" "$job/bin/$name"; done
    gcc -std=gnu11 -O2 -Wall -Wextra -o "$job/bin/stock" "$here/stock.c" -libverbs -lrdmacm
fi

devices=(-m 3G -device "virtio-net-pci,netdev=net,mac=52:54:00:99:00:02,host_mtu=9000")
if [ -n "${FERRITE_RDMA_NET:-}" ]; then
    devices+=(-netdev "dgram,id=net,local.type=inet,local.host=127.0.0.1,local.port=${FERRITE_RDMA_NET%:*},remote.type=inet,remote.host=127.0.0.1,remote.port=${FERRITE_RDMA_NET#*:}")
else
    devices+=(-netdev "hubport,id=net,hubid=0")
fi

cp "$here/job.sh" "$here/stock.sh" "$job/"
# The guest has libfabric and its own RDMA libraries, which go with its plugins.
prepare_programs
rm -f "$job"/lib/lib{fabric,ibverbs,rdmacm,efa,nl-}*
echo "${FERRITE_RDMA_TESTS:-}" >"$job/wanted"

for phase in $phases; do
    case $phase in
    tests) run "$phase" 3600 ;;
    stock) run "$phase" 1800 ;;
    *) run "$phase" 600 ;;
    esac
done

# What was measured goes under the table.
if grep -aq '^MEASURED' "$log"; then
    {
        echo
        echo "| measured in the guest | |"
        echo "| --- | --- |"
        grep -a '^MEASURED' "$log" | tr -d '\r' | sed -E 's/^MEASURED (.*): ([^:]*)$/| \1 | \2 |/'
    } >"$work/appendix"
fi
# A phase alone has its own place in the document.
part=result
[ "$phases" != stock ] || part="stock programs"
report "2 emulated CPUs${FERRITE_RDMA_TESTS:+, only tests with one of these words: $FERRITE_RDMA_TESTS}" \
    "${FERRITE_RDMA_DOCS:+$here/../../docs/rdma.md}" "$part"
! has_failed
