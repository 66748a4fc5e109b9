"""The command: what each subcommand prints, as JSON and for a person, and how it exits."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

import kvreshard as kvr
from kvreshard.cli.app import app
from kvreshard.cli.sides import BadSide, Side, format_of
from tests.stock import handshake

SHUFFLED = "rocm_aiter_fa:shuffle"


def run(*arguments: str | Path, code: int = 0) -> str:
    """Runs the command; its standard output."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def complaint(*arguments: str | Path, code: int = 2) -> str:
    """Runs the command, which must fail; its standard error."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    assert not result.stdout
    return result.stderr


def answer(*arguments: str | Path, code: int = 0) -> Any:
    """Runs the command with --json; what it answers."""
    return json.loads(run(*arguments, "--json", code=code))


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    prefill, decode = tmp_path / "prefill.toml", tmp_path / "decode.toml"
    prefill.write_text(f'format = "{SHUFFLED}"\n')
    decode.write_text(f'format = "{SHUFFLED}"\ntp = 2\n')
    return prefill, decode


@pytest.fixture
def messages(tmp_path: Path) -> tuple[Path, Path]:
    found = []
    for engine, tp in (("prefill", 1), ("decode", 2)):
        path = tmp_path / f"{engine}.bin"
        run("dump-vllm", SHUFFLED, "--engine", engine, "--tp", str(tp), "--out", path)
        found.append(path)
    return found[0], found[1]


# formats, explain


def test_every_preset_is_listed() -> None:
    found = answer("formats", "list")
    assert [one["name"] for one in found["presets"]] == kvr.presets()
    shuffled = next(one for one in found["presets"] if one["name"] == "aiter-shuffle")
    assert (shuffled["notation"], shuffled["page_bytes"]) == ("k[h d/8 n d%8] v[h n/8 d n%8]", 65536)
    text = run("formats", "list")
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
    assert format_of("mla:r=64", h=2, n=4, d=8, dtype="f16").page_bytes == 4 * 64 * 2


# plan


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


# check, verify, dump-vllm


def test_a_pair_is_checked(sides: tuple[Path, Path], messages: tuple[Path, Path]) -> None:
    assert run("check", *sides).endswith("accepted: direct, 4 runs a page of 16,384 bytes\n")
    assert answer("check", *messages)["bytes_per_run"] == 16384
    assert answer("check", sides[0], messages[1])["accepted"], "TOML and a message mix"
    assert answer("check", *messages, "--direction", "write")["accepted"]


def test_a_pair_that_does_not_fit_is_refused(sides: tuple[Path, Path]) -> None:
    sides[1].write_text('format = "flash_attn"\nheads = 6\n')
    found = answer("check", *sides, code=1)
    assert not found["accepted"]
    assert found["findings"][0]["severity"] == "error"
    assert run("check", *sides, code=1).endswith("refused\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("format = ", "Invalid value"),
        ('form = "mla"', "unknown key 'form'"),
        ("tp = 2", "format is missing"),
        ('format = "mla"\ntp = "2"', "tp must be a whole number, not '2'"),
        ('format = "mla"\ntp = true', "tp must be a whole number, not True"),
        ("format = 3", "format must be a text"),
    ],
)
def test_a_file_that_makes_no_sense_is_said(sides: tuple[Path, Path], text: str, said: str) -> None:
    sides[0].write_text(text)
    assert said in complaint("check", *sides)


def test_other_files_are_not_taken(sides: tuple[Path, Path], tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"\x93junk")
    assert "neither a layout's message" in complaint("check", junk, sides[1])
    assert "No such file" in complaint("check", tmp_path / "absent", sides[1])


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    path = tmp_path / "captured.bin"
    path.write_bytes(handshake())
    return path


def test_a_stock_peer_is_checked(sides: tuple[Path, Path], captured: Path) -> None:
    here = 'heads = 8\nlayers = 4\nnames = "model.layers.#.attn"\n'
    sides[1].write_text(f'format = "flash_attn"\n{here}')
    found = answer("check", captured, sides[1])
    assert [finding["severity"] for finding in found["findings"]] == ["warning"]
    sides[1].write_text(f'format = "{SHUFFLED}"\n{here}')
    refused = answer("check", captured, sides[1], code=1)
    assert refused["findings"][0]["remote"] == "unknown"
    assert answer("check", captured, sides[1], "--assume-standard")["accepted"]
    assert "turn --direction round" in complaint("check", sides[1], captured)
    assert "a stock handshake says nothing" in complaint("verify", captured, sides[1])
    assert "is no place: write RANK/SIZE" in complaint("check", captured, sides[1], "--prefill-tp", "2/2")


def test_two_stock_peers_are_audited(captured: Path) -> None:
    found = answer("check", captured, captured)
    assert {finding["severity"] for finding in found["findings"]} <= {"warning", "note"}
    assert all("row" in finding for finding in found["findings"])


def test_a_plan_is_proven(sides: tuple[Path, Path], messages: tuple[Path, Path]) -> None:
    assert run("verify", *sides).startswith("2 plans are right")
    assert answer("verify", *messages) == {"accepted": True, "count": 1}
    assert "two of a kind" in complaint("verify", sides[0], messages[1])


def test_descriptors_are_proven(messages: tuple[Path, Path], tmp_path: Path) -> None:
    remote, local = (kvr.RankLayout.from_bytes(path.read_bytes()) for path in messages)
    plan = kvr.plan(local, remote)
    lists = plan.lists(kvr.Request((0, 32), [kvr.Blocks([4, 9])], [kvr.Blocks([1, 7])]))
    path = tmp_path / "lists.npz"
    np.savez(path, local=lists[0], remote=lists[1])
    assert answer("verify", *messages, path)["count"] == len(lists[0])
    np.savez(path, local=np.concatenate([lists[0], lists[0]]), remote=np.concatenate([lists[1], lists[1]]))
    assert "byte written twice" in complaint("verify", *messages, path, code=1)
    outside = lists[1].copy()
    outside[0, 0] = 64
    np.savez(path, local=lists[0], remote=outside)
    assert answer("verify", *messages, path, code=1)["error"] == "VerificationError"
    np.savez(path, local=lists[0], remote=lists[1][1:])
    assert "alike" in complaint("verify", *messages, path)
    np.savez(path, other=lists[0])
    assert "lists.npz" in complaint("verify", *messages, path)


def test_a_message_is_the_layout(messages: tuple[Path, Path]) -> None:
    found = answer("dump-vllm", SHUFFLED, "--tp", "2", "--rank", "1", "--engine", "decode")
    layout = kvr.RankLayout.from_bytes(bytes.fromhex(found["message"]))
    assert (layout.tp, found["layers"][0]["segments"][0]["holds"]) == ((1, 2), {"h": [4, 8]})


# matrix


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


# doctor, demo, calibrate, the command itself


def test_the_doctor_looks() -> None:
    found = answer("doctor", "--no-transfer")
    assert found["kvreshard"] == kvr.__version__
    assert found["packages"]["numpy"] == np.__version__
    assert "kvreshard" in run("doctor", "--no-transfer")


def test_the_doctor_tries_a_transfer() -> None:
    pytest.importorskip("nixl")
    program = [sys.executable, "-m", "kvreshard.cli", "doctor", "--json"]
    found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert found["transfer"] == {"right": True, "said": "24,576 bytes as sent"}
    assert "UCX" in found["plugins"]


def test_the_machine_is_calibrated() -> None:
    pytest.importorskip("nixl")
    program = [sys.executable, "-m", "kvreshard.cli", "calibrate", "--json"]
    found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True, timeout=120).stdout)
    transport = kvr.Transport(**found)
    assert min(transport.read_post_ns, transport.write_post_ns, transport.round_trip_ns) > 0
    assert min(transport.read_bytes_per_us, transport.write_bytes_per_us) > 10


def test_the_demonstration_is_reached() -> None:
    result = CliRunner().invoke(app, ["demo", "--layers", "1"])
    assert result.exit_code == 2
    assert "at least 2 layers" in result.output


def test_the_version() -> None:
    assert run("--version").strip() == kvr.__version__


def test_colours_only_on_a_terminal() -> None:
    program = [sys.executable, "-m", "kvreshard.cli", "formats", "show", "mla"]
    plain = subprocess.run(program, capture_output=True, check=True)
    assert b"\x1b" not in plain.stdout
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm-256color"}
    process = subprocess.Popen(program, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 4096):
            seen += data
    except OSError:  # How a closed terminal ends on Linux.
        pass
    assert process.wait(60) == 0
    assert b"\x1b[" in seen


def test_without_its_extra_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['typer'] = None; from kvreshard.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "pip install 'kvreshard[cli]'" in result.stderr


def test_a_side_must_be_whole() -> None:
    with pytest.raises(BadSide, match="heads of prefill must be at least 1"):
        Side("prefill", "flash_attn", heads=0)
