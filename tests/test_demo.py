"""The demonstration: its scenarios for real, only smaller, and whether it would notice if something were wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from kvreshard.demo.formulas import Geometry
from kvreshard.demo.memory import GUARD, Memory
from kvreshard.demo.needed import runs_needed
from kvreshard.demo.pattern import Ints, Page
from kvreshard.demo.run import Outcome, run
from kvreshard.demo.scenarios import SCENARIOS, SIDES, Scenario, scenario

pytest.importorskip("nixl")
pytest.importorskip("rich")

TRANSFERS = [one.name for one in SCENARIOS if one.refused is None]
REFUSALS = [one.name for one in SCENARIOS if one.refused is not None]


def small(name: str) -> Scenario:
    """The scenario with two layers."""
    return replace(scenario(name), layers=2)


def outcome(one: Scenario, *, backwards: bool = False) -> Outcome:
    """What comes of a scenario, in silence."""
    return run(one, stage=lambda stage: None, backwards=backwards)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The demonstration as `make demo` runs it."""
    line = [sys.executable, "-m", "kvreshard.demo", "--layers", "2", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=150)


# Processes and NIXL


@pytest.mark.parametrize("name", TRANSFERS)
def test_every_element_arrives_in_as_few_descriptors_as_can_be(name: str) -> None:
    found = outcome(small(name))
    assert found.problems == []
    if found.scenario.strategy == "direct":
        assert found.posted == found.fewest > 0
    else:
        assert found.fewest > found.posted > 0
        assert found.strategies == {found.scenario.strategy}
    assert found.elements > 0
    assert found.bytes > 0


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_right_is_refused(name: str) -> None:
    found = outcome(small(name))
    assert found.problems == []
    assert found.refusal is not None
    assert found.posted == found.bytes == 0


def test_device_memory_needs_a_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from kvreshard.demo import __main__ as demo

    monkeypatch.setattr(demo, "visible", lambda: 0)
    assert demo.main(["--memory", "vram", "aiter-1-2"]) == 2
    assert "a CUDA or ROCm device" in capsys.readouterr().err


def test_the_command_prints_a_row_for_each_and_the_refusals() -> None:
    done = command("aiter-1-2", "refuse-fp8", "refuse-layer")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout, "control sequences where there is no terminal"
    (row,) = [line for line in done.stdout.splitlines() if line.startswith(" AITER shuffle")]
    assert row.split()[2:] == ["1", "->", "2", "16", "128", "128", "2.0", "16,384", row.split()[-2], "right"]
    assert "f8e4m3fnuz" in done.stdout
    assert "layers.1" in done.stdout
    assert done.stdout.rstrip().endswith("all as it must be")


def test_a_writer_that_scrambles_its_pages_fails_the_command() -> None:
    """Tokens of a page in reverse: every size, offset and descriptor is as before, only the bytes are wrong."""
    done = command("--scramble", "aiter-2-1", "refuse-fp8")
    assert done.returncode == 1
    assert "WRONG" in done.stdout
    assert "elements wrong, the first in layer 0, k, token 0, head 0, channel 0" in done.stdout


def test_unknown_scenarios_are_no_success() -> None:
    assert command("aiter-9-9").returncode == 2


def test_a_refusal_that_does_not_come_is_a_problem() -> None:
    found = outcome(replace(small("rows-1-1"), refused="MissingLayer"))
    assert found.problems == ["rows-1-1-decode-0 was to raise MissingLayer, and raised nothing"]


def test_another_refusal_than_the_one_expected_is_a_problem() -> None:
    found = outcome(replace(small("refuse-fp8"), refused="MissingLayer"))
    assert found.problems == ["refuse-fp8-decode-0 was to raise MissingLayer, and raised IncompatibleLayout"]


def test_a_refusal_that_was_not_expected_is_a_problem() -> None:
    found = outcome(replace(small("refuse-fp8"), refused=None))
    assert not found.good
    assert "f8e4m3fnuz" in found.problems[0]


def _raises(g: Geometry) -> Page:
    raise ArithmeticError("no such page")


def _dies(g: Geometry) -> Page:
    os._exit(3)


@pytest.mark.parametrize(("formula", "told"), [(_raises, "no such page"), (_dies, "exit code 3")])
def test_a_rank_that_fails_is_reported(formula, told: str) -> None:  # type: ignore[no-untyped-def]
    one = small("rows-1-1")
    side = replace(one.decode, format=replace(one.decode.format, formula=formula))
    found = outcome(replace(one, decode=side))
    assert len(found.problems) == 1
    assert told in found.problems[0]


# What a rank looks at


