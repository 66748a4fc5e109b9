"""Running the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from kvreshard.cli.app import app

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


def kvreshard(*arguments: str | Path, code: int = 0, **environment: str) -> str:
    """Runs the command as a process of its own; its standard output."""
    program = [sys.executable, "-m", "kvreshard.cli", *map(str, arguments)]
    result = subprocess.run(
        program, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120, check=False
    )
    assert result.returncode == code, (result.stdout, result.stderr)
    return result.stdout
