"""`check`, `verify` and `dump-vllm`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("typer")

import kvreshard as kvr
from tests.cli.command import SHUFFLED, answer, complaint, run
from tests.stock import handshake


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
        ('format = "mamba2"\ntotals = { cx = 0 }', "total of cx of prefill must be a whole number of at least 1"),
        ('format = "mamba2"\ntotals = 3', "totals must be a text"),
    ],
)
def test_a_file_that_makes_no_sense_is_said(sides: tuple[Path, Path], text: str, said: str) -> None:
    sides[0].write_text(text)
    assert said in complaint("check", *sides)


def test_totals_stand_in_a_table(sides: tuple[Path, Path]) -> None:
    text = 'format = "mamba2:t=3,p=64,s=128"\nheads = 64\ntotals = {{ cx = 4096, cb = 1024, cc = 1024 }}\ntp = {}\n'
    for path, tp in zip(sides, (2, 4), strict=True):
        path.write_text(text.format(tp))
    assert answer("check", *sides)["runs_per_page"] == 8, "four components of two layers"
    assert answer("verify", *sides)["count"] == 4
    sides[1].write_text(text.format(4).replace("4096", "2048"))
    assert answer("check", *sides, code=1)["findings"][0]["field"] == "totals of sharded axes"


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


def test_what_connectors_send_is_read(sides: tuple[Path, Path], messages: tuple[Path, Path], tmp_path: Path) -> None:
    tag = {"version": 1, "factors": "", "layout": messages[0].read_bytes()}
    told = handshake(kvreshard=msgspec.msgpack.encode(tag))
    path = tmp_path / "tagged.bin"
    for data in (told, msgspec.msgpack.decode(told)["agent_metadata_bytes"]):
        path.write_bytes(data)
        assert answer("check", path, messages[1]) == answer("check", *messages), "the tag says what pages are"
        assert answer("verify", path, messages[1])["accepted"]
    path.write_bytes(handshake(kvreshard=msgspec.msgpack.encode({**tag, "layout": b"\x92\x09"})))
    assert "has version 9" in complaint("check", path, messages[1])
    nixl = pytest.importorskip("kvreshard.nixl")
    with nixl.Connector("rank") as connector:
        page = kvr.preset("aiter-shuffle", h=8, n=16, d=128)
        for name in ("layers.0", "layers.1"):
            connector.add_layer(name, np.zeros((4, page.page_bytes), np.uint8), page, totals={"h": 8})
        connector.publish(engine="prefill")
        path.write_bytes(connector.metadata())
    assert answer("check", path, messages[1])["bytes_per_run"] == 16384


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
    assert kvr.RegionTags.from_bytes(bytes.fromhex(found["tags"])) == kvr.RegionTags.of(layout)
