# shellcheck shell=bash
# Part of job.sh: programs that know nothing of Ferrite, with the kernel's soft RDMA, against `ferrite serve`.
#
# The kernel's RDMA has UDP port 4791 of the first network namespace. So the server lives in another one, `far`, with a
# port 4791 of its own, and a veth pair between them:
#
#   rxe1 on `near`  10.98.0.2, fd98::2   <->   10.98.0.1, fd98::1  `far`  ferrite serve
#                                              10.98.0.3, fd98::3         the example `responder`, for ib_write_lat
#
# What a program wrote is compared with the file as the server shows it to its own host, through the file system.

far_4=10.98.0.1 far_6=fd98::1
key=/run/stock.key
pool=/dev/shm/stock.pool
there="tcp://127.0.0.1:7447/data?key=$key:"

far() {
    ip netns exec far "$@"
}

# Until a command succeeds, for so many seconds.
until_ok() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.3
    done
}

two_hosts() {
    modprobe -a veth rdma_rxe ib_uverbs rdma_ucm || return
    ip netns add far && ip link add near type veth peer name veth netns far || return
    ip addr add 10.98.0.2/24 dev near && ip addr add fd98::2/64 dev near nodad && ip link set near up || return
    ip -n far link set lo up && ip -n far link set veth up || return
    ip -n far addr add "$far_4/24" dev veth && ip -n far addr add "$far_6/64" dev veth nodad || return
    ip -n far addr add 10.98.0.3/24 dev veth && ip -n far addr add fd98::3/64 dev veth nodad || return
    rdma link add rxe1 type rxe netdev near || return
    /lib/systemd/systemd-udevd --daemon && udevadm trigger && udevadm settle
    ibv_devinfo -d rxe1 -v | grep -E 'state|active_mtu|GID'
}

# An interface's size is the path MTU's: 1500 carries 1024, 9000 carries 4096.
set_mtu() {
    ip link set near mtu "$1" && ip -n far link set veth mtu "$1"
}

# Loses so many per cent of what goes in each direction; 0 is none.
lose() {
    if tc qdisc show dev near | grep -q netem; then
        { tc -s qdisc show dev near && far tc -s qdisc show dev veth; } | grep -o 'dropped [0-9]*' | tee /run/lost
        tc qdisc del dev near root
        far tc qdisc del dev veth root
    fi
    [ "$1" = 0 ] && return
    tc qdisc add dev near root netem loss "$1%" && far tc qdisc add dev veth root netem loss "$1%"
}

start_server() {
    ferrite key "$key" && ferrite mkfs "$pool" --size 512M || return
    cat >/run/stock.toml <<TOML
listen = ["tcp://$far_4:7447", "tcp://[$far_6]:7447", "tcp://127.0.0.1:7447"]
rdma = ["$far_4", "$far_6"]
rdma_unprotected = true

[keys]
all = "$key"

[[pool]]
path = "$pool"

[[pool.export]]
name = "data"
keys = ["all"]
root_squash = false
TOML
    # Not `far`, which would be a shell of its own, whose end is not the server's.
    ip netns exec far ferrite serve --config /run/stock.toml >/run/server 2>&1 &
    echo $! >/run/server.pid
    until_ok 60 far ferrite ls "$there/" || { cat /run/server; return 1; }
}

# The place of an address of ours among the GIDs of rxe1.
gid_of() {
    local n pattern
    case $1 in 4) pattern=':ffff:0a62:0002$' ;; 6) pattern='^fd98:.*:0002$' ;; esac
    for n in /sys/class/infiniband/rxe1/ports/1/gids/*; do
        ! grep -q "$pattern" "$n" || { basename "$n"; return; }
    done
    return 1
}

far_of() {
    case $1 in 4) echo "$far_4" ;; 6) echo "$far_6" ;; esac
}

host_of() {
    case $1 in 4) echo "$far_4:7447" ;; 6) echo "[$far_6]:7447" ;; esac
}

# A new file of so many bytes, by the file system of the server.
new_file() {
    truncate -s "$2" /run/zeros && far ferrite cp -q /run/zeros "$there/$1"
}

# FAMILY FILE: connects it to programs that exchange keys as perftest does; $broker is the broker's process.
broker_file() {
    broker "$(host_of "$1")" data "$key" "$2" 18515 >/run/broker 2>&1 &
    broker=$!
    until_ok 30 grep -q '^listening' /run/broker || { cat /run/broker; return 1; }
}

end_broker() {
    kill "$broker" 2>/dev/null
    wait "$broker" 2>/dev/null
    cat /run/broker
}

# Whether the server shows a file as it must be.
is_as() {
    far ferrite cat "$there/$1" >/run/got && cmp /run/got "$2"
}

# What the server and its adapter have seen.
tell_server() {
    cat /run/server
    far ferrite mr list "${there%:}"
}

# FAMILY light|full
by_exchange() {
    local name=exchange-$RANDOM status
    new_file "$name" 6M && broker_file "$1" "$name" || return
    timeout 500 stock exchange 127.0.0.1 18515 rxe1 "$(gid_of "$1")" $((6 << 20)) /run/image $RANDOM "$2"
    status=$?
    end_broker
    lose 0
    [ $status = 0 ] || tell_server
    [ $status = 0 ] && is_as "$name" /run/image
}

# FAMILY light|full
by_cm() {
    local name=cm-$RANDOM status holder file_key pass
    new_file "$name" 6M || return
    ferrite mr bind "tcp://$(host_of "$1")/data?key=$key:/$name" --json >/run/bind &
    holder=$!
    until_ok 30 grep -q pass /run/bind || return
    file_key=$(sed -nE 's/.*"key": ?([0-9]+).*/\1/p' /run/bind)
    pass=$(sed -nE 's/.*"pass": ?"([0-9a-f]+)".*/\1/p' /run/bind)
    timeout 500 stock cm "$(far_of "$1")" 7447 "$file_key" "$pass" $((6 << 20)) /run/image $RANDOM "$2"
    status=$?
    kill "$holder" && wait "$holder"
    lose 0
    [ $status = 0 ] || tell_server
    [ $status = 0 ] && is_as "$name" /run/image
}

