#!/usr/bin/env bash
# Records what real programs write to a mounted pool: the traces of figure hdpm-2, in crates/ferrite-lab/traces.
#
#   scripts/record-traces.sh            all of them
#   scripts/record-traces.sh git log    some of them
#
# Each program prepares its files first. Then the pool is mounted again with `-o trace=FILE`, and the program does its
# work. The first KEEP_BYTES of each trace are kept, in whole lines; such a prefix is a valid trace. FERRITE_BIN names
# the ferrite program; without it, it is built. Needs FUSE, sqlite3 for Python, git, cargo, rsync, tar; PostgreSQL and
# pgbench for the trace `postgres`, which is left out without them.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
traces="$root/crates/ferrite-lab/traces"
programs="$root/scripts/traced"
keep_bytes=${KEEP_BYTES:-40000}
all=(postgres sqlite-rollback sqlite-wal photos git build rsync tar log)

if [ -z "${FERRITE_BIN:-}" ]; then
    cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p ferrite-cli
    FERRITE_BIN=${CARGO_TARGET_DIR:-$root/target}/release/ferrite
fi

scratch=$(mktemp -d /dev/shm/ferrite-traces-XXXXXX)
chmod 755 "$scratch"
pool=$scratch/pool
mount=$scratch/mnt
mkdir "$mount"
cleanup() {
    umount -l "$mount" 2>/dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT

# ---- the programs: prepare_NAME runs before the trace, run_NAME while it is recorded; told_NAME describes it ----

postgres_bin() { dirname "$(find /usr/lib/postgresql -name pgbench 2>/dev/null | sort -V | tail -n 1)"; }
as_postgres() { if [ "$(id -u)" = 0 ]; then (cd / && runuser -u postgres -- "$@"); else "$@"; fi; }
pg() {
    local tool=$1
    shift
    as_postgres "$(postgres_bin)/$tool" "$@"
}
postgres_up() {
    # Buffers smaller than the tables, so that pages are written all the time, not only at checkpoints.
    pg pg_ctl -D "$mount/db" -l "$scratch/pg/log" -w -o "-c listen_addresses='' -c unix_socket_directories=$scratch/pg -c shared_buffers=2MB" \
        start >/dev/null
}
postgres_down() { pg pg_ctl -D "$mount/db" -w stop >/dev/null; }
told_postgres() { echo "$(pg postgres --version), pgbench (TPC-B-like) with two clients, tables larger than its buffers"; }
prepare_postgres() {
    mkdir -p "$scratch/pg" "$mount/db"
    if [ "$(id -u)" = 0 ]; then chown postgres "$scratch/pg" "$mount/db"; fi
    pg initdb -D "$mount/db" -A trust --no-sync >/dev/null
    postgres_up
    pg pgbench -h "$scratch/pg" -i -q -s 2 postgres 2>/dev/null
    postgres_down
}
run_postgres() {
    postgres_up
    pg pgbench -h "$scratch/pg" -n -c 2 -t 1000 postgres >/dev/null 2>&1
    postgres_down
}

sqlite() { python3 "$programs/orders.py" "$@"; }
sqlite_version() { python3 -c 'import sqlite3; print("SQLite", sqlite3.sqlite_version)'; }
told_sqlite-rollback() { echo "$(sqlite_version) with a rollback journal, small TPC-C-like transactions (scripts/traced/orders.py)"; }
prepare_sqlite-rollback() { sqlite "$mount/shop.db" delete load; }
run_sqlite-rollback() { sqlite "$mount/shop.db" delete 400; }
told_sqlite-wal() { echo "$(sqlite_version) with a write-ahead log, small TPC-C-like transactions (scripts/traced/orders.py)"; }
prepare_sqlite-wal() { sqlite "$mount/shop.db" wal load; }
run_sqlite-wal() { sqlite "$mount/shop.db" wal 1000; }

told_photos() { echo "a photo library: pictures, thumbnails, sidecars, a catalogue in $(sqlite_version) (scripts/traced/photos.py)"; }
prepare_photos() { python3 "$programs/photos.py" "$mount/library" 40; }
run_photos() { python3 "$programs/photos.py" "$mount/library" 120; }

told_git() { echo "$(git --version): a clone of this project, twelve commits, gc"; }
prepare_git() { :; }
run_git() {
    git clone -q --no-local "$root" "$mount/clone"
    (
        cd "$mount/clone"
        export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t
        for number in $(seq 12); do
            for file in $(git ls-files '*.rs' | sed -n "$number~12p"); do echo "// $number" >> "$file"; done
            git commit -qam "$number"
        done
        git gc -q
    )
}

told_build() { echo "$(cargo --version): a debug build of ferrite-vfs and what it needs"; }
prepare_build() { :; }
run_build() { cargo build --quiet --offline --manifest-path "$root/Cargo.toml" -p ferrite-vfs --target-dir "$mount/target"; }

told_rsync() { echo "$(rsync --version | head -n 1 | tr -s ' '): this project's sources, then again after changes"; }
prepare_rsync() { :; }
run_rsync() {
    git -C "$root" archive HEAD --prefix=tree/ | tar -C "$scratch" -xf -
    rsync -a "$scratch/tree" "$mount"
    find "$scratch/tree" -name '*.rs' -exec sh -c 'echo "// changed" >> "$1"' _ {} \;
    rsync -a --no-whole-file --inplace "$scratch/tree" "$mount"
}

told_tar() { echo "$(tar --version | head -n 1): this project's sources into an archive, and out of it"; }
prepare_tar() { :; }
run_tar() {
    git -C "$root" archive HEAD --prefix=tree/ | tar -C "$scratch" -xf -
    tar -C "$scratch" --exclude report.html --exclude results.json -cf "$mount/tree.tar" tree
    tar -C "$mount" -xf "$mount/tree.tar"
}

told_log() { echo "$(python3 --version): three services that log lines through its logging module, with rotation (scripts/traced/log.py)"; }
prepare_log() { python3 "$programs/log.py" "$mount" 200; }
run_log() { python3 "$programs/log.py" "$mount" 8000; }

# ---- recording ----

# The first lines of a trace, with comments that describe them.
cut_trace() {
    local all kept
    all=$(grep -c '^[0-9]' "$2")
    kept=$(head -c "$keep_bytes" "$2" | sed '$d' | grep -c '^[0-9]')
    [ "$(wc -c < "$2")" -gt "$keep_bytes" ] || kept=$all
    head -n 1 "$2"
    echo "# $1: $("told_$1")"
    echo "# the first $kept of $all writes, as the kernel passed them on: cut where pages end"
    if [ "$kept" = "$all" ]; then tail -n +2 "$2"; else head -c "$keep_bytes" "$2" | sed '1d;$d'; fi
}

record() {
    local name=$1
    if [ "$name" = postgres ] && ! [ -x "$(postgres_bin)/pgbench" ]; then
        echo "$name: left out, PostgreSQL and pgbench are not installed" >&2
        return
    fi
    "$FERRITE_BIN" mkfs "$pool" --size 1G --force >/dev/null
    "$FERRITE_BIN" mount "$pool" "$mount"
    "prepare_$name"
    "$FERRITE_BIN" umount "$mount"
    "$FERRITE_BIN" mount "$pool" "$mount" -o "trace=$scratch/trace"
    "run_$name"
    "$FERRITE_BIN" umount "$mount"
    cut_trace "$name" "$scratch/trace" > "$scratch/cut"
    cp "$scratch/cut" "$traces/$name.trace"
    rm -rf "$pool" "$scratch/tree"
    sed -n '2,3p' "$traces/$name.trace"
}

mkdir -p "$traces"
for name in "${@:-${all[@]}}"; do
    case " ${all[*]} " in
        *" $name "*) record "$name" ;;
        *) echo "$name: no such trace; there are ${all[*]}" >&2; exit 2 ;;
    esac
done
