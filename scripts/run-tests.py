#!/usr/bin/env python3
"""Runs the workspace's tests, two groups at a time, and its documentation's tests.

A group is a test program, or a module of the program `it`, into which a crate's integration tests are linked. Each runs
in a process of its own; `cargo test` would run one program after another. Tests on a mount mostly wait, which leaves
time for those that compute. The output of a group is printed in one piece when it has ended. All groups run even if some
fail; the exit code is 1 if any failed. A group that takes half an hour hangs: what its threads wait for is printed, and
it is ended, so that its tests are named and the others still run.

    run-tests.py [--short | --record] [--only CRATE/GROUP[=TESTS]]... ARGUMENT...

    ARGUMENT is passed to `cargo test` to choose packages, targets and features. With --only, no other groups run, and
    of each only the tests whose names contain TESTS; the documentation's tests do not run then.

docs/test-times.md has the seconds of each group on the machine that recorded them. With --short, only groups that are
quick by that list run, and some parts of others, so that a short run stays short as tests are added. A whole run fails
if a group takes a third longer than that, after the machine's speed is taken into account; `--record` writes the list
anew.
"""

import glob
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

# These compare times or memory, or take CPUs away, so nothing else runs at the same time.
ALONE = ["recovery_time", "quick", "mount_memory", "rings"]
# These mount, and run once more in the classic way where the kernel offers FUSE over io_uring. With FERRITE_RINGS set,
# nothing runs twice. `real_programs` takes minutes; `make soak` has it both ways.
BOTH_WAYS = [
    "mount_basic",
    "mount_calls",
    "mount_flags",
    "mount_memory",
    "posix_mount",
    "mount_locks",
    "loops_mount",
    "full_device",
    "habits",
    "handles",
    "events",
    "coherence",
    "leased_mounts",
    "administrator",
]
SWITCH = "/sys/module/fuse/parameters/enable_uring"
# More than twice what the longest takes on a busy machine.
LIMIT_S = 1800
# `--short` leaves out groups that take longer than this in a whole run, by the list below, except these parts of them,
# by parts of names; after "not", all but these.
QUICK_S = 4
SHORT = {
    "ferrite-cli/real_programs": ["sqlite_"],
    "ferrite-crash/explorer": ["no_crash_parts_a_move_from_its_entries"],
    "ferrite-fs/ferrite_fs": ["not", "grow::"],
    "ferrite-fs/suites": ["posix_rules", "random_operations"],
}
TIMES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "test-times.md")
# A group may be this much slower than recorded; what all groups are slower by does not count.
GROWTH, SLACK_S = 4 / 3, 60


class Group:
    """Tests that share a process."""

    def __init__(self, folder, name, executable, tests, way=None):
        self.folder, self.name, self.executable, self.tests, self.way = folder, name, executable, tests, way
        self.crate = os.path.basename(folder)
        self.seconds, self.cpu_seconds, self.ended_well = 0.0, 0.0, False

    def key(self):
        """Its name in lists."""
        return f"{self.crate}/{self.name}" + (f" (rings {self.way})" if self.way else "")

    def keep(self, parts):
        """Keeps the tests whose names contain one of `parts`, or none of them after "not"."""
        is_wanted = parts[:1] != ["not"]
        parts = parts if is_wanted else parts[1:]
        self.tests = [test for test in self.tests if any(part in test for part in parts) == is_wanted]


def groups(arguments):
    """Builds; returns all groups."""
    command = ["cargo", "test", "--no-run", "--message-format=json-render-diagnostics", *arguments]
    began = time.monotonic()
    build = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if build.returncode != 0:
        sys.exit(build.returncode)
    print(f"== the build took {time.monotonic() - began:.0f} s", flush=True)
    found = []
    for line in build.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        folder, name = os.path.dirname(message["manifest_path"]), message["target"]["name"]
        listing = [message["executable"], "--list", "--format", "terse"]
        listed = subprocess.run(listing, cwd=folder, stdout=subprocess.PIPE, check=True).stdout.decode()
        by_group = {}
        for test in re.findall(r"^(.*): test$", listed, re.MULTILINE):
            group = test.split("::")[0] if name == "it" else name
            by_group.setdefault(group, []).append(test)
        found += [Group(folder, group, message["executable"], tests) for group, tests in by_group.items()]
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


def wait_for(process, limit_s):
    """Waits for a process that ended within a time, or ends its group; returns its exit code, the CPU time of it and of
    the processes that it waited for, and what its threads waited for if it had to be ended."""
    deadline, waits = time.monotonic() + limit_s, ""
    while True:
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_utime + usage.ru_stime, waits
        if time.monotonic() > deadline and not waits:
            waits = waits_of(process.pid) or "(none)"
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.01)


def run(group):
    """Runs one."""
    environment = dict(os.environ, CARGO_MANIFEST_DIR=group.folder)
    if group.way:
        environment["FERRITE_RINGS"] = group.way
    began = time.monotonic()
    # A file, not a pipe: a daemon that a test left behind would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        ended = subprocess.Popen(
            [group.executable, "--exact", *group.tests],
            cwd=group.folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code, group.cpu_seconds, waits = wait_for(ended, LIMIT_S)
        group.seconds = time.monotonic() - began
        output.seek(0)
        with PRINTING:
            print(f"== {group.key()} ({group.seconds:.0f} s, {group.cpu_seconds:.0f} s on a CPU)", flush=True)
            sys.stdout.buffer.write(output.read())
            if waits:
                print(f"\nFAILED: {group.key()} hangs: it was ended after {LIMIT_S} s. Its threads:\n{waits}")
            sys.stdout.flush()
    group.ended_well = not waits and code == 0


