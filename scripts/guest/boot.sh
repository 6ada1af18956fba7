# shellcheck shell=bash
# Boots the guest of `make pmem` and `make rdma` under QEMU's emulation, so that neither special hardware nor the right
# to virtualise is needed. Sourced by their run.sh, which sets:
#
#   name           pmem or rdma; log and result are kept in the cache folder's ferrite/NAME
#   devices        an array: what QEMU is told besides (memory, disks, networks)
#   nice           niceness of the guest
#
# and gets `cache`, `work` (a folder that is removed at the end, unless `keep` is set), `job` (a folder that the guest
# unpacks, and whose job.sh it runs), `results`, and the functions below. The guest prints `RESULT what: ok`,
# `...: skipped` or `...: FAILED` on its console.
#
#   XDG_CACHE_HOME         where the guest is kept, in ferrite/guest (~/.cache)
#   FERRITE_GUEST_ACCEL    QEMU's -accel (tcg,thread=multi); kvm where that works
set -euo pipefail

guest_scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
guest=${XDG_CACHE_HOME:-$HOME/.cache}/ferrite/guest
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ferrite/${name:?}

skip() {
    echo "SKIPPED: $*"
    exit 0
}
[ "$(uname -m)" = x86_64 ] || skip "the guest is for x86-64"
PATH=$PATH:/usr/sbin:/sbin
for tool in qemu-system-x86_64 debootstrap cpio xz mkfs.ext4; do
    command -v "$tool" >/dev/null || skip "$tool is not installed; scripts/setup-debian.sh $name"
done
mkdir -p "$guest" "$cache"
"$guest_scripts/build.sh" "$guest" || { code=$?; [ $code = 3 ] && exit 0; exit $code; }

work=$(mktemp -d "$cache/run.XXXXXX")
job=$work/job
log=$work/log
results=$work/results
qemu=
mkdir -p "$job"/{bin,lib,tests}
: >"$log"
: >"$results"
# shellcheck disable=SC2317
clean_up() {
    [ -z "$qemu" ] || kill -9 "$qemu" 2>/dev/null || true
    cat "$log" "$work/console" >"$cache/log" 2>/dev/null || true
    [ -n "${keep:-}" ] || rm -rf "$work"
}
trap clean_up EXIT

# Makes the programs in the job small, and adds the libraries that the guest's minimal system may lack.
prepare_programs() {
    local file
    for file in "$job"/bin/* "$job"/tests/*; do
        [ -f "$file" ] || continue
        strip "$file" 2>/dev/null || true
        ldd "$file" | awk '$3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libgcc_s)\.so' | xargs -r cp -Lt "$job/lib" || true
    done
}

# Starts the guest for a phase, in the background. Its console goes to `console`, what it tells over a second serial
# line to `told`. The CPU has no fast `rep movsb`, because the emulation runs it byte by byte.
start() {
    echo "$1" >"$job/phase"
    tar -C "$job" -cf "$work/job.tar" .
    truncate -s %4096 "$work/job.tar"
    : >"$work/console"
    : >"$work/told"
    nice -n "${nice:-10}" qemu-system-x86_64 -accel "${FERRITE_GUEST_ACCEL:-tcg,thread=multi}" -cpu max,erms=off,fsrm=off \
        -machine q35,nvdimm=on -smp 2 \
        -nodefaults -display none -no-reboot -serial "file:$work/console" -serial "file:$work/told" \
        -kernel "$guest/vmlinux" -initrd "$guest/initrd" -append "console=ttyS0 quiet panic=-1 mitigations=off" \
        -drive "file=$guest/root.img,if=virtio,format=raw,snapshot=on" \
        -drive "file=$work/job.tar,if=virtio,format=raw,readonly=on" \
        "${devices[@]}" </dev/null 2>>"$log" &
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

# Ends the guest as a loss of power would.
kill_guest() {
    kill -9 "$qemu" 2>/dev/null || true
    wait "$qemu" 2>/dev/null || true
    qemu=
}

# Keeps the guest's output of a phase.
gather() {
    cat "$work/console" >>"$log"
    grep -a '^RESULT' "$work/console" | tr -d '\r' | sed 's/^RESULT //' | tee -a "$results" || true
    grep -aq '^GUEST-EXIT' "$work/console" && has_ended=yes || has_ended=
    : >"$work/console"
}

# Runs a phase to its end, within so many seconds.
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
    [ -n "$has_ended" ] || echo "phase $1: FAILED (the guest did not shut down cleanly)" | tee -a "$results"
    echo "   $((SECONDS - start_s)) s"
}

# Writes the result: `about` and how long it took, a table of results, and what is in the file `appendix`, if there is
# one. `docs` is the document whose part between `<!-- result -->` and `<!-- end of result -->` it replaces, or empty;
# `part` stands for the word "result" there.
report() {
    local about=$1 docs=$2 part=${3:-result} emulator kernel
    emulator=$(qemu-system-x86_64 --version | sed -n '1s/ (.*//p')
    kernel=$(strings "$guest/vmlinux" | sed -n 's/^Linux version \([^ ]*\) .*/\1/p' | sort -u | head -n 1)
    {
        echo
        echo "$(date -u +%F), $emulator, guest kernel $kernel, $about, $((SECONDS / 60)) minutes:"
        echo
        echo "| what | result |"
        echo "| --- | --- |"
        # Rounds repeat the same checks; the table lists each once, with its count.
        sed -E 's/ \([0-9]+ s\)$//; s/: ([0-9]+) acknowledged/: acknowledged/' "$results" | sort | uniq -c | sort -k2 |
            sed -E 's/^ *([0-9]+) (.*): (ok|skipped.*|FAILED.*)$/| \2 | \3, \1 times |/; s/, 1 times \|$/ |/'
        [ ! -s "$work/appendix" ] || cat "$work/appendix"
        echo
    } >"$cache/result.md"
    cat "$cache/result.md"
    echo "(this table: $cache/result.md; what the guest said: $cache/log)"
    if [ -n "$docs" ]; then
        awk -v table="$cache/result.md" -v part="$part" '
            $0 == "<!-- end of " part " -->" {skipping = 0}
            !skipping {print}
            $0 == "<!-- " part " -->" {skipping = 1; while ((getline line < table) > 0) print line}' "$docs" >"$work/docs"
        cat "$work/docs" >"$docs"
    fi
}

has_failed() {
    grep -q FAILED "$results"
}
