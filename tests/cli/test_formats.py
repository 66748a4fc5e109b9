"""`formats` and `explain`, and questions that make no sense."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("typer")

import kvreshard as kvr
from kvreshard.cli.sides import BadSide, Side, format_of
from tests.cli.command import SHUFFLED, answer, complaint, run


def test_every_preset_is_listed() -> None:
    found = answer("formats", "list")
    assert [one["name"] for one in found["presets"]] == kvr.presets()
    shuffled = next(one for one in found["presets"] if one["name"] == "aiter-shuffle")
    assert (shuffled["notation"], shuffled["page_bytes"]) == ("k[h d/8 n d%8] v[h n/8 d n%8]", 65536)
    assert answer("formats") == found, "what `formats` alone says"
    text = run("formats", "list")
    assert run("formats") == text
    for name in kvr.presets():
        assert name in text


def test_a_page_is_drawn() -> None:
    lines = run("formats", "show", "aiter-shuffle", "h=2", "n=16", "d=32").splitlines()
    assert lines[0].startswith("k[h d/8 n d%8] v[h n/8 d n%8] (d=32 h=2 n=16;")
    what = next(line for line in lines if line.startswith("kkkk"))
    heads = lines[lines.index(what) + 1]
    assert what == "k" * 60 + "v" * 60
    assert heads == "0" * 30 + "1" * 30 + "0" * 30 + "1" * 30


def test_a_format_in_numbers() -> None:
    found = answer("formats", "show", "aiter-shuffle", "h=8", "n=16", "d=128")
    assert found["components"]["v"]["first"] == 32768
    assert found["fingerprint"] == kvr.preset("aiter-shuffle", h=8, n=16, d=128).fingerprint
    own = answer("formats", "show", "k[h d n] v[h n d]", "h=2", "n=4", "d=8", "k=u8")
    assert own["types"] == {"k": "u8", "v": "bf16"}


def test_padding_is_shown() -> None:
    assert run("formats", "show", "deepseek-v4", "n=16").splitlines()[-2].endswith("c/////")


def test_a_drawing_is_written(tmp_path: Path) -> None:
    run("explain", SHUFFLED, "--svg", tmp_path / "page.svg")
    assert ElementTree.parse(tmp_path / "page.svg").getroot().tag.endswith("svg")


def test_planes_are_explained() -> None:
    assert run("explain", "flash_attn:layout=LHBNC").startswith("8 planes; the first:\nn k[d] v[d]")
    assert answer("explain", "flash_attn:layout=LHBNC", "--tp", "2")["planes"] == 4
    assert run("explain", SHUFFLED, "--tp", "2").startswith("rank 0 of 2 holds 4 of 8 h\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("formats", "show", "nothing"), "no preset 'nothing'"),
        (("formats", "show", "mla", "n"), "'n' is no setting: write name=value"),
        (("formats", "show", "mla", "q=3"), "preset mla: takes no"),
        (("explain", "k[h n"), "character 5"),
        (("explain", "flash_attn:sideways"), "no backend 'flash_attn:sideways'; there are flash_attn"),
        (("explain", "b12x:layout=LBNHC"), "b12x does not take layout LBNHC"),
        (("explain", SHUFFLED, "--tp", "0"), "tp of engine must be at least 1"),
        (("explain", SHUFFLED, "--dtype", "u8"), "vLLM's cache dtypes here are"),
        (("dump-vllm", "mla"), "is no vLLM backend"),
        (("dump-vllm", SHUFFLED, "--rank", "3"), "rank 3 is not below the TP size 1"),
        (("explain", "mamba2:t=3,p=64,s=16", "--total", "cx"), "'cx' is no setting"),
        (("explain", "mamba2:t=3,p=64,s=16", "--total", "cx=none"), "total of cx of engine must be a whole number"),
        (("explain", "c[n r]:r=8", "--total", "cx=8"), "the axes of the notation are n, r"),
        (("explain", SHUFFLED, "--total", "cx=8"), "knows its sharded axes"),
        (("explain", SHUFFLED, "--svg", "/nowhere/page.svg"), "/nowhere/page.svg: No such file or directory"),
        (("plan", "--prefill", SHUFFLED, "--decode", SHUFFLED, "--html", "/"), "/: Is a directory"),
        (("matrix", "nothing"), "no backend 'nothing'"),
        (("matrix", "--prefill-page", "7"), "no backend takes pages of that size"),
        (("plan", "--prefill", SHUFFLED, "--decode", SHUFFLED, "--tokens", "0"), "at least 1 token"),
        (("plan", "--prefill", SHUFFLED, "--decode", SHUFFLED, "--transport", "pigeon"), "pigeon"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:3]),
)
def test_what_makes_no_sense_is_said(arguments: tuple[str, ...], said: str) -> None:
    assert said in complaint(*arguments)


def test_usual_extents_go_where_the_notation_asks() -> None:
    assert format_of("n h k[d]", h=2, n=4, d=8, dtype="u8").extents == {"h": 2, "n": 4, "d": 8}
    assert format_of("c[n r]:r=9", h=2, n=4, d=8, dtype="u8").extents == {"n": 4, "r": 9}
    assert format_of("c[n r]:r=9", {"n": 2}, n=4, dtype="u8").extents == {"n": 2, "r": 9}
    assert format_of("mla:r=64", h=2, n=4, d=8, dtype="f16").page_bytes == 4 * 64 * 2


def test_a_side_must_be_whole() -> None:
    with pytest.raises(BadSide, match="heads of prefill must be at least 1"):
        Side("prefill", "flash_attn", heads=0)
