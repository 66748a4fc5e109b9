"""The documentation: its code runs, its commands run, its links lead somewhere, and every public name is explained."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import shlex
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PAGE = {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}

# Blocks whose names are an engine's: tests/test_docs_connector.py is that engine.
FRAGMENTS = {"connector.md"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE[page], re.DOTALL | re.MULTILINE)


def with_blocks(language: str) -> list[str]:
    return [page for page in PAGE if blocks(page, language)]


def run(source: str, names: dict[str, Any], page: str) -> int:
    """Runs a block; holds each expression that a comment follows against that comment; how many there were."""
    compared = 0
    for statement in ast.parse(source).body:
        line = source.splitlines()[(statement.end_lineno or 1) - 1]
        if isinstance(statement, ast.Expr) and "  # " in line:
            value = eval(compile(ast.Expression(statement.value), page, "eval"), names)
            assert repr(value) == line.split("  # ", 1)[1]
            compared += 1
        else:
            exec(compile(ast.Module([statement], []), page, "exec"), names)
    return compared


@pytest.mark.parametrize("page", [page for page in with_blocks("python") if page not in FRAGMENTS])
def test_the_code_of_a_page_runs(page: str) -> None:
    if "kvreshard.nixl" in PAGE[page]:
        pytest.importorskip("nixl")
    names: dict[str, Any] = {}
    assert sum(run(block, names, page) for block in blocks(page, "python")) > 0


def test_a_wrong_result_would_be_noticed() -> None:
    with pytest.raises(AssertionError):
        run(blocks("notation.md", "python")[0].replace("# 14428", "# 14429"), {}, "notation.md")


@pytest.mark.parametrize("page", with_blocks("console"))
def test_the_commands_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from kvreshard.cli.app import app

    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "console"):
        for line in block.splitlines():
            if line.startswith("$ kvreshard "):
                result = CliRunner().invoke(app, shlex.split(line.removeprefix("$ kvreshard ")))
                assert result.exit_code == 0, (line, result.output)


def test_every_command_is_described() -> None:
    pytest.importorskip("typer")
    from kvreshard.cli.app import app

    names = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    for name in names:
        assert f"kvreshard {name}" in PAGE["command.md"], name


def test_the_toml_is_taken(tmp_path: Path) -> None:
    from kvreshard.cli.sides import read_toml

    (block,) = blocks("command.md", "toml")
    (tmp_path / "side.toml").write_text(block)
    assert read_toml(tmp_path / "side.toml", "decode").layers == 32


def test_the_preset_shown_is_the_one_that_is_there() -> None:
    (block,) = blocks("contributing.md", "rust")
    source = (ROOT / "crates/kvreshard/src/format/presets/attention.rs").read_text(encoding="utf-8")
    assert textwrap.indent(block, "    ") in source


@pytest.mark.parametrize("page", PAGE)
def test_links_lead_somewhere(page: str) -> None:
    drawn = ("img/formats/", "img/matrix.svg")  # Made when the site is built.
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", PAGE[page]):
        if not target.startswith(("http://", "https://", *drawn)):
            assert (DOCS / page).parent.joinpath(target).exists(), target


def test_every_picture_is_shown() -> None:
    for picture in (DOCS / "img").glob("*.png"):
        assert any(f"img/{picture.name})" in text for text in PAGE.values()), picture.name


def test_the_changelog_has_this_version() -> None:
    """In the form of Keep a Changelog: what is to come, then versions, the newest first."""
    import kvreshard as kvr

    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", kvr.__version__]


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == set(PAGE)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("typer")
    found = importlib.util.spec_from_file_location("kvreshard_docs_hooks", DOCS / "hooks.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_public_name_has_its_entry(hooks: ModuleType) -> None:
    assert hooks.unexplained(ROOT) == []


SILENT = '''
"""A package."""
__all__ = ["Heir", "LIMIT", "told", "untold"]
LIMIT = 3

class Base:
    """Words."""
    def inherited(self): ...

class Heir(Base):
    """Words, also of `size`."""
    size: int
    weight: int
    def run(self): ...
    def _walk(self): ...
    def stop(self):
        """Words."""

def told():
    """Words."""

def untold(): ...
'''


def test_a_name_without_words_would_be_noticed(hooks: ModuleType, tmp_path: Path) -> None:
    for folder in ("python/kvreshard/silent", "docs/api"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "python/kvreshard/silent/__init__.py").write_text(SILENT)
    (tmp_path / "docs/api/silent.md").write_text("".join(f"::: kvreshard.silent.{n}\n\n" for n in ("Heir", "told")))
    silent = "kvreshard.silent."
    assert hooks.unexplained(tmp_path) == [
        *(f"{silent}Heir.{name} has no words" for name in ("weight", "run", "inherited")),
        f"{silent}LIMIT has no entry in docs/api/silent.md",
        f"{silent}LIMIT has no words",
        f"{silent}untold has no entry in docs/api/silent.md",
        f"{silent}untold has no words",
    ]


def test_every_preset_is_drawn(hooks: ModuleType) -> None:
    import kvreshard as kvr

    for name in kvr.presets():
        assert hooks.small(name).to_svg().startswith("<svg")
        assert f"### {name}\n" in hooks.preset_words(name)


FIELDS = (
    r'Error::layout\(\s*(?:None|Some\([^"]*?\)|layer|[a-z_.()]+),\s*(?:format!\()?"([^"]*)"',
    r'Error::limit\(\s*(?:format!\()?"([^"]*)"',
    r'Error::ring\(\s*(?:format!\()?"([^"]*)"',
    r'(?:field|what): (?:format!\()?"([^"]*)"',
    r'\bdiffers\((?:local, )?(?:None, |Some\(here\), )?(?:format!\()?"([^"]*)"',
    r'\.bad\("([^"]*)"',
    r'bad_request\(\s*py,\s*"([^"]*)"',
    r'unproven\(\s*[^"]*"([^"]*)"',
)


def test_every_field_of_an_error_has_its_cause() -> None:
    """As the sources of the core have them; what is put in at run time is left out of the comparison."""
    found = set()
    for path in (ROOT / "crates").glob("*/src/**/*.rs"):
        source = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8")).split("#[cfg(test)]")[0]
        for pattern in FIELDS:
            found |= {text for text in re.findall(pattern, source) if text}
    assert len(found) > 70
    missing = []
    for text in found:
        # `total of axis {axis}` is told as `total of axis h`; a long one by its beginning.
        words = text.split("{")[0].split(":")[0].split(" (")[0].split(",")[0].strip()
        if words not in PAGE["errors.md"]:
            missing.append(text)
    assert missing == []


@pytest.mark.parametrize("module", ["kvreshard", "kvreshard.nixl", "kvreshard.probe"])
def test_every_exception_has_its_cause(module: str) -> None:
    if module == "kvreshard.nixl":
        pytest.importorskip("nixl")
    for name, thing in vars(importlib.import_module(module)).items():
        if isinstance(thing, type) and issubclass(thing, Exception):
            assert f"`{name}`" in PAGE["errors.md"] or f".{name}`" in PAGE["errors.md"], name


def test_every_attribute_of_an_error_is_told() -> None:
    import kvreshard as kvr

    for name in set(vars(kvr.Error)) - set(vars(Exception)):
        assert name.startswith("_") or f"`{name}`" in PAGE["errors.md"], name


def test_the_message_is_as_told() -> None:
    """Byte for byte: each word of the drawing is the next bytes, as hexadecimal or as text, or the rest is a remark."""
    import kvreshard as kvr

    page = kvr.PageFormat("h n k[d] v[d]", h=1, n=2, d=2, dtype="bf16")
    layers = [
        kvr.Layer(f"layers.{at}", [kvr.Segment(kvr.Region(base, 64), page, pages=4)], totals={"h": 2})
        for at, base in enumerate((0x100000, 0x101040))
    ]
    rest = kvr.RankLayout(engine="prefill-0", tp=(1, 2), layers=layers).to_bytes()
    (drawing,) = (block for block in blocks("handshake.md", "text") if "array of 2" in block)
    for line in drawing.splitlines():
        for word in re.findall(r'"[^"]*"|<\d+ bytes>|\S+', line):
            if word.startswith("<"):
                rest = rest[int(word[1:].split()[0]) :]
                continue
            text = word.strip('"').encode()
            raw = bytes.fromhex(word) if re.fullmatch(r"([0-9a-f]{2})+", word) else text
            said = next((one for one in (raw, text) if rest.startswith(one)), None)
            if said is None:
                break
            rest = rest[len(said) :]
    assert rest == b""


def test_vllm_is_told_of_connectors_that_are_there() -> None:
    found = re.findall(r"--kv-transfer-config '(\{.*?\})'", PAGE["vllm.md"], re.DOTALL)
    assert found
    source = (ROOT / "python/kvreshard/vllm/__init__.py").read_text(encoding="utf-8")
    for text in found:
        given = json.loads(re.sub(r"\s*\n\s*", " ", text))
        assert given["kv_connector_module_path"] == "kvreshard.vllm"
        assert f'"{given["kv_connector"]}"' in source