PRINTING = threading.Lock()


def run_all(todo, recorded):
    """Runs all, the longest first, so that none runs alone at the end, and a group that nobody timed before those."""
    todo.sort(key=lambda group: -recorded.get(group.key(), 1e9))
    waiting = [group for group in todo if group.name not in ALONE]
    choosing = threading.Lock()

    def lane():
        while True:
            with choosing:
                if not waiting:
                    return
                group = waiting.pop(0)
            run(group)

    lanes = [threading.Thread(target=lane) for _ in range(2)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    for group in todo:
        if group.name in ALONE:
            run(group)


def recorded_times():
    """The seconds of each group, as the list in the documentation has them."""
    try:
        with open(TIMES, encoding="utf-8") as file:
            return {key: float(seconds) for key, seconds in re.findall(r"^\| (\S.*?) \| ([\d.]+) \|$", file.read(), re.M)}
    except FileNotFoundError:
        return {}


def record(done):
    """Writes the list and its sum anew, below the introduction."""
    with open(TIMES, encoding="utf-8") as file:
        intro = file.read().split("| group |")[0]
    rows = sorted(done, key=lambda group: (-round(group.seconds), group.key()))
    with open(TIMES, "w", encoding="utf-8") as file:
        file.write(intro + "| group | seconds |\n| --- | ---: |\n")
        file.writelines(f"| {group.key()} | {group.seconds:.0f} |\n" for group in rows if group.seconds >= 1)
        total = sum(group.seconds for group in rows)
        alone = sum(group.seconds for group in rows if group.name in ALONE)
        minutes = ((total - alone) / 2 + alone) / 60
        file.write(f"\nThe groups add up to {total:.0f} seconds. Two at a time, with {alone:.0f} seconds of groups that")
        file.write(f" run alone,\nthat is {minutes:.0f} minutes.\n")


def grown(done, recorded):
    """The groups that have become slower than all the others have, in lines."""
    if not recorded:
        return []
    # Those of less than a second are not in the list, nor are new ones.
    known = [(group, recorded.get(group.key(), 1.0)) for group in done]
    ratios = [group.seconds / was for group, was in known if was >= 5]
    # A slower or busier machine slows most of them; its upper quartile tells by how much.
    pace = max(1.0, statistics.quantiles(ratios, n=4)[2]) if len(ratios) > 3 else 1.0
    return [
        f"{group.key()} took {group.seconds:.0f} s, and {was:.0f} when docs/test-times.md was written"
        for group, was in known
        if group.seconds > was * pace * GROWTH + SLACK_S
    ]


def parse(arguments):
    """Returns the kind of run, what it is limited to, and the arguments of cargo."""
    kind, only, kept = "whole", {}, []
    arguments = iter(arguments)
    for argument in arguments:
        if argument in ("--short", "--record"):
            kind = argument.removeprefix("--")
        elif argument == "--only":
            group, _, tests = next(arguments).partition("=")
            only[group] = tests
        else:
            kept.append(argument)
    return kind, only, kept


def is_quick(group, recorded):
    """Whether a short run has the group, or a part of it."""
    # Without the library for C, which `make test` builds before, its tests build it.
    if group.crate == "ferrite-c" and "FERRITE_C_LIBRARY" not in os.environ:
        return False
    return group.key() in SHORT or recorded.get(group.key(), 0) <= QUICK_S


def chosen(kind, only, all_groups, recorded):
    """Those of the groups that are to run, with those of their tests."""
    if only:
        for group in all_groups:
            group.keep([only.get(group.key(), "")])
        todo = [group for group in all_groups if group.key() in only]
        if len(todo) != len(only):
            sys.exit(f"{len(only)} groups are asked for, and {len(todo)} of them exist")
    elif kind == "short":
        os.environ["FERRITE_SHORT"] = "1"
        todo = [group for group in all_groups if is_quick(group, recorded)]
        for group in todo:
            group.keep(SHORT.get(group.key(), ["not"]))
    else:
        todo = list(all_groups)
        if "FERRITE_RINGS" not in os.environ and rings_offered():
            twice = [group for group in todo if group.name in BOTH_WAYS]
            todo += [Group(group.folder, group.name, group.executable, group.tests, "off") for group in twice]
    return [group for group in todo if group.tests]


def main():
    kind, only, arguments = parse(sys.argv[1:])
    began = time.monotonic()
    recorded = recorded_times()
    todo = chosen(kind, only, groups(arguments), recorded)
    run_all(todo, recorded)
    is_whole = kind != "short" and not only
    documented = not is_whole or subprocess.run(["cargo", "test", "--doc", *arguments], check=False).returncode == 0
    failures = [f"cargo test -p {group.key()}" for group in todo if not group.ended_well]
    if kind == "record" and not failures:
        record(todo)
    elif is_whole:
        failures += grown(todo, recorded)
    if not documented:
        failures.append("cargo test --doc")
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"== {sum(len(group.tests) for group in todo)} tests took {time.monotonic() - began:.0f} s with their build")
    sys.exit(1 if failures else 0)


main()
