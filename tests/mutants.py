"""Changes the connector's Python in one place after another, with mutmut, and sees which changes no test notices.

    python -m tests.mutants wire strides --sample 100 --seed 1

A module's mutants meet only the tests named for it here, the fastest that reach it. mutmut wants the package beside the
tests, so both are copied into the folder given, one copy a module. It leaves functions with decorators as they are,
properties among them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

_PACKED = tuple(f"tests/moves/test_{name}.py" for name in ("packed", "packed_ends", "packed_writes"))
_MOVES = ("tests/moves", "tests/test_connector_states.py", "tests/test_landed.py")

TESTS: dict[str, tuple[str, ...]] = {
    "wire": ("tests/test_wire_refusals.py", "tests/test_connector_wire.py", "tests/test_wire_v1.py"),
    "strides": ("tests/test_strides.py",),
    "order": ("tests/test_strategy.py",),
    "strategy": ("tests/test_strategy.py",),
    "parcelling": ("tests/moves/test_parcelling.py", *_PACKED),
    "carrier": (
        "tests/test_carrier.py",
        "tests/test_carrier_kernels.py",
        "tests/moves/test_carrier_slots.py",
        "tests/moves/test_carrier_rings.py",
        *_PACKED,
        "tests/moves/test_reads.py",
    ),
    "staging": ("tests/test_staging.py", "tests/test_staging_device.py"),
    "landing": ("tests/test_landing.py", "tests/test_landed_legs.py", *_MOVES),
    "landed": ("tests/test_landed_legs.py", *_MOVES),
    "packed": ("tests/test_packed_legs.py", *_MOVES),
    "packing": ("tests/test_packing.py", "tests/test_packing_ends.py", *_PACKED),
    "parcels": ("tests/test_parcels.py", *_MOVES),
    "passes": tuple(
        f"tests/test_calibrate.py::test_{name}"
        for name in (
            "the_fit_of_passes_finds_the_constants_again",
            "a_piece_never_costs_less_than_nothing",
            "bytes_never_cost_less_than_nothing",
            "passes_are_measured_at_their_extremes",
            "passes_gather_scattered_pages_in_the_same_order_each_time",
            "of_the_repeats_the_median_counts",
        )
    ),
    "flights": _MOVES,
    "issue": (
        "tests/test_pieces.py",
        *(f"tests/moves/test_{name}.py" for name in ("choice", "cleared", "mixed", "reads", "calls")),
    ),
    "leg": ("tests/test_legs.py", "tests/test_packed_legs.py", *_MOVES),
    "transfer": _MOVES,
    "listener": (*_MOVES, "tests/test_marks.py"),
    "sessions": ("tests/test_sessions.py", *_MOVES),
    "peer": ("tests/test_peer.py", *_MOVES),
    "contact": ("tests/test_marks.py", "tests/moves/test_contacts.py"),
    "meeting": ("tests/test_marks.py", "tests/moves/test_contacts.py"),
    "meetings": ("tests/test_marks.py", "tests/moves/test_contacts.py"),
    "memory": ("tests/test_memory.py",),
    "clearing": ("tests/test_memory.py", "tests/moves/test_mixed.py", "tests/moves/test_cleared.py"),
    "digests": ("tests/test_digests.py",),
    "connector": (*_MOVES, "tests/test_marks.py"),
    "leases": ("tests/test_ledger.py", "tests/moves/test_fenced.py"),
    "notices": (
        "tests/test_ledger.py",
        "tests/test_promises.py",
        "tests/test_connector_wire.py",
        "tests/test_wire_v1.py",
    ),
    "path": ("tests/test_path.py",),
    "control": ("tests/test_ledger.py", "tests/test_connector_wire.py", "tests/test_wire_v1.py"),
}

SLOW = ("tests/test_landed.py::test_a_retry_after_a_failure_brings_the_right_bytes",)
"""Tests in those files that take seconds, and need other processes."""

ENDS = {0: "missed", 1: "caught", 3: "caught", 33: "not reached", -11: "crashed", -24: "never ended", -9: "never ended"}
"""How a mutant's tests end, by mutmut's exit code; any other is of tests that could not be run."""

SHOW = """
import sys
from mutmut.mutation.diff_apply import get_diff_for_mutant
for name in sys.argv[2:]:
    lines = get_diff_for_mutant(name, path=sys.argv[1]).splitlines()
    print(name, *(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")), "", sep="\\n")
"""
"""mutmut shows one mutant a call, and takes a second for it."""


class Run:
    """mutmut in a copy of the package and the tests, for one module."""

    def __init__(self, module: str, tool: Path, folder: Path) -> None:
        self.module, self.tool, self.folder = module, tool, folder

    def prepare(self) -> None:
        """Copies what is tested and what tests it, as it is now."""
        for name, source in (("kvreshard", ROOT / "python/kvreshard"), ("tests", ROOT / "tests")):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(source, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        (self.folder / "mutants/mutmut-stats.json").unlink(missing_ok=True)
        options: dict[str, Any] = {
            "source_paths": ["kvreshard"],
            "only_mutate": [f"kvreshard/nixl/{self.module}.py"],
            "pytest_add_cli_args": ["-p", "no:cacheprovider", "-W", "ignore", *(f"--deselect={test}" for test in SLOW)],
            "pytest_add_cli_args_test_selection": TESTS[self.module],
            # Threads of NIXL's do not outlive a fork: each mutant's tests begin in a process that has none.
            "process_isolation": "forkserver",
            "track_dependencies": False,
            "use_git_change_detection": False,
            # Seconds, on top of what the tests take without a mutant, and how many times both.
            "timeout_constant": 2.0,
            "timeout_multiplier": 3.0,
        }
        given = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        # These values are written alike in JSON and in TOML.
        lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
        (self.folder / "pyproject.toml").write_text("\n".join([given, "[tool.mutmut]", *lines, ""]), encoding="utf-8")

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs something that can import mutmut."""
        environment = {**os.environ, "PYTHONPATH": str(self.tool), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.folder, env=environment, text=True, capture_output=True, check=False)

    def mutmut(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs mutmut."""
        return self.python(str(self.tool / "bin/mutmut"), *arguments)

    def changes(self, names: list[str]) -> str:
        """What these mutants are."""
        return self.python("-c", SHOW, f"kvreshard/nixl/{self.module}.py", *names).stdout

    def ends(self) -> dict[str, int | None]:
        """Every mutant, and the exit code of its tests; `None` where they were not run."""
        path = self.folder / f"mutants/kvreshard/nixl/{self.module}.py.meta"
        found: dict[str, int | None] = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        return found

    def mutants(self, sample: int | None, seed: int) -> list[str]:
        """The names of all mutants, or of so many."""
        # Mutants are made before mutmut finds that there is none of this name.
        told = self.mutmut("run", "none")
        if "nothing matches" not in told.stderr:
            raise SystemExit(f"{self.module}: mutmut ended with {told.returncode}\n{told.stdout}\n{told.stderr}")
        names = sorted(self.ends())
        return names if sample is None or sample >= len(names) else random.Random(seed).sample(names, sample)

    def test(self, names: list[str]) -> dict[str, str]:
        """How the tests of each end."""
        told = self.mutmut("run", "--max-children", "1", *names)
        ends = self.ends()
        if told.returncode or any(ends[name] is None for name in names):
            raise SystemExit(f"{self.module}: mutmut ended with {told.returncode}\n{told.stdout}\n{told.stderr}")
        return {name: ENDS.get(code, f"not run ({code})") for name in names if (code := ends[name]) is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="module", help=f"all where none is given: {', '.join(TESTS)}")
    parser.add_argument("--sample", type=int, help="how many mutants of a module, all where it has no more")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--again", action="store_true", help="only those that were not caught the last time")
    parser.add_argument("--folder", type=Path, default=ROOT / "target/mutants-python", help="with mutmut in `tool`")
    options = parser.parse_args()
    folder = options.folder.resolve()
    unknown = [module for module in options.modules if module not in TESTS]
    if unknown:
        parser.error(f"no tests are named for {', '.join(unknown)}")
    for module in options.modules or TESTS:
        run = Run(module, folder / "tool", folder / module)
        kept = run.folder / "ends.json"
        before: dict[str, str] = json.loads(kept.read_text()) if options.again else {}
        if not options.again:
            shutil.rmtree(run.folder, ignore_errors=True)
        run.folder.mkdir(parents=True, exist_ok=True)
        run.prepare()
        names = [name for name, end in before.items() if end != "caught"] or run.mutants(options.sample, options.seed)
        found = run.test(names)
        kept.write_text(json.dumps({**before, **found}, indent=1), encoding="utf-8")
        print(f"{module}: {len(found)} of {len(run.ends())}", dict(Counter(found.values())), flush=True)
        for end in sorted({*found.values()} - {"caught"}):
            print(f"\n{end}:\n{run.changes([name for name in found if found[name] == end])}", flush=True)


if __name__ == "__main__":
    main()
