"""What the site is built with besides its pages: drawings from the planner, and a test that every name is explained."""

from __future__ import annotations

import ast
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import kvreshard as kvr
from kvreshard.cli.describing import example
from kvreshard.cli.matrix import as_svg, matrix, pairs
from kvreshard.cli.sides import Side

log = logging.getLogger("mkdocs.hooks.kvreshard")
ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "target" / "docs-sources"

# Drawn small enough to be looked at: four heads, few tokens and channels.
SMALL: dict[str, dict[str, int]] = {
    "page-16": {"h": 4, "n": 32, "d": 32},
    "nvfp4-msa": {"h": 4, "n": 16, "d": 64},
    "mla": {"n": 8, "r": 64},
    "mla-fp8-ds": {"n": 4},
    "mla-nvfp4-ds": {"n": 4},
    "mla-per-token-head": {"n": 8, "r": 64},
    "deepseek-v4": {"n": 8},
    "deepseek-v4.1": {"n": 4},
    "dsa-indexer": {"n": 16},
    "dsa-indexer-rocm": {"n": 32},
    "indexer-rows": {"n": 8},
}
MARK = re.compile(r"^\{\{ presets \}\}$", re.MULTILINE)


def small(name: str) -> kvr.PageFormat:
    """A preset at a size that can be drawn."""
    asked = {parameter for parameter, _, _ in kvr.preset_info(name).parameters}
    sizes: dict[str, Any] = SMALL.get(name, {"h": 4, "n": 16, "d": 32})
    try:
        return example(name, **{axis: extent for axis, extent in sizes.items() if axis in asked})
    except kvr.FormatError:
        return example(name)


def on_files(files: Any, config: Any) -> Any:
    """Adds a drawing for every preset, and the heat map."""
    # Here, so that the tests, which have no mkdocs, can ask this file about names.
    from mkdocs.structure.files import File

    for name in kvr.presets():
        files.append(File.generated(config, f"img/formats/{name}.svg", content=small(name).to_svg()))
    names = ["flash_attn", "flex_attention", "rocm_aiter_fa", "rocm_aiter_fa:shuffle", "b12x", "cpu_attn:isa=vec"]
    names += ["cpu_attn:isa=amx", "minimax_m3", "minimax_m3:amd", "minimax_m3:nvfp4", "turboquant", "flashmla"]
    cells = matrix(pairs(names, Side("prefill", "-", tp=1), Side("decode", "-", tp=2)))
    files.append(File.generated(config, "img/matrix.svg", content=as_svg(cells)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts the presets, each with its drawing, in the place of their mark."""
    return MARK.sub(lambda _: "\n".join(map(preset_words, kvr.presets())), markdown)


def preset_words(name: str) -> str:
    """A preset in Markdown."""
    info, fmt = kvr.preset_info(name), small(name)
    rows = "\n".join(
        f"| `{parameter}` | {meaning} | {'must be given' if default is None else f'`{default}`'} |"
        for parameter, meaning, default in info.parameters
    )
    return (
        f"### {name}\n\n{info.summary[0].upper()}{info.summary[1:]}. Found in {info.found_in}.\n\n"
        f"    {fmt.notation}\n\n![A page of {name}](img/formats/{name}.svg)\n\n"
        f"| parameter | meaning | default |\n|---|---|---|\n{rows}\n"
    )


def on_config(config: Any) -> Any:
    """Copies the sources for the reference, the stub in the place of the native module, which nothing can read."""
    if SOURCES.exists():
        shutil.rmtree(SOURCES)
    kept = shutil.ignore_patterns("*.so", "__pycache__", "_core.pyi")
    shutil.copytree(ROOT / "python" / "kvreshard", SOURCES / "kvreshard", ignore=kept)
    stub = (ROOT / "python" / "kvreshard" / "_core.pyi").read_text(encoding="utf-8")
    (SOURCES / "kvreshard" / "_core.py").write_text(readable(stub), encoding="utf-8")
    return config


def readable(stub: str) -> str:
    """The stub as a module that a reader of docstrings understands.

    An overloaded function keeps its first signature only, and what a class is made with is its `__init__`: the
    native classes have a `__new__`, which the reader does not take for it.
    """
    lines, told = stub.splitlines(keepends=True), set()
    for node in ast.parse(stub).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            end = node.lineno - 1 if node.name not in told else node.end_lineno or 0
            for line in range(node.decorator_list[0].lineno - 1, end):
                lines[line] = ""
            told.add(node.name)
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef) and inner.name == "__new__":
                first = [*inner.args.posonlyargs, *inner.args.args][0].lineno - 1
                lines[inner.lineno - 1] = lines[inner.lineno - 1].replace("__new__", "__init__")
                lines[first] = lines[first].replace("cls", "self", 1)
    return "".join(lines)


def on_pre_build(config: Any) -> None:
    """Complains, which fails a strict build, about public names that the reference does not explain."""
    for problem in unexplained(ROOT):
        log.warning(problem)


def unexplained(root: Path) -> list[str]:
    """Public names that have no entry in docs/api or no docstring."""
    wanted = {
        "kvreshard": ("core.md", "__init__.py"),
        "kvreshard.nixl": ("nixl.md", "nixl/__init__.py"),
        "kvreshard.formats": ("formats.md", "formats/__init__.py"),
        "kvreshard.pictures": ("pictures.md", "pictures/__init__.py"),
        "kvreshard.probe": ("probe.md", "probe/__init__.py"),
    }
    found = []
    for module, (page, source) in wanted.items():
        told = set(
            re.findall(r"^::: ([\w.]+)$", (root / "docs" / "api" / page).read_text(encoding="utf-8"), re.MULTILINE)
        )
        names = public_names(root / "python" / "kvreshard" / source)
        found += [
            f"{module}.{name} has no entry in docs/api/{page}" for name in names if f"{module}.{name}" not in told
        ]
    return found


def public_names(path: Path) -> list[str]:
    """The names in a module's `__all__`, dunders left out."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == "__all__" for one in node.targets
        ):
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    return []
