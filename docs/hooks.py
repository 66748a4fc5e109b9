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
    names += [
        "cpu_attn:isa=amx",
        "minimax_m3_sparse",
        "minimax_m3_sparse:amd",
        "minimax_m3_sparse:nvfp4",
        "turboquant",
        "flashmla",
    ]
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


def on_startup(command: str, dirty: bool) -> None:
    """Copies the sources for the reference, the stub in the place of the native module, which nothing can read.

    Before anything is configured: who reads the sources passes over folders that are not there yet.
    """
    if SOURCES.exists():
        shutil.rmtree(SOURCES)
    kept = shutil.ignore_patterns("*.so", "__pycache__", "_core.pyi")
    shutil.copytree(ROOT / "python" / "kvreshard", SOURCES / "kvreshard", ignore=kept)
    stub = (ROOT / "python" / "kvreshard" / "_core.pyi").read_text(encoding="utf-8")
    (SOURCES / "kvreshard" / "_core.py").write_text(readable(stub), encoding="utf-8")


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
    """Public names that have no entry in docs/api or no words of their own, their methods and attributes included.

    Public is what the `__all__` of a package lists, and what those classes show without an underscore.
    """
    found = []
    package = root / "python" / "kvreshard"
    for source in sorted(package.rglob("__init__.py")):
        names = public_names(source)
        if not names:
            continue
        module = ".".join(source.parent.relative_to(package.parent).parts)
        page = root / "docs" / "api" / f"{'core' if module == 'kvreshard' else module.removeprefix('kvreshard.')}.md"
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        told = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
        for name in names:
            if f"{module}.{name}" not in told:
                found.append(f"{module}.{name} has no entry in docs/api/{page.name}")
            found += [f"{module}.{missing} has no words" for missing in wordless(source, name)]
    return found


def public_names(path: Path) -> list[str]:
    """The names in a module's `__all__`, dunders left out."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == "__all__" for one in node.targets
        ):
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    return []


def definition(path: Path, name: str) -> tuple[Path, list[ast.stmt], str]:
    """Where a module's name is defined, imports followed inside the package: the file, every definition, the words."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined: list[ast.stmt] = []
    words = ""
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            defined.append(node)
            words = words or ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            # A constant or an alias has its words in a string after it.
            defined.append(node)
            words = words or string(after)
    if defined:
        return path, defined, words
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
            start = path.parents[node.level - 1] if node.level else ROOT / "python"
            target = start.joinpath(*(node.module or "").split("."))
            real = next(one.name for one in node.names if name in (one.asname, one.name))
            for file in (target / "__init__.py", target.with_suffix(".py"), target.with_suffix(".pyi")):
                if file.exists():
                    return definition(file, real)
    return path, [], ""


def string(node: ast.stmt | None) -> str:
    """The text of a statement that is nothing but a text."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def wordless(path: Path, name: str) -> list[str]:
    """What has no docstring: the name itself, its public methods, properties and annotated attributes."""
    path, nodes, words = definition(path, name)
    if not words:
        return [name] if nodes else []
    found = []
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        told = {one.name for one in node.body if isinstance(one, ast.FunctionDef) and ast.get_docstring(one)}
        for one, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and one.name not in told:
                found.append(f"{name}.{one.name}")
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                attribute = one.target.id
                if not attribute.startswith("_") and not string(after) and not re.search(rf"\b{attribute}\b", words):
                    found.append(f"{name}.{attribute}")
        for base in node.bases:
            if isinstance(base, ast.Name):
                inherited = [missing.partition(".") for missing in wordless(path, base.id)]
                found += [f"{name}.{missing}" for _, dot, missing in inherited if dot and missing not in told]
    return found
