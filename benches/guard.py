"""Holds instruction counts of fixed workloads against benches/instructions.toml; fails when one has grown.

`python benches/guard.py` builds the bench `instructions` and runs each of its workloads under callgrind. With `--write`
the file is written anew. A count belongs to a compiler: with another one it is shown, and fails nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

COUNTS = Path(__file__).with_name("instructions.toml")
TOLERANCE = 0.05
"""How much a count may grow. Allocator, C library and hash seeds move it by about one per cent between machines."""

HEADER = """\
# Instructions that callgrind counts in each workload of benches/instructions.rs. `make bench-guard` fails when one
# grows by more than {percent} %; after a change that is meant to: `make bench-guard GUARD_FLAGS=--write`.
"""


def build() -> str:
    """Builds the bench; the path of its executable."""
    command = ["cargo", "bench", "--locked", "-p", "kvreshard", "--bench", "instructions", "--no-run"]
    done = subprocess.run([*command, "--message-format=json"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("error: the bench `instructions` does not build")
    artifacts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    made = [one["executable"] for one in artifacts if one.get("target", {}).get("name") == "instructions"]
    return str(made[-1])


def count(binary: str, workload: str) -> int:
    """Instructions inside `measured` of one workload."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=*::measured*"]
        done = subprocess.run([*command, binary, workload], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"error: {workload} failed under valgrind:\n{done.stderr}")
        found = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE)
    if found is None or int(found[1]) == 0:
        sys.exit(f"error: callgrind counted nothing in {workload}: is the function `measured` gone?")
    return int(found[1])


def expected() -> tuple[str, dict[str, int]]:
    """The compiler and the counts on file."""
    text = COUNTS.read_text() if COUNTS.exists() else ""
    compiler = re.search(r'^compiler = "(.*)"', text, re.MULTILINE)
    counts = re.findall(r"^([\w-]+) = ([\d_]+)$", text, re.MULTILINE)
    return compiler[1] if compiler else "", {name: int(number) for name, number in counts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", help="the bench, where it is built already")
    parser.add_argument("--write", action="store_true", help="write the file anew")
    arguments = parser.parse_args()

    compiler = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    binary = arguments.binary or build()
    names = subprocess.run([binary], capture_output=True, text=True, check=True).stdout.split()
    counts = {name: count(binary, name) for name in names}
    if arguments.write:
        lines = [HEADER.format(percent=round(TOLERANCE * 100)), f'compiler = "{compiler}"', "", "[instructions]"]
        COUNTS.write_text("\n".join([*lines, *(f"{name} = {number:_}" for name, number in counts.items())]) + "\n")
    written, before = expected()
    binding = written == compiler
    grown = []
    for name, number in counts.items():
        old = before.get(name)
        change = "not on file" if old is None else f"{number / old - 1:+.1%}"
        print(f"{name:28} {number:>12,} instructions  {change}")
        if old is None or number > old * (1 + TOLERANCE):
            grown.append(name)
    if set(before) - set(counts):
        grown += sorted(set(before) - set(counts))
    if grown and not binding:
        print(f"rustc {compiler} is not the {written} of {COUNTS.name}: shown, not judged")
    elif grown:
        print(
            f"error: more than {TOLERANCE:.0%} above {COUNTS.name}, or not in both: {', '.join(grown)}", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
