"""The command on a terminal and off it: colours, progress, completion, exit codes, what every subcommand has."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
import typer

import kvreshard as kvr
from kvreshard.cli.app import app
from tests.cli.command import SHUFFLED, kvreshard, run

ESCAPE = "\x1b["


def on_a_terminal(*arguments: str | Path, both: bool = False) -> tuple[str, str]:
    """Runs the command with a terminal as its standard error, and as its output too where wanted: what came of each."""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm-256color"}
    program = [sys.executable, "-m", "kvreshard.cli", *map(str, arguments)]
    process = subprocess.Popen(
        program, stdout=theirs if both else subprocess.PIPE, stderr=theirs, env=environment, text=True
    )
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 4096):
            seen += data
    except OSError:  # How a closed terminal ends on Linux.
        pass
    out = "" if process.stdout is None else process.stdout.read()
    assert process.wait(60) == 0
    os.close(ours)
    return out, seen.decode()


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big.toml"
    path.write_text('format = "flash_attn"\ntp = 2\nlayers = 80\n')
    return path


def leaves() -> dict[str, Any]:
    """Every subcommand by the words that call it."""
    found = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, (*words, name))
        if not hasattr(command, "commands"):
            found[" ".join(words)] = command

    walk(typer.main.get_command(app), ())
    return found


def test_every_subcommand_takes_json() -> None:
    names = set(leaves())
    assert names == {
        *("formats list", "formats show", "explain", "plan", "check", "verify", "matrix", "dump-vllm", "demo"),
        *("calibrate", "doctor"),
    }
    for name, command in leaves().items():
        # The demonstration parses its own arguments.
        given = "--json" in kvreshard("demo", "--help") if name == "demo" else False
        assert given or any("--json" in parameter.opts for parameter in command.params), name


def test_colours_only_on_a_terminal() -> None:
    assert ESCAPE not in run("formats", "show", "mla")
    assert ESCAPE not in kvreshard("formats", "show", "mla", FORCE_COLOR="")
    assert ESCAPE in on_a_terminal("formats", "show", "mla", both=True)[1]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("matrix",), "pairs"), (("verify", "big", "big"), "proving")],
    ids=["matrix", "verify"],
)
def test_what_takes_long_shows_progress(big: Path, arguments: tuple[str, ...], word: str) -> None:
    out, shown = on_a_terminal(*(str(big) if one == "big" else one for one in arguments))
    assert ESCAPE in shown
    assert word in shown
    assert ESCAPE not in out, "the answer has no colours where it goes into a file"
    assert out.strip()


def test_json_shows_nothing_else_on_a_terminal(big: Path) -> None:
    out, shown = on_a_terminal("verify", big, big, "--json")
    assert json.loads(out) == {"accepted": True, "count": 2}
    assert shown == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes(shell: str) -> None:
    assert "_COMPLETE" in kvreshard("--show-completion", shell)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("kvreshard ", {"plan", "check", "matrix", "doctor"}),
        ("kvreshard explain rocm_at", {"rocm_attn", "rocm_attn:fused"}),
        ("kvreshard explain rocm-", {"rocm-attn"}),
        ("kvreshard formats show mla-f", {"mla-fp8-ds"}),
        ("kvreshard plan --prefill b12", {"b12x"}),
        ("kvreshard plan --direction ", {"read", "write"}),
    ],
)
def test_what_is_completed(words: str, offered: set[str]) -> None:
    program = "import sys; sys.argv[0] = 'kvreshard'; from kvreshard.cli import main; main()"
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_KVRESHARD_COMPLETE": "complete_bash"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **asked}, check=False
    )
    found = set(result.stdout.split())
    assert offered <= found if words == "kvreshard " else found == offered


def test_exit_codes(tmp_path: Path) -> None:
    kvreshard("formats", "list", code=0)
    kvreshard("plan", "--prefill", "flash_attn", "--decode", "flashmla", code=1)
    kvreshard("plan", "--prefill", SHUFFLED, code=2)
    kvreshard("plan", "--prefill", SHUFFLED, "--decode", "nothing", code=2)
    kvreshard("sing", code=2)


def test_the_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run("--version"))
    assert run("--version").strip() == kvr.__version__


def test_without_its_extra_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['typer'] = None; from kvreshard.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "pip install 'kvreshard[cli]'" in result.stderr
