"""`doctor`, `calibrate` and `demo`: what this machine does."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

import kvreshard as kvr
from kvreshard.cli import running, trial
from kvreshard.cli.app import app
from tests.cli.command import answer, kvreshard, run


def test_the_doctor_looks() -> None:
    found = answer("doctor", "--no-transfer")
    assert found["kvreshard"] == kvr.__version__
    assert found["packages"]["numpy"] == np.__version__
    assert "kvreshard" in run("doctor", "--no-transfer")


def test_the_doctor_tries_a_transfer() -> None:
    pytest.importorskip("nixl")
    found = json.loads(kvreshard("doctor", "--json"))
    transfer = found["transfer"]
    assert (transfer["right"], transfer["said"]) == (True, "24,576 bytes as sent")
    moved = [way for way in transfer["transports"] if way["operation"].startswith("remote memory read")]
    assert sum(way["times"] for way in moved) == 3, "a descriptor for each page"
    assert all(way["transport"] and way["method"] for way in moved)
    assert {"DRAM", "VRAM"} <= set(found["plugins"]["UCX"])


def test_the_doctor_tells_a_person(tmp_path: Path) -> None:
    pytest.importorskip("nixl")
    said = kvreshard("doctor", UCX_TLS="tcp,self")
    assert re.search(r"^NIXL plugins that load: .*UCX \(DRAM, VRAM\)", said, re.MULTILINE)
    assert re.search(r"^  remote memory read .*: tcp/\w+, .*, 3 times$", said, re.MULTILINE)
    assert "trap: bytes between processes of this host went over tcp" in said
    assert "UCX_TLS=tcp,self\n" in said


def test_a_transfer_that_fails_is_the_answer() -> None:
    pytest.importorskip("nixl")
    found = json.loads(kvreshard("doctor", "--json", code=1, UCX_TLS="cma,self"))
    assert found["transfer"] == {
        "right": False,
        "said": "AgentError: NIXL could not create an agent: NIXL_ERR_BACKEND",
        "transports": [],
    }
    assert any("names neither tcp nor an RDMA transport" in trap for trap in found["traps"])


def test_a_transfer_that_crashes_is_the_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crash = tmp_path / "python"
    crash.write_text("#!/bin/sh\necho 'no such symbol'\nexit 139\n")
    crash.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crash))
    assert trial.trial() == {"right": False, "said": "ended with 139: no such symbol", "transports": []}


PACKAGES = {**dict.fromkeys(running.PACKAGES), "nixl": "1.5.1", "nixl-cu13": "1.5.1", "torch": "2.13.0"}


@pytest.mark.parametrize(
    ("packages", "environment", "ways", "said"),
    [
        ({"nixl": None}, {}, [], "nixl is not installed"),
        ({"nixl": "1.4.2"}, {}, [], "nixl is older than 1.5"),
        ({"nixl-cu13": None}, {}, [], "its import fails"),
        ({"nixl-cu12": "1.5.1"}, {}, [], "both installed"),
        ({}, {"UCX_TLS": "tcp"}, [], "names no CUDA transport"),
        ({}, {"UCX_TLS": "cuda_copy,cma"}, [], "names neither tcp nor an RDMA transport"),
        ({}, {}, [{"operation": "remote memory read", "transport": "tcp/lo"}], "went over tcp"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_traps_are_known(
    packages: dict[str, Any], environment: dict[str, str], ways: list[dict[str, str]], said: str
) -> None:
    found = {"packages": {**PACKAGES, **packages}, "environment": environment, "transfer": {"transports": ways}}
    assert sum(said in trap for trap in running.traps(found)) == 1
    fine = {"packages": PACKAGES, "environment": {"UCX_TLS": "rc_x,cuda_ipc"}, "transfer": None}
    assert not [trap for trap in running.traps(fine) if "two cores" not in trap]


def test_the_machine_is_calibrated() -> None:
    pytest.importorskip("nixl")
    transport = kvr.Transport(**json.loads(kvreshard("calibrate", "--json")))
    assert min(transport.read_post_ns, transport.write_post_ns, transport.round_trip_ns) > 0
    assert min(transport.read_bytes_per_us, transport.write_bytes_per_us) > 10


def test_the_demonstration_answers() -> None:
    pytest.importorskip("nixl")
    found = json.loads(kvreshard("demo", "aiter-1-2", "refuse-heads", "--layers", "2", "--tokens", "32", "--json"))
    moved, refused = found["scenarios"]
    assert found["right"]
    assert (moved["verdict"], moved["posted"], moved["bytes"]) == ("right", 16, 2 * 2 * 2 * 32 * 1024)
    assert (refused["verdict"], refused["refusal"]["kind"]) == ("refused", "IncompatibleLayout")


def test_a_demonstration_gone_wrong_exits_with_1() -> None:
    pytest.importorskip("nixl")
    said = kvreshard("demo", "aiter-1-2", "--layers", "2", "--tokens", "32", "--scramble", "--json", code=1)
    assert not json.loads(said)["right"]


def test_the_demonstration_is_reached() -> None:
    result = CliRunner().invoke(app, ["demo", "--layers", "1"])
    assert result.exit_code == 2
    assert "at least 2 layers" in result.output
