#!/usr/bin/env bash
# Boots a Debian guest that has persistent memory (fs-DAX, device DAX with pages of 2 MiB and of 1 GiB) and an NVMe
# disk, under QEMU's emulation, so that neither such hardware nor the right to virtualise is needed. The guest runs the
# tests that need such devices, real programs and fsck, and crash rounds: QEMU is killed while programs write, and what
# was acknowledged must be there at the next start, on the same devices. The result is a table, result.md in the cache
# folder.
#
#   run.sh [PROGRAM [TEST…]]    PROGRAM: a built `ferrite`; TEST: test programs to run on the devices
#
#   FERRITE_PMEM_ROUNDS=N       crash rounds (5)
#   FERRITE_PMEM_PHASES=…       some of: tests programs crash (all)
#   FERRITE_PMEM_NICE=N         niceness of the guest (10)
#   FERRITE_PMEM_DOCS=1         put the result into docs/pmem.md
#   FERRITE_PMEM_KEEP=1         keep the devices for inspection
#   XDG_CACHE_HOME              where the guest is kept, in ferrite/pmem (~/.cache)
#
# Prints what it skips, and fails if anything failed. `scripts/setup-debian.sh pmem` installs what it needs.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ferrite/pmem
rounds=${FERRITE_PMEM_ROUNDS:-5}
program=${1:?"usage: $0 PROGRAM [TEST...]"}
shift

skip() {
    echo "SKIPPED: $*"
    exit 0
}
[ "$(uname -m)" = x86_64 ] || skip "the guest is for x86-64"
for tool in qemu-system-x86_64 debootstrap cpio xz mkfs.ext4; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || skip "$tool is not installed; scripts/setup-debian.sh pmem"
done
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$cache"
"$here/build-guest.sh" "$cache" || { code=$?; [ $code = 3 ] && exit 0; exit $code; }

work=$(mktemp -d "$cache/run.XXXXXX")
qemu=
# shellcheck disable=SC2317
clean_up() {
    [ -z "$qemu" ] || kill -9 "$qemu" 2>/dev/null || true
    cat "$log" "$work/console" >"$cache/log" 2>/dev/null || true
    [ -n "${FERRITE_PMEM_KEEP:-}" ] || rm -rf "$work"
}
trap clean_up EXIT

# The devices are sparse files. One aligned to 1 GiB loses its first GiB to the alignment.
truncate -s 2050M "$work/devdax-1g"
truncate -s 1026M "$work/devdax-2m"
truncate -s 1026M "$work/fsdax"
truncate -s 1G "$work/nvme"

