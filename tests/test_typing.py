"""The types that a checker sees are the types that the module has."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[1] / "python"

RIGHT = """\
import kvreshard as kvr
from fractions import Fraction
import numpy as np

page = kvr.PageFormat("h n k[d] v[d]", h=8, n=16, d=128, dtype="bf16")
region = kvr.Region(4096, 10 * page.page_bytes, memory="VRAM")
layer = kvr.Layer("0", [kvr.Segment(region, page, pages=10, holds={"h": (0, 8)})], totals={"h": 8})
groups = [kvr.Group("tokens", tokens_per_state=Fraction(1, 4))]
rank = kvr.RankLayout(engine="a", layers=[layer], groups=groups, tp=(0, 1))
plan = kvr.plan(rank, kvr.RankLayout.from_bytes(rank.to_bytes()), direction="write")
request = kvr.Request((0, 16), [kvr.Blocks(np.arange(1, dtype=np.int32))], [kvr.Blocks([3], first_token=0)])
local, remote = plan.ids(request)
assert local.dtype == np.int32
edge: kvr.Edge = kvr.route(local=kvr.Engine([rank]), remote=kvr.Engine.uniform(rank)).edges[0]
try:
    kvr.plan(rank, rank, edge=edge)
except kvr.IncompatibleLayout as error:
    text: str | None = error.remedy
"""

# One mistake each, and what mypy must say of it.
WRONG = [
    ("kvr.PageFormat(7, h=8)", 'Argument 1 to "PageFormat" has incompatible type "int"; expected "str"'),
    ('kvr.PageFormat("k[d]", d="8", dtype="bf16")', 'Argument "d" to "PageFormat" has incompatible type "str"'),
    ('kvr.Region(0, 1, memory="HBM")', 'Argument "memory" to "Region" has incompatible type'),
    ('kvr.Group("heads")', 'Argument 1 to "Group" has incompatible type'),
    ("kvr.Group(tokens_per_state=0.25)", 'Argument "tokens_per_state" to "Group" has incompatible type "float"'),
    ("kvr.Blocks([1.5])", 'List item 0 has incompatible type "float"'),
    ('kvr.Blocks("12")', 'Argument 1 to "Blocks" has incompatible type "str"'),
    ("kvr.plan(1, 2)", 'Argument 1 to "plan" has incompatible type "int"; expected "RankLayout"'),
    ("kvr.RankLayout(layers=[])", 'Missing named argument "engine" for "RankLayout"'),
    ('kvr.preset("mla", n=1.0)', 'Argument "n" to "preset" has incompatible type "float"'),
    (
        'kvr.PageFormat("k[]", dtype="u8").page_bytes = 3',
        'Property "page_bytes" defined in "PageFormat" is read-only',
    ),
    ("kvr.plam", 'Module has no attribute "plam"'),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of the right program followed by one wrong line after another."""
    snippet = tmp_path_factory.mktemp("typing") / "snippet.py"
    snippet.write_text("\n".join([RIGHT, *(wrong for wrong, _ in WRONG)]))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-pretty", str(snippet)]
    environment = os.environ | {"MYPYPATH": str(PYTHON)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert not run.stderr
    return run.stdout.splitlines()


def said_of(report: list[str], line: int) -> str:
    return "\n".join(entry for entry in report if f"snippet.py:{line}: error" in entry)


def test_a_right_program_passes(report: list[str]) -> None:
    assert [said_of(report, line) for line in range(RIGHT.count("\n") + 1)] == [""] * (RIGHT.count("\n") + 1)


@pytest.mark.parametrize("index", range(len(WRONG)), ids=[wrong for wrong, _ in WRONG])
def test_a_wrong_type_is_rejected(report: list[str], index: int) -> None:
    assert WRONG[index][1] in said_of(report, RIGHT.count("\n") + 2 + index)


def test_the_stub_is_the_module() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "kvreshard._core"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_everything_is_documented() -> None:
    undocumented = []
    for node in ast.walk(ast.parse((PYTHON / "kvreshard" / "_core.pyi").read_text())):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("__"):
            continue
        if ast.get_docstring(node) is None:
            undocumented.append(node.name)
    assert not undocumented


def test_the_core_imports_with_numpy_alone() -> None:
    program = (
        "import sys, kvreshard; "
        "print(sorted({'torch', 'nixl', 'msgspec', 'rich', 'vllm'} & set(sys.modules)), "
        "[n for n in kvreshard.__all__ if not hasattr(kvreshard, n)])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[] []"
