#!/bin/bash
# Runs in the guest of `make rdma`, started by `../guest/init.sh`. The file `phase` names the part: `tools`, `stock`, `tests`
# or `bench`. Each check ends with a line `RESULT what: ok`, `...: skipped` or `...: FAILED` on the console; what is
# measured, with a line `MEASURED what: value`.
set -uo pipefail

export LD_LIBRARY_PATH=$PWD/lib PATH=$PWD/bin:$PATH
export FERRITE_FABRIC_PROVIDER=verbs FERRITE_FABRIC_HOST=10.99.0.2
# rdma_rxe has completion queues of 32,767 entries. libfabric asks for 256 for each of so many peers, 256 unless told.
export FI_UNIVERSE_SIZE=64
phase=$(cat phase)
read -ra wanted <wanted

# Runs a command and prints its result.
try() {
    local what=$1 start=$SECONDS
    shift
    if ! "$@" 2>&1 | tee /run/out; then
        echo "RESULT $what: FAILED"
    elif grep -q '^\(test .* \.\.\. \)\?skipped:' /run/out && ! grep -q 'cases passed$' /run/out; then
        echo "RESULT $what: skipped"
    else
        echo "RESULT $what: ok ($((SECONDS - start)) s)"
    fi
}

make_device() {
    modprobe -a virtio_net rdma_rxe ib_uverbs rdma_ucm || return
    local eth
    eth=$(basename "$(echo /sys/bus/virtio/drivers/virtio_net/virtio*/net/*)")
    ip link set "$eth" mtu 9000 up && ip addr add 10.99.0.2/24 dev "$eth" && ip addr add fd99::2/64 dev "$eth" nodad || return
    rdma link add rxe0 type rxe netdev "$eth" || return
    # Nodes in /dev/infiniband have names only udev gives them.
    /lib/systemd/systemd-udevd --daemon && udevadm trigger && udevadm settle
    rdma link show
    ibv_devices
    ibv_devinfo -d rxe0 | grep -E 'state|active_mtu'
}

has_verbs() {
    fi_info -p 'verbs;ofi_rxm' -t FI_EP_RDM -n "$FERRITE_FABRIC_HOST" | tee /run/info && grep -q 'FI_EP_RDM' /run/info
}

# A program that serves, and the same one that talks to it.
with_server() {
    local status
    timeout 70 "$@" >/run/server 2>&1 &
    sleep 4
    timeout 60 "$@" "$FERRITE_FABRIC_HOST"
    status=$?
    wait $! || status=1
    [ $status = 0 ] || cat /run/server
    return $status
}

gid_index() {
    local gid=/sys/class/infiniband/rxe0/ports/1/gids n
    for n in 0 1 2 3; do
        case $(cat "$gid/$n") in *:ffff:*) echo "$n" && return ;; esac
    done
}

rping_() {
    timeout 60 rping -s -a "$FERRITE_FABRIC_HOST" -C 5 &
    sleep 2
    timeout 60 rping -c -a "$FERRITE_FABRIC_HOST" -C 5 -V && wait $!
}

tools() {
    try "fi_info: verbs, and messages without connections over it" has_verbs
    try "ibv_rc_pingpong" with_server ibv_rc_pingpong -d rxe0 -g "$(gid_index)" -n 200
    try "rping (connections by rdma_cm)" rping_
    # With its usual 128 messages of 64 KiB under way it stalls at times, when the host is busy.
    try "ib_write_bw, with rdma_cm" with_server ib_write_bw -R -d rxe0 -n 200 -s 65536 -t 8
    try "raw, 64 bytes" raw_ping_pong verbs 64 1000 "$FERRITE_FABRIC_HOST"
    try "raw, 8 KiB" raw_ping_pong verbs 8192 500 "$FERRITE_FABRIC_HOST"
}

# Not tests, of other providers, or with a network in between that is broken on purpose, which is TCP.
not_here='^child$|_over_(shm|tcp)$|^who_does_not_come_back_leaves_nothing$|^slots_are_free_again$'

# Each test in a process of its own: one that hangs or crashes leaves no connections to the next.
tests() {
    local program test
    for program in tests/*; do
        for test in $("$program" --list 2>/dev/null | sed -n 's/: test$//p' | grep -vE "$not_here"); do
            [ "${#wanted[@]}" = 0 ] || grep -qF "$(printf '%s\n' "${wanted[@]}")" <<<"$test" || continue
            # What a library uses after it has freed it is not as it was, and shows.
            export MALLOC_PERTURB_=165
            # The long versions, too, but for kills, of which those would have hundreds.
            case $program in *,restart) unset FERRITE_SOAK ;; *) export FERRITE_SOAK=1 ;; esac
            try "$(basename "${program/,/, }"): $test" timeout 900 "$program" --exact "$test" --nocapture --test-threads 1
        done
    done
}

bench() {
    local bytes line
    for bytes in 64 4096 8192; do
        try "raw, $bytes bytes" raw_ping_pong verbs "$bytes" 2000 "$FERRITE_FABRIC_HOST"
        sed -nE 's/^(.*): (.*) there and back/MEASURED raw, \1, there and back: \2/p' /run/out
    done
    try "operations, tcp and fabric" rounds verbs "$FERRITE_FABRIC_HOST" 1000
    sed -nE 's/^(.*): (.*) each/MEASURED \1: \2/p' /run/out
}

if [ "$phase" = stock ]; then
    . ./stock.sh
    stock
    exit
fi
make_device >/run/out 2>&1 || { cat /run/out; echo "RESULT a device of rdma_rxe: FAILED"; exit 1; }
[ "$phase" != tools ] || { cat /run/out; echo "RESULT a device of rdma_rxe: ok"; }
"$phase"
