#!/bin/bash
# Runs in the guest of `make pmem`, started by `../guest/init.sh`. The file `phase` names the part: `setup`, `tests`,
# `programs` or `crash`. Each check ends with a line `RESULT what: ok`, `…: FAILED` or `…: skipped` on the console.
set -uo pipefail

export FERRITE_BIN=$PWD/bin/ferrite LD_LIBRARY_PATH=$PWD/lib PATH=$PWD/bin:$PATH
modprobe -aq nfit nd_pmem device_dax dax_pmem nvme fuse loop ext4 xfs
phase=$(cat phase)
fsdax=/run/fsdax
disk=/run/disk
mkdir -p "$fsdax" "$disk" /run/mnt

# Runs a command and prints its result.
try() {
    local what=$1 start=$SECONDS
    shift
    if "$@" 2>&1 | tee /run/out; then
        echo "RESULT $what: ok ($((SECONDS - start)) s)"
    else
        echo "RESULT $what: FAILED"
    fi
}

# The devices in the order of the command line: memory with pages of 1 GiB, of 2 MiB, for a file system.
setup() {
    ndctl create-namespace -f -e namespace0.0 -m devdax -a 1G -M mem &&
        ndctl create-namespace -f -e namespace1.0 -m devdax -a 2M -M mem &&
        ndctl create-namespace -f -e namespace2.0 -m fsdax -M mem &&
        mkfs.ext4 -q /dev/pmem2 && mkfs.ext4 -q /dev/nvme0n1
}

mount_disks() {
    mount -o dax=always /dev/pmem2 "$fsdax" && mount /dev/nvme0n1 "$disk"
}

# Pools: the medium of each, and its path.
read -ra media <media
declare -A pool=([devdax-1G]=/dev/dax0.0 [devdax-2M]=/dev/dax1.0 [fsdax]=$fsdax/pool [nvme]=$disk/pool [namespaces]=nvme:/run/pool.toml)

# Namespaces by their character devices: blocks of 512 bytes, of 4 KiB, and one for the metadata.
cat >/run/pool.toml <<'TOML'
[metadata]
device = "/dev/ng3n1"
[[data]]
device = "/dev/ng1n1"
[[data]]
device = "/dev/ng2n1"
TOML

# The console is a terminal, and a progress bar would leave its line unfinished; the next output must start a line.
make_pool() {
    case $1 in
    devdax-* | namespaces) ferrite mkfs --force "${pool[$1]}" 2>&1 | cat ;;
    *) ferrite mkfs --force --size 256M "${pool[$1]}" 2>&1 | cat ;;
    esac
}

is_refused() {
    local said
    said=$(ferrite mkfs "$@" 2>&1) && return 1
    echo "$said"
    grep -q 'Nothing was changed' <<<"$said"
}

doctor() {
    ferrite doctor
    ferrite doctor | grep -q '/dev/dax1.0: device DAX' && ferrite doctor | grep -q "/dev/pmem2: mounted with DAX; make pools in $fsdax"
}

doctor_without_file_system() {
    ferrite doctor
    ferrite doctor | grep -A1 '^--.*/dev/pmem2' | grep -q 'mount -o dax=always'
}

info_says() {
    ferrite info "$2"
    ferrite info "$2" | grep -q "$1"
}

# A command fails and says this.
says() {
    local said
    said=$("${@:2}" 2>&1) && { echo "not refused: $said"; return 1; }
    echo "$said"
    grep -q "$1" <<<"$said"
}

# Commands go past the block layer, which counts nothing, and a transfer longer than a command is cut.
commands() {
    local before after
    make_pool namespaces && ferrite mount "${pool[namespaces]}" /run/mnt || return
    head -c 24M /dev/urandom >/run/content
    before=$(cat /sys/block/nvme[12]n1/stat)
    dd if=/run/content of=/run/mnt/a bs=4M status=none && dd if=/run/content of=/run/mnt/b bs=3M oflag=direct status=none
    after=$(cat /sys/block/nvme[12]n1/stat)
    ! perl -MFcntl -e 'sysopen(F, "/dev/nvme1n1", O_RDONLY | O_EXCL) or exit 1' || { echo "the namespace is not held"; return 1; }
    ferrite umount /run/mnt && ferrite mount "${pool[namespaces]}" /run/mnt || return
    cmp /run/content /run/mnt/a && cmp /run/content /run/mnt/b && ferrite umount /run/mnt && [ "$before" = "$after" ]
}

namespace_is_refused() {
    mkdir -p /run/disk2
    mkfs.ext4 -q -F /dev/nvme1n1
    says "already holds an ext" ferrite mkfs "${pool[namespaces]}" && mount /dev/nvme1n1 /run/disk2 &&
        says "mounted" ferrite mkfs --force "${pool[namespaces]}"
    local status=$?
    umount -q /run/disk2
    wipefs -qa /dev/nvme1n1
    return $status
}

