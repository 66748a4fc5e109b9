"""`matrix`: every backend against every other."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("typer")

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
    assert len(cells) > 400
    assert not [cell for cell in cells if cell["stock"] == "right" and cell["ours"] == "refused"]
