#!/usr/bin/env python3
"""Runs the workspace's test programs, two at a time, and its documentation's tests.

`cargo test` runs one program after another. Tests on a mount mostly wait, which leaves time for those that compute.
The output of each program is printed in one piece when it has ended. All programs run even if some fail; the exit code
is 1 if any failed. A program that takes half an hour hangs: what its threads wait for is printed, and it is ended, so that
its tests are named and the others still run.

    run-tests.py [--short] [--only CRATE/PROGRAM[=TESTS]]... ARGUMENT...

    ARGUMENT is passed to `cargo test` to choose packages, targets and features. With --only, no other programs run, and
    of each only the tests whose names contain TESTS; the documentation's tests do not run then.
"""

import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

# The longest start first, so that none runs alone at the end.
LONGEST = ["real_programs", "suites", "explorer", "crash", "loops", "ferrite_fs", "ferrite_map", "ageing"]
# These compare times or memory, or take CPUs away, so nothing else runs at the same time.
ALONE = ["recovery_time", "quick", "mount_memory", "rings"]
# These mount, and run once more in the classic way where the kernel offers FUSE over io_uring. With FERRITE_RINGS set,
# nothing runs twice. `real_programs` takes minutes; `make soak` has it both ways.
BOTH_WAYS = [
    "mount_basic",
    "mount_memory",
    "posix_mount",
    "mount_locks",
    "loops_mount",
    "full_device",
    "habits",
    "events",
    "coherence",
    "leased_mounts",
    "administrator",
]
SWITCH = "/sys/module/fuse/parameters/enable_uring"
# More than twice what the longest takes on a busy machine.
LIMIT_S = 1800
# What `--short` runs of the longest; None: nothing.
SHORT = {
    "real_programs": ["git_", "archives_", "sqlite_"],
    "explorer": ["no_crash_parts_a_move_from_its_entries"],
    "crash": ["--skip", "long_random_workloads", "--skip", "nodes_of_trees", "--skip", "space_of_folds"],
    "loops": ["long_loops_on_64_mib"],
    "suites": ["posix_rules", "random_operations"],
    "crash_kill": None,
    "loops_mount": None,
    "ageing": None,
    "fuzz_corpus": None,
}


def programs(arguments):
    """Builds; returns (name, folder, executable) of each test program."""
    command = ["cargo", "test", "--no-run", "--message-format=json-render-diagnostics", *arguments]
    build = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if build.returncode != 0:
        sys.exit(build.returncode)
    found = []
    for line in build.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = os.path.dirname(message["manifest_path"])
            found.append((message["target"]["name"], folder, message["executable"]))
    return found


def waits_of(group):
    """What each thread of the processes of a group waits for, in lines."""
    lines = []
    for task in glob.glob("/proc/[0-9]*/task/[0-9]*"):
        try:
            if os.getpgid(int(task.split("/")[2])) != group:
                continue
            said = [open(f"{task}/{name}", encoding="utf-8").read().strip() for name in ("comm", "wchan", "syscall")]
        except OSError:
            continue
        lines.append(f"{task}: {said[0]}, in {said[1]}, system call {said[2]}\n")
    return "".join(lines)


def rings_offered():
    """Whether mounts can have rings, if need be after root has switched them on."""
    try:
        with open(SWITCH, "r+", encoding="utf-8") as switch:
            if switch.read().strip() not in ("Y", "1"):
                switch.write("1")
        return True
    except OSError:
        try:
            with open(SWITCH, encoding="utf-8") as switch:
                return switch.read().strip() in ("Y", "1")
        except OSError:
            return False


def run(program, is_short):
    """Runs one; returns whether all of its tests passed."""
    name, folder, executable, *way = program
    environment = dict(os.environ, CARGO_MANIFEST_DIR=folder)
    if way:
        environment["FERRITE_RINGS"] = way[0]
    chosen = [ONLY[key] for key in [f"{os.path.basename(folder)}/{name}"] if ONLY.get(key)]
    if is_short:
        environment["FERRITE_SHORT"] = "1"
        chosen = SHORT.get(name, [])
    if chosen is None:
        return True
    began = time.monotonic()
    # A file, not a pipe: a daemon that a test left behind would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        ended = subprocess.Popen(
            [executable, *chosen],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        waits = ""
        try:
            ended.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            waits = waits_of(ended.pid)
            os.killpg(ended.pid, signal.SIGKILL)
        seconds = time.monotonic() - began
        output.seek(0)
        with PRINTING:
            title = " ".join([name, *(f"with rings={word}" for word in way)])
            print(f"== {os.path.basename(folder)}: {title} ({seconds:.0f} s)", flush=True)
            sys.stdout.buffer.write(output.read())
            if waits:
                print(f"\nFAILED: {name} hangs: it was ended after {LIMIT_S} s. Its threads:\n{waits}")
            sys.stdout.flush()
    return not waits and ended.wait() == 0


PRINTING = threading.Lock()
# From --only: `crate/program` to the part of a test's name, or to nothing.
ONLY = {}


def parse(arguments):
    """Returns whether the run is short, and the arguments of cargo."""
    is_short, kept = False, []
    arguments = iter(arguments)
    for argument in arguments:
        if argument == "--short":
            is_short = True
        elif argument == "--only":
            program, _, tests = next(arguments).partition("=")
            ONLY[program] = tests
        else:
            kept.append(argument)
    return is_short, kept


def main():
    is_short, arguments = parse(sys.argv[1:])
    rank = {name: place for place, name in enumerate(LONGEST)}
    todo = sorted(programs(arguments), key=lambda program: rank.get(program[0], len(LONGEST)))
    if ONLY:
        todo = [program for program in todo if f"{os.path.basename(program[1])}/{program[0]}" in ONLY]
        if len(todo) != len(ONLY):
            sys.exit(f"{len(ONLY)} programs are asked for, and {len(todo)} of them exist")
    elif not is_short and "FERRITE_RINGS" not in os.environ and rings_offered():
        todo += [(*program, "off") for program in todo if program[0] in BOTH_WAYS]
    alone = [program for program in todo if program[0] in ALONE]
    todo = [program for program in todo if program[0] not in ALONE]
    failed, choosing = [], threading.Lock()

    def lane():
        while True:
            with choosing:
                if not todo:
                    return
                program = todo.pop(0)
            if not run(program, is_short):
                failed.append(program)

    lanes = [threading.Thread(target=lane) for _ in range(2)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    failed += [program for program in alone if not run(program, is_short)]
    documented = is_short or ONLY or subprocess.run(["cargo", "test", "--doc", *arguments], check=False).returncode == 0
    for name, folder, _, *way in failed:
        print(f"FAILED: cargo test -p {os.path.basename(folder)} ({' '.join([name, *way])})")
    if not documented:
        print("FAILED: cargo test --doc")
    sys.exit(1 if failed or not documented else 0)


main()