def filled(name: str) -> Memory:
    """Decode rank 0 of a scenario, as it must look at the end."""
    one = small(name)
    memory = Memory(one, "decode", 0)
    memory.remember()
    memory.write((0, one.end))
    for pages in memory.layers.values():
        used = one.end - (len(memory.ids) - 1) * memory.page.states
        last = pages[memory.ids[-1]]
        for component in memory.page.components:
            rest = component.offsets[:, used:].ravel()
            for byte in range(component.element_bytes):
                last[rest + byte] = 0
    return memory


@pytest.mark.parametrize("name", TRANSFERS)
def test_right_pages_pass(name: str) -> None:
    elements, problems = filled(name).check()
    assert (elements > 0, problems) == (True, [])


@pytest.mark.parametrize("name", ["aiter-1-2", "mla-4-2", "rows-1-1"])
def test_one_wrong_byte_is_found(name: str) -> None:
    memory = filled(name)
    memory.layers[1][memory.ids[2], 77] ^= 1
    _, problems = memory.check()
    assert len(problems) == 1
    assert problems[0].startswith("1 of ")


def test_a_stale_byte_after_the_last_token_is_found() -> None:
    memory = filled("mla-4-2")
    memory.layers[0][memory.ids[-1], -1] = 1
    assert memory.check()[1] == ["stale bytes after token 1000 in layers [0]"]


@pytest.mark.parametrize("name", ["aiter-1-2", "rows-1-1"])
@pytest.mark.parametrize("where", ["before", "after", "other page"])
def test_one_byte_outside_the_pages_is_found(name: str, where: str) -> None:
    memory = filled(name)
    whole = memory.allocations[-1]
    if where == "other page":
        layer = next(reversed(memory.layers.values()))
        spare = sorted(set(range(len(layer))) - set(memory.ids.tolist()))
        layer[spare[1], 5] ^= 1
    else:
        whole[GUARD - 1 if where == "before" else -GUARD] ^= 1
    (problem,) = memory.check()[1]
    assert problem.startswith("1 bytes outside")


def test_one_byte_between_padded_pages_is_found() -> None:
    one = small("format-2-1")
    memory = Memory(replace(one, decode=one.prefill, prefill=one.decode), "decode", 0)
    memory.remember()
    memory.write((0, one.end))
    assert memory.check()[1] == []
    memory.allocations[0][GUARD + int(memory.ids[0]) * memory.layers[0].strides[0] + memory.page.page_bytes] ^= 1
    assert memory.check()[1][0].startswith("1 bytes outside")


def test_a_byte_changed_at_the_source_is_found() -> None:
    memory = Memory(small("aiter-1-2"), "prefill", 0)
    memory.remember()
    assert memory.unchanged() == []
    memory.allocations[1][3] ^= 1
    assert memory.unchanged() == ["1 bytes of the source changed"]


def stretches(here: Ints, there: Ints) -> int:
    """Into how many pieces pages fall that are neighbours on both sides."""
    at = np.argsort(here)
    return 1 + int(((np.diff(here[at]) != 1) | (np.diff(there[at]) != 1)).sum())


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        # 2 layers times 2 slots, and no two slots of half the heads touch at the source.
        ("aiter-1-2", lambda here, there: 2 * 2 * len(here)),
        # 2 layers times every token of both slots.
        ("b12x-1-2", lambda here, there: 2 * 2 * 64 * len(here)),
        ("rows-1-1", stretches),
        ("mla-4-2", lambda here, there: 2 * stretches(here, there)),
    ],
)
def test_the_count_of_fewest_runs_by_hand(name: str, runs) -> None:  # type: ignore[no-untyped-def]
    one = small(name)
    decode = Memory(one, "decode", 0)
    prefill = [Memory(one, "prefill", rank) for rank in range(one.prefill.tp)]
    found = runs_needed(one, 0, decode.places, [memory.places for memory in prefill])
    assert found == runs(decode.ids, prefill[0].ids)


@pytest.mark.parametrize("one", SCENARIOS, ids=lambda one: one.name)
def test_pages_are_scattered_and_some_are_spare(one: Scenario) -> None:
    for which in SIDES:
        ids = one.blocks(which)
        assert len(set(ids.tolist())) == len(ids) == one.pages(which)
        assert 0 < ids.min() <= ids.max() < one.pool(which) - 1
    assert [one.blocks(which).tolist() for which in SIDES] == [one.blocks(which).tolist() for which in SIDES]


def test_some_pages_touch_and_most_do_not() -> None:
    """Otherwise nothing would show that runs are joined from page to page, or that they need not be."""
    one = scenario("rows-1-1")
    ids = [one.blocks(which) for which in SIDES]
    assert 1 < stretches(*ids) < len(ids[0])
