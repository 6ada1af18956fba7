#!/usr/bin/env bash
# Boots a Debian guest that has persistent memory (fs-DAX, device DAX with pages of 2 MiB and of 1 GiB) and NVMe disks,
# under QEMU's emulation, so that neither such hardware nor the right to virtualise is needed. The guest runs the
# tests that need such devices, real programs and fsck, and crash rounds: QEMU is killed while programs write, and what
# was acknowledged must be there at the next start, on the same devices. The result is a table, result.md in the cache
# folder.
#
#   run.sh [PROGRAM [TEST…]]    PROGRAM: a built `ferrite`; TEST: test programs to run on the devices
#
#   FERRITE_PMEM_ROUNDS=N       crash rounds (5)
#   FERRITE_PMEM_PHASES=…       some of: tests programs crash (all)
#   FERRITE_PMEM_MEDIA=…        some of: devdax-1G devdax-2M fsdax nvme namespaces (all), for programs and crash rounds
#   FERRITE_PMEM_NICE=N         niceness of the guest (10)
#   FERRITE_PMEM_DOCS=1         put the result into docs/pmem.md
#   FERRITE_PMEM_KEEP=1         keep the devices for inspection
#
# `scripts/guest/boot.sh` boots the guest, and says where it is kept and by what it can be told more.
#
# Prints what it skips, and fails if anything failed. `scripts/setup-debian.sh pmem` installs what it needs.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
rounds=${FERRITE_PMEM_ROUNDS:-5}
program=${1:?"usage: $0 PROGRAM [TEST...]"}
shift

name=pmem
nice=${FERRITE_PMEM_NICE:-10}
# shellcheck disable=SC2034
keep=${FERRITE_PMEM_KEEP:-}
# shellcheck source=SCRIPTDIR/../guest/boot.sh
. "$here/../guest/boot.sh"

# The devices are sparse files. One aligned to 1 GiB loses its first GiB to the alignment.
truncate -s 2050M "$work/devdax-1g"
truncate -s 1026M "$work/devdax-2m"
truncate -s 1026M "$work/fsdax"
truncate -s 1G "$work/nvme"
devices=(-m "2G,slots=4,maxmem=16G")
n=0
for device in devdax-1g devdax-2m fsdax; do
    devices+=(-object "memory-backend-file,id=memory$n,share=on,align=1G,mem-path=$work/$device,size=$(stat -c %s "$work/$device")"
        -device "nvdimm,memdev=memory$n,id=nvdimm$n,label-size=2M")
    n=$((n + 1))
done
devices+=(-drive "file=$work/nvme,if=none,id=nvme,format=raw" -device nvme,serial=nvme,drive=nvme)
# Data with blocks of 512 bytes, data with blocks of 4 KiB, metadata.
n=1
for block in 512 4096 4096; do
    truncate -s 1G "$work/namespace$n"
    devices+=(-drive "file=$work/namespace$n,if=none,id=namespace$n,format=raw"
        -device "nvme,serial=namespace$n,drive=namespace$n,logical_block_size=$block,physical_block_size=$block")
    n=$((n + 1))
done

cp "$here/job.sh" "$job/"
cp "$program" "$job/bin/ferrite"
for test in "$@"; do cp "$test" "$job/tests/"; done
prepare_programs
: >"$job/acknowledged"
echo "${FERRITE_PMEM_MEDIA:-devdax-1G devdax-2M fsdax nvme namespaces}" >"$job/media"

# Keeps the last number reported for each medium; lines cut off by the kill do not count.
keep_told() {
    tr -d '\r' <"$work/told" | sed -nE '/^[a-zA-Z0-9-]+ [0-9]+$/p' | cat "$job/acknowledged" - |
        awk '$2 > last[$1] {last[$1] = $2} END {for (medium in last) print medium, last[medium]}' | sort >"$work/told.new"
    mv "$work/told.new" "$job/acknowledged"
}

crash_round() {
    echo "== crash round $1"
    start crash
    if ! wait_for '^WRITING' 1800; then
        echo "crash round $1: FAILED (nothing was written)" | tee -a "$results"
    fi
    # A few seconds of writes, a different number each time.
    sleep $((3 + RANDOM % 8)).$((RANDOM % 10))
    kill_guest
    gather
    # A line without its end may be a truncated number.
    [ -z "$(tail -c 1 "$work/told")" ] || sed -i '$d' "$work/told"
    keep_told
    echo "   acknowledged: $(tr '\n' ',' <"$job/acknowledged")"
}

run setup 600
if ! has_failed; then
    for phase in ${FERRITE_PMEM_PHASES:-tests programs crash}; do
        case $phase in
        crash)
            for round in $(seq "$rounds"); do crash_round "$round"; done
            run final 1800
            ;;
        *) run "$phase" 3600 ;;
        esac
    done
fi

if [ -s "$job/acknowledged" ]; then
    echo "| numbers acknowledged before kills | $(awk '{printf "%s%s %s", (NR > 1 ? ", " : ""), $1, $2}' "$job/acknowledged") |" >"$work/appendix"
fi
report "$rounds crash rounds" "${FERRITE_PMEM_DOCS:+$here/../../docs/pmem.md}"
! has_failed
