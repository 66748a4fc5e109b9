"""`plan`: who reads what from whom."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("typer")

import kvreshard as kvr
from tests.cli.command import SHUFFLED, answer, complaint, run


def test_a_plan_in_numbers() -> None:
    found = answer("plan", "--prefill", SHUFFLED, "--decode", SHUFFLED, "--decode-tp", "2", "--layers", "3")
    assert found["accepted"]
    assert [(edge["local"], edge["remote"]) for edge in found["edges"]] == [(0, 0), (1, 0)]
    edge = found["edges"][1]
    assert (edge["runs_per_page"], edge["bytes_per_run"], edge["posted"]) == (6, 16384, 6 * 64)
    assert {cost["strategy"] for cost in edge["costs"]} == {"direct", "landed", "packed"}
    assert edge["chosen"] in {"direct", "landed", "packed"}


def test_a_plan_for_a_person(tmp_path: Path) -> None:
    html, svg = tmp_path / "plan.html", tmp_path / "plan.svg"
    text = run(
        *("plan", "--remote", SHUFFLED, "--local", SHUFFLED, "--local-tp", "2", "--layers", "1", "--head-size", "32"),
        *("--html", html, "--svg", svg),
    )
    assert "rank 1 reads from rank 0" in text
    assert re.search(r"local 0x\w+ \+ 0  <->  remote 0x\w+ \+ 0  4096 bytes x 2 \(step 4096 and 8192\)", text)
    assert ". not moved" in text
    assert html.read_text().count("<section") == 2
    assert svg.read_text().startswith("<svg")


def test_a_push_turns_the_sides() -> None:
    arguments = ("plan", "--prefill", SHUFFLED, "--decode", SHUFFLED, "--prefill-tp", "2", "--direction", "write")
    assert "prefill writes to decode" in run(*arguments)
    assert [(edge["local"], edge["remote"]) for edge in answer(*arguments)["edges"]] == [(0, 0), (1, 0)]


def test_replicas_that_only_tell_are_named() -> None:
    arguments = ("--prefill-tp", "4", "--heads", "2", "--layers", "1")
    assert "only tells" in run("plan", "--prefill", "flash_attn", "--decode", "flash_attn", *arguments)


def test_a_refusal_exits_with_1() -> None:
    arguments = ("plan", "--prefill", "flash_attn", "--decode", "flashmla")
    assert "refused: layer layers.0" in complaint(*arguments, code=1)
    found = answer(*arguments, code=1)
    assert (found["accepted"], found["error"], found["layer"]) == (False, "IncompatibleLayout", "layers.0")


def test_calibrated_constants_are_taken(tmp_path: Path) -> None:
    names = [name for name in vars(kvr.Transport) if name.endswith(("_ns", "_ps", "_us"))]
    path = tmp_path / "here.json"
    arguments = ("plan", "--prefill", SHUFFLED, "--decode", SHUFFLED, "--layers", "1", "--transport", path)
    found = []
    for posting in (1000, 3000):
        path.write_text(json.dumps({**dict.fromkeys(names, 1 << 10), "read_post_ns": posting}))
        found.append(answer(*arguments)["edges"][0]["costs"][0])
    assert found[1]["ns"] - found[0]["ns"] == found[0]["posted"] * 2000
    path.write_text('{"speed": 3}')
    assert "here.json" in complaint(*arguments)


MAMBA = "mamba2:t=3,p=64,s=128"
TOTALS = ("--heads", "64", "--total", "cx=4096", "--total", "cb=1024", "--total", "cc=1024", "--layers", "1")


def test_any_axis_can_be_sharded() -> None:
    arguments = ("plan", "--prefill", MAMBA, "--decode", MAMBA, *TOTALS, "--prefill-tp", "2", "--decode-tp", "4")
    found = answer(*arguments)
    assert [(edge["local"], edge["remote"]) for edge in found["edges"]] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    page = kvr.preset("mamba2", t=3, p=64, s=128, h=16, cx=1024, cb=256, cc=256)
    assert {edge["runs_per_page"] * edge["bytes_per_run"] for edge in found["edges"]} == {page.page_bytes}
    assert "TP 4\n" in run(*arguments), "a state has no tokens"
    alone = run("explain", MAMBA, "--tp", "2", *TOTALS[:-2])
    assert "cb=512 cc=512 cx=2048 h=32" in alone
    # Without a total an axis is whole on every rank, and may differ only if told.
    assert "extent of axis cx" in complaint(
        *("plan", "--prefill", f"{MAMBA},cx=64,cb=8", "--decode", f"{MAMBA},cx=32,cb=8", "--heads", "64"), code=1
    )