tests() {
    try "doctor, /dev/pmem2 without a file system" doctor_without_file_system
    mount_disks || exit 1
    try "doctor, /dev/pmem2 mounted with DAX" doctor
    try "mkfs refuses /dev/pmem2, which is mounted" is_refused --force /dev/pmem2
    try "mkfs refuses /dev/nvme0n1, which is mounted" is_refused --force --size 64M /dev/nvme0n1
    try "mkfs refuses namespaces with another file system, and mounted ones" namespace_is_refused
    try "namespaces by commands past the block layer" commands
    # Only tests that need the guest's devices; the others run anywhere, and faster.
    for program in tests/*; do
        [ -e "$program" ] || continue
        try "test program $(basename "$program" | sed 's/-[0-9a-f]*$//')" env FERRITE_DAX_DEVICES="/dev/dax0.0 /dev/dax1.0" FERRITE_FSDAX_DIR=$fsdax \
            "$program" --test-threads 1 --nocapture looked_at what_lies fs_dax region::
    done
}

sqlite() {
    sqlite3 "$1/db" 'pragma journal_mode=wal; create table t(a integer primary key, b text);
        with recursive n(i) as (select 1 union all select i+1 from n where i<5000) insert into t select i, hex(randomblob(50)) from n;
        delete from t where a % 3 = 0; vacuum;' && [ "$(sqlite3 "$1/db" 'pragma integrity_check; select count(*) from t')" = $'ok\n3334' ]
}

git_() {
    mkdir "$1/repo" && cp -r /usr/lib/git-core/mergetools /etc "$1/repo/" && cd "$1/repo" && git init -q . &&
        git -c user.name=a -c user.email=a@b add -A && git -c user.name=a -c user.email=a@b commit -qm one &&
        git clone -q . "$1/clone" && git -C "$1/clone" fsck --full && [ -z "$(git -C "$1/clone" status --porcelain)" ]
}

tar_() {
    tar -C /usr/share -cf "$1/share.tar" perl5 zoneinfo git-core 2>/dev/null || tar -C / -cf "$1/share.tar" etc
    mkdir "$1/share" && tar -C "$1/share" -xf "$1/share.tar" && tar -C "$1/share" -df "$1/share.tar"
}

fio_() {
    fio --name=verify --directory="$1" --size=16M --bs=4k --rw=randwrite --verify=crc32c --numjobs=2 --group_reporting &&
        fio --name=map --directory="$1" --size=8M --bs=1k --rw=randrw --ioengine=mmap --verify=crc32c
}

programs() {
    mount_disks || exit 1
    for medium in "${media[@]}"; do
        { made=$(make_pool "$medium") || { echo "$made"; false; }; } && ferrite mount "${pool[$medium]}" /run/mnt ||
            { echo "RESULT $medium: FAILED"; continue; }
        for program in sqlite git_ tar_ fio_; do
            try "$medium: ${program%_}" "$program" /run/mnt
            cd /run/job || exit 1
        done
        ferrite umount /run/mnt
        try "$medium: fsck" ferrite fsck "${pool[$medium]}"
        case $medium in
        nvme) try "$medium: info" info_says 'ordinary file' "${pool[$medium]}" ;;
        namespaces) try "$medium: info" info_says '/dev/ng1n1' "${pool[$medium]}" ;;
        *) try "$medium: info" info_says 'persistent memory (DAX)' "${pool[$medium]}" ;;
        esac
    done
}

# Writes a file and a log line for each number. Once both are written, the number is reported to the host over a
# separate serial line.
write_for_ever() {
    local dir=$1 medium=$2 n=$3
    while :; do
        printf 'number %s of %s, and some more' "$n" "$medium" >"$dir/file$n" || exit
        echo "line $n" >>"$dir/log" || exit
        printf 'x' | dd of="$dir/overwritten" bs=1 seek=$((n % 5000)) conv=notrunc status=none || exit
        echo "$medium $n" >/dev/ttyS1
        n=$((n + 1))
    done
}

# What was acknowledged must be there, and nothing may be torn.
holds() {
    local dir=$1 medium=$2 last=$3 n line
    for ((n = 1; n <= last; n++)); do
        read -r line <"$dir/file$n"; [ "$line" = "number $n of $medium, and some more" ] || { echo "file$n is not whole"; return 1; }
    done
    # More may have been written than was acknowledged, but each line must be whole and in order.
    n=$(wc -l <"$dir/log")
    [ "$n" -ge "$last" ] && [ "$(cat "$dir/log")" = "$(seq -f 'line %.0f' "$n")" ] || { echo "the log is not whole"; return 1; }
}

# The file `acknowledged` has the last number of each medium that was reported to the host, over all rounds.
crash() {
    mount_disks || exit 1
    for medium in "${media[@]}"; do
        mkdir -p "/run/mnt-$medium"
        last=$(sed -n "s/^$medium //p" acknowledged)
        if [ -z "$last" ]; then
            make_pool "$medium" >/dev/null
            last=0
        else
            try "crash, $medium: fsck of what the kill left" ferrite fsck "${pool[$medium]}"
        fi
        ferrite mount "${pool[$medium]}" "/run/mnt-$medium" || { echo "RESULT crash, $medium: mount FAILED"; continue; }
        if [ "$last" -gt 0 ]; then
            try "crash, $medium: $last acknowledged numbers are there" holds "/run/mnt-$medium" "$medium" "$last"
        fi
        # What was written but not acknowledged is written again.
        rm -f "/run/mnt-$medium/file$((last + 1))"
        [ ! -e "/run/mnt-$medium/log" ] || sed -i "$((last + 1)),\$d" "/run/mnt-$medium/log"
        [ -n "${final:-}" ] || write_for_ever "/run/mnt-$medium" "$medium" $((last + 1)) &
    done
    echo && echo WRITING
    [ -z "${final:-}" ] || for medium in "${media[@]}"; do
        ferrite umount "/run/mnt-$medium"
        try "crash, $medium: fsck at the end" ferrite fsck "${pool[$medium]}"
    done
    wait
}

case $phase in
setup) try "namespaces and file systems" setup ;;
tests) tests ;;
programs) programs ;;
crash) crash ;;
final) final=yes crash ;;
esac