# PER CENT, and what to run
with_loss() {
    modprobe sch_netem 2>/dev/null || { echo "skipped: the guest's kernel has no sch_netem"; return; }
    lose "$1" || return
    "${@:2}" || return
    # Both directions lost something, or this has shown nothing.
    [ "$(grep -c 'dropped [1-9]' /run/lost)" = 2 ]
}

# FAMILY PROGRAM OPTIONS..., of perftest
perftest() {
    local name=perftest-$RANDOM status
    new_file "$name" 4M && broker_file "$1" "$name" || return
    timeout 100 "$2" -d rxe1 -x "$(gid_of "$1")" -p 18515 -F "${@:3}" 127.0.0.1
    status=$?
    end_broker
    [ $status = 0 ] || { tell_server; return 1; }
    # They write what is random, and check nothing of what they read.
    case $2 in *write*) ! is_as "$name" /run/zeros >/dev/null ;; esac
}

# FAMILY BYTES ROUNDS: the other end of ib_write_lat writes back, which a server of files does not
write_lat() {
    local host status player
    case $1 in 4) host=10.98.0.3 ;; 6) host=fd98::3 ;; esac
    # TCP goes over IPv4, which is what this program takes by itself; RDMA goes to $host.
    ip netns exec far responder "/dev/shm/responder-$RANDOM.pool" $host 18516 "$2" "$3" >/run/responder 2>&1 &
    player=$!
    until_ok 30 grep -q '^listening' /run/responder || { cat /run/responder; return 1; }
    timeout 100 ib_write_lat -d rxe1 -x "$(gid_of "$1")" -p 18516 -F -s "$2" -n "$3" 10.98.0.3
    status=$?
    until_ok 10 grep -q '^done' /run/responder
    kill "$player" && wait "$player"
    cat /run/responder
    [ $status = 0 ] && grep -q "^answered $3 rounds" /run/responder
}

# What is left on the medium when the server has ended.
after_all() {
    local server
    server=$(cat /run/server.pid)
    kill "$server" && until_ok 60 test ! -e "/proc/$server" || return
    cat /run/server
    ferrite fsck "$pool"
}

# The words of FERRITE_RDMA_TESTS choose here, too.
try_stock() {
    [ "${#wanted[@]}" = 0 ] || grep -qF "$(printf '%s\n' "${wanted[@]}")" <<<"$1" || return 0
    try "$@"
}

stock() {
    local mtu family
    try "stock: two hosts, one with rdma_rxe" two_hosts
    try "stock: ferrite serve" start_server
    for mtu in 9000 1500; do
        set_mtu "$mtu"
        for family in 4 6; do
            try_stock "stock: libibverbs, IPv$family, MTU $mtu" by_exchange "$family" full
            try_stock "stock: rdma_cm, IPv$family, MTU $mtu" by_cm "$family" full
        done
    done
    try_stock "stock: libibverbs, IPv4, 1 % lost" with_loss 1 by_exchange 4 light
    try_stock "stock: libibverbs, IPv6, 5 % lost" with_loss 5 by_exchange 6 light
    try_stock "stock: rdma_cm, IPv4, 5 % lost" with_loss 5 by_cm 4 light
    set_mtu 9000
    for family in 4 6; do
        try_stock "stock: ib_write_bw, IPv$family" perftest "$family" ib_write_bw -n 500 -s 65536 -t 16
        try_stock "stock: ib_read_bw, IPv$family" perftest "$family" ib_read_bw -n 500 -s 65536 -t 16
        try_stock "stock: ib_read_lat, IPv$family" perftest "$family" ib_read_lat -n 1000 -s 64
        try_stock "stock: ib_write_lat, IPv$family" write_lat "$family" 64 1000
    done
    try_stock "stock: ib_write_lat, 64 KiB" write_lat 4 65536 100
    # Of completions that stand for 16 messages ib_write_bw counts the last as 16, too, and asks for no more when the
    # sum is as wanted. If that is so before the slowest queue pair is done, it waits for ever. Multiples of 16 are safe.
    try_stock "stock: ib_write_bw with 4 queue pairs" perftest 4 ib_write_bw -n 512 -s 4096 -t 16 -q 4
    try "stock: the pool after all" after_all
}
