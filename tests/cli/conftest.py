"""Files that describe two sides."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("typer")

from tests.cli.command import SHUFFLED, run


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