job=$work/job
mkdir -p "$job"/{bin,lib,tests}
cp "$here/job.sh" "$job/"
cp "$program" "$job/bin/ferrite"
for test in "$@"; do cp "$test" "$job/tests/"; done
for file in "$job"/bin/* "$job"/tests/*; do
    [ -f "$file" ] || continue
    strip "$file" 2>/dev/null || true
    # Libraries that the guest's minimal system may lack.
    ldd "$file" | awk '$3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libgcc_s)\.so' | xargs -r cp -Lt "$job/lib" || true
done
: >"$job/acknowledged"

log=$work/log
: >"$log"
# Starts the guest for a phase, in the background. Its console goes to `console`, the numbers it reports to `told`.
# The CPU has no fast `rep movsb`, because the emulation runs it byte by byte.
start() {
    echo "$1" >"$job/phase"
    tar -C "$job" -cf "$work/job.tar" .
    truncate -s %4096 "$work/job.tar"
    : >"$work/console"
    : >"$work/told"
    local memory=(-m "2G,slots=4,maxmem=16G") n=0 device
    for device in devdax-1g devdax-2m fsdax; do
        memory+=(-object "memory-backend-file,id=memory$n,share=on,align=1G,mem-path=$work/$device,size=$(stat -c %s "$work/$device")"
            -device "nvdimm,memdev=memory$n,id=nvdimm$n,label-size=2M")
        n=$((n + 1))
    done
    nice -n "${FERRITE_PMEM_NICE:-10}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max,erms=off,fsrm=off \
        -machine q35,nvdimm=on -smp 2 "${memory[@]}" \
        -nodefaults -display none -no-reboot -serial "file:$work/console" -serial "file:$work/told" \
        -kernel "$cache/vmlinux" -initrd "$cache/initrd" -append "console=ttyS0 quiet panic=-1 mitigations=off" \
        -drive "file=$cache/root.img,if=virtio,format=raw,snapshot=on" \
        -drive "file=$work/job.tar,if=virtio,format=raw,readonly=on" \
        -drive "file=$work/nvme,if=none,id=nvme,format=raw" -device nvme,serial=nvme,drive=nvme </dev/null 2>>"$log" &
    qemu=$!
}

# Waits until the guest has ended, has printed the given words, or has taken too long.
wait_for() {
    local words=$1 seconds=$2 until
    until=$((SECONDS + seconds))
    while [ $SECONDS -lt $until ]; do
        [ -z "$words" ] || ! grep -q "$words" "$work/console" || return 0
        kill -0 "$qemu" 2>/dev/null || { [ -z "$words" ] && return 0 || return 1; }
        sleep 0.2
    done
    return 1
}

results=$work/results
: >"$results"
# Keeps the guest's output of a phase.
gather() {
    cat "$work/console" >>"$log"
    grep -a '^RESULT' "$work/console" | tr -d '\r' | sed 's/^RESULT //' | tee -a "$results" || true
}

run() {
    local start_s=$SECONDS
    echo "== $1"
    start "$1"
    if ! wait_for '' "$2"; then
        kill -9 "$qemu" 2>/dev/null || true
        echo "phase $1: FAILED (no end within $2 s)" | tee -a "$results"
    fi
    wait "$qemu" 2>/dev/null || true
    qemu=
    gather
    grep -aq 'GUEST-EXIT' "$work/console" || echo "phase $1: FAILED (the guest did not shut down cleanly)" | tee -a "$results"
    echo "   $((SECONDS - start_s)) s"
}

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
    kill -9 "$qemu" 2>/dev/null || true
    wait "$qemu" 2>/dev/null || true
    qemu=
    gather
    # A line without its end may be a truncated number.
    [ -z "$(tail -c 1 "$work/told")" ] || sed -i '$d' "$work/told"
    keep_told
    echo "   acknowledged: $(tr '\n' ',' <"$job/acknowledged")"
}

began=$SECONDS
run setup 600
if ! grep -q FAILED "$results"; then
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

{
    emulator=$(qemu-system-x86_64 --version | sed -n '1s/ (.*//p')
    kernel=$(strings "$cache/vmlinux" | sed -n 's/^Linux version \([^ ]*\) .*/\1/p' | sort -u | head -n 1)
    echo
    echo "$(date -u +%F), $emulator, guest kernel $kernel, $rounds crash rounds, $(((SECONDS - began) / 60)) minutes:"
    echo
    echo "| what | result |"
    echo "| --- | --- |"
    # Rounds repeat the same checks; the table lists each once, with its count.
    sed -E 's/ \([0-9]+ s\)$//; s/: ([0-9]+) acknowledged/: acknowledged/' "$results" | sort | uniq -c | sort -k2 |
        sed -E 's/^ *([0-9]+) (.*): (ok|skipped|FAILED.*)$/| \2 | \3, \1 times |/; s/, 1 times \|$/ |/'
    if [ -s "$job/acknowledged" ]; then
        echo "| numbers acknowledged before kills | $(awk '{printf "%s%s %s", (NR > 1 ? ", " : ""), $1, $2}' "$job/acknowledged") |"
    fi
    echo
} >"$cache/result.md"
cat "$cache/result.md"
echo "(this table: $cache/result.md; what the guest said: $cache/log)"
if [ -n "${FERRITE_PMEM_DOCS:-}" ]; then
    docs=$here/../../docs/pmem.md
    awk -v table="$cache/result.md" '
        /^<!-- end of result/ {skipping = 0}
        !skipping {print}
        /^<!-- result/ {skipping = 1; while ((getline line < table) > 0) print line}' "$docs" >"$work/docs"
    cat "$work/docs" >"$docs"
fi
! grep -q FAILED "$results"
