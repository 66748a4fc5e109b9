"""`doctor`, `calibrate`, `demo`, and the command on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

import kvreshard as kvr
from kvreshard.cli.app import app
from kvreshard.cli.sides import BadSide, Side
from tests.cli.command import answer, run


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
