"""`matrix`: every backend against every other."""

from __future__ import annotations

import ast
import csv
import importlib.util
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("typer")

from kvreshard.cli import output
from kvreshard.cli.vllm import BACKENDS, WITHOUT_PAGES
from tests.cli.command import SHUFFLED, answer, complaint, run


def test_a_matrix_says_both_verdicts() -> None:
    names = ("rocm_aiter_fa", SHUFFLED, "flashmla")
    cells = {(cell["prefill"], cell["decode"]): cell for cell in answer("matrix", *names)}
    assert len(cells) == 9
    same = cells[SHUFFLED, SHUFFLED]
    assert (same["ours"], same["stock"], same["stock_share"]) == ("works", "wrong", 0.5)
    assert cells["rocm_aiter_fa", "rocm_aiter_fa"]["stock"] == "right"
    assert cells["rocm_aiter_fa", "flashmla"]["ours"] == "refused"


def test_a_matrix_has_many_forms(tmp_path: Path) -> None:
    names = ("rocm_aiter_fa", SHUFFLED)
    table = run("matrix", *names)
    assert "4 pairs; stock vLLM 0.33 accepts 3 of them and scrambles the cache." in table
    markdown = run("matrix", *names, "--as", "markdown").splitlines()
    assert markdown[2:4] == ["| rocm_aiter_fa | = | ! |", f"| {SHUFFLED} | ! | ! |"]
    rows = list(csv.DictReader(io.StringIO(run("matrix", *names, "--as", "csv"))))
    assert [row["stock"] for row in rows] == ["right", "wrong", "wrong", "wrong"]
    run("matrix", *names, "--as", "svg", "--out", tmp_path / "map.svg")
    tree = ElementTree.parse(tmp_path / "map.svg")
    assert len(tree.findall(".//{http://www.w3.org/2000/svg}g")) == 4
    assert "a table goes to standard output" in complaint("matrix", *names, "--out", tmp_path / "x")


def test_the_whole_matrix_is_made() -> None:
    cells = answer("matrix")
    assert len(cells) == len(BACKENDS) ** 2
    assert not [cell for cell in cells if cell["stock"] == "right" and cell["ours"] == "refused"]
    assert not [cell for cell in cells if cell["stock"] == "wrong" and cell["ours"] == "refused"]


def test_a_matrix_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in BACKENDS if name.startswith("rocm")][:12]
    lines = run("matrix", *names).splitlines()
    assert lines[0].split() == ["1", "1"], "tens of the numbers of columns"
    assert lines[1].split() == [str(at % 10) for at in range(12)]
    assert all(len(line.split()) == 14 for line in lines[2:14])
    monkeypatch.setattr(output, "PLAIN_WIDTH", 40)
    assert max(map(len, run("matrix", *names).splitlines()[:40])) <= 40


def test_every_backend_of_vllm_is_in_it() -> None:
    """By vLLM's own registry, read and not imported."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("vLLM is not installed; `make test-vllm` installs it")
    registry = Path(found.submodule_search_locations[0]) / "v1" / "attention" / "backends" / "registry.py"
    enum = next(
        node
        for node in ast.parse(registry.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "AttentionBackendEnum"
    )
    names = {
        to.id for node in enum.body if isinstance(node, ast.Assign) for to in node.targets if isinstance(to, ast.Name)
    }
    assert len(names) > 40
    assert {name.partition(":")[0].upper() for name in BACKENDS} == names - set(WITHOUT_PAGES)
