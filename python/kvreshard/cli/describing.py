"""`formats`, `explain`, `dump-vllm`: what a page is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import kvreshard as kvr
from kvreshard.cli.drawing import legend, strip
from kvreshard.cli.output import console, dump, fail, refusals, save, say, table
from kvreshard.cli.sides import BadSide, Side, Totals, backend_names, format_of, names, preset_names, settings
from kvreshard.cli.vllm import BACKENDS

formats = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
USUAL: dict[str, int] = {"h": 8, "n": 16, "d": 128}
"""What a format is shown with where nothing is said."""
EXAMPLES: dict[str, dict[str, int | str]] = {
    "page-16": {"n": 128},
    "nvfp4-msa": {"n": 128},
    "cpu-vec": {"n": 32},
    "cpu-amx": {"n": 32},
    "mla": {"n": 64},
    "mla-fp8-ds": {"n": 64},
    "mla-nvfp4-ds": {"n": 64},
    "mla-per-token-head": {"n": 64},
    "deepseek-v4": {"n": 64},
    "deepseek-v4.1": {"n": 64},
    "dsa-indexer": {"n": 64},
    "dsa-indexer-rocm": {"n": 64},
}


def example(name: str, **given: int | str) -> kvr.PageFormat:
    """A preset with the parameters given, and usual ones for those that it needs besides."""
    needed: dict[str, int | str] = {
        parameter: EXAMPLES.get(name, {}).get(parameter, USUAL.get(parameter, 16))
        for parameter, _, default in kvr.preset_info(name).parameters
        if default is None
    }
    return kvr.preset(name, **{**needed, **given})


@formats.callback()
def all_formats(context: typer.Context, as_json: Json = False) -> None:
    """The formats that are known by name; without a command, `list`."""
    if context.invoked_subcommand is None:
        list_formats(as_json)


@formats.command("list")
def list_formats(as_json: Json = False) -> None:
    """The presets: notation, page bytes, where each occurs; and the vLLM backends that can be named."""
    found = []
    for name in kvr.presets():
        info, fmt = kvr.preset_info(name), example(name)
        found.append(
            {
                "name": name,
                "notation": fmt.notation,
                "extents": fmt.extents,
                "types": fmt.types,
                "page_bytes": fmt.page_bytes,
                "summary": info.summary,
                "found_in": info.found_in,
                "parameters": [
                    {"name": parameter, "meaning": meaning, "default": default}
                    for parameter, meaning, default in info.parameters
                ],
            }
        )
    if as_json:
        dump({"presets": found, "backends": list(BACKENDS)})
        return
    rows = table("preset", "notation", "page bytes", "found in", numbers=(2,))
    for one in found:
        rows.add_row(str(one["name"]), Text(str(one["notation"])), f"{one['page_bytes']:,}", Text(str(one["found_in"])))
    shown = ", ".join(f"{axis}={extent}" for axis, extent in USUAL.items())
    say(rows, f"Page bytes at {shown} where the preset asks for them; more states where its kernels do.", "")
    say("vLLM backends: " + ", ".join(BACKENDS))


@formats.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A preset, or a notation in quotes.", autocompletion=preset_names)],
    values: Annotated[
        list[str] | None, typer.Argument(help="Parameters or extents, such as h=8 n=16 dtype=f16.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the drawing to this file.")] = None,
    as_json: Json = False,
) -> None:
    """A format in full, with a drawing of its page."""
    with refusals(as_json):
        try:
            given = {
                key: int(text) if text.isdigit() else text for key, text in settings(" ".join(values or [])).items()
            }
            if "[" in name:
                fmt = format_of(
                    name + ":" + ",".join(f"{key}={value}" for key, value in given.items()), dtype="bf16", **USUAL
                )
            elif name in kvr.presets():
                fmt = example(name, **given)
            else:
                fail(f"no preset {name!r}; `kvreshard formats list` shows them")
        except BadSide as error:
            fail(str(error))
        _show(fmt, as_json, svg)


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="A preset, a notation or a vLLM backend, with settings.", autocompletion=names
        ),
    ],
    heads: Annotated[int, typer.Option(help="KV heads of the model.")] = 8,
    head_size: Annotated[int, typer.Option(help="Channels of a head; of a row, for MLA.")] = 128,
    page: Annotated[int, typer.Option(help="Tokens in a page; the backend's own where 0.")] = 0,
    tp: Annotated[int, typer.Option(help="Tensor-parallel size.")] = 1,
    dtype: Annotated[str, typer.Option(help="Element type of K and V.")] = "bf16",
    total: Totals = None,
    svg: Annotated[Path | None, typer.Option(help="Write the drawing of a page to this file.")] = None,
    as_json: Json = False,
) -> None:
    """What a rank's pages are: notation, sizes, what they hold, a drawing."""
    with refusals(as_json):
        try:
            side = Side("engine", what, heads, head_size, page, tp, dtype=dtype, totals=" ".join(total or ()))
            built = side.build(0)
        except BadSide as error:
            fail(str(error))
        if tp > 1 and built.shards and not as_json:
            held = (f"{side.held(0, axis)} of {side.sharded()[axis]} {axis}" for axis in built.shards)
            say(f"rank 0 of {tp} holds {', '.join(held)}")
        if built.planes and not as_json:
            say(f"{len(built.formats)} planes; the first:")
        _show(built.formats[0], as_json, svg, planes=len(built.formats) if built.planes else None)


def _show(fmt: kvr.PageFormat, as_json: bool, svg: Path | None, planes: int | None = None) -> None:
    if svg is not None:
        save(svg, fmt.to_svg())
    parts = {name: component(fmt, name) for name in fmt.components}
    if as_json:
        dump(
            {
                "notation": fmt.notation,
                "canonical": fmt.canonical,
                "extents": fmt.extents,
                "types": fmt.types,
                "page_bytes": fmt.page_bytes,
                "fingerprint": fmt.fingerprint,
                "components": parts,
                **({} if planes is None else {"planes": planes}),
            }
        )
        return
    say(str(fmt))
    if fmt.canonical != fmt.notation:
        say(f"the same as  {fmt.canonical}")
    say(f"fingerprint  {fmt.fingerprint}", "")
    rows = table("component", "type", "axes", "first byte", "last element", numbers=(3, 4))
    for name, part in parts.items():
        axes = ", ".join(f"{axis or 'unnamed'} {extent}" for axis, extent in part["axes"])
        rows.add_row(name, part["type"], axes, f"{part['first']:,}", f"{part['last']:,}")
    say(rows)
    try:
        pieces = fmt.pieces()
    except kvr.LimitExceeded as error:
        say(str(error))
        return
    screen = console()
    for line in strip(pieces, min(screen.width, 120)):
        screen.print(line, soft_wrap=True)
    say(legend(pieces))


def component(fmt: kvr.PageFormat, name: str) -> dict[str, Any]:
    """A component in numbers: type, axes, offsets of its first and last element."""
    offsets = fmt.offsets(name)
    return {
        "type": fmt.types[name],
        "axes": fmt.axes(name),
        "first": int(offsets.reshape(-1)[0]),
        "last": int(offsets.reshape(-1)[-1]),
    }


def dump_vllm(
    what: Annotated[
        str, typer.Argument(metavar="BACKEND", help="A vLLM backend with settings.", autocompletion=backend_names)
    ],
    out: Annotated[Path | None, typer.Option(help="Write rank 0's layout message to this file.")] = None,
    rank: Annotated[int, typer.Option(help="Tensor-parallel rank.")] = 0,
    heads: Annotated[int, typer.Option(help="KV heads of the model.")] = 8,
    head_size: Annotated[int, typer.Option(help="Channels of a head; of a row, for MLA.")] = 128,
    page: Annotated[int, typer.Option(help="Tokens in a page; the backend's own where 0.")] = 0,
    tp: Annotated[int, typer.Option(help="Tensor-parallel size.")] = 1,
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 2,
    dtype: Annotated[str, typer.Option(help="Element type of K and V.")] = "bf16",
    engine: Annotated[str, typer.Option(help="The engine's id.")] = "prefill",
    layer_names: Annotated[
        str, typer.Option("--names", help="What layers are called, their number in the place of #.")
    ] = "layers.#",
    as_json: Json = False,
) -> None:
    """The tag of a rank of vLLM with these settings, and its message at made-up addresses, which `check` reads."""
    with refusals(as_json):
        try:
            side = Side(engine, what, heads, head_size, page, tp, layers, dtype, names=layer_names)
            if side.backend is None:
                fail(f"{what!r} is no vLLM backend; known are {', '.join(BACKENDS)}")
            if not 0 <= rank < tp:
                fail(f"rank {rank} is not below the TP size {tp}")
            layout = side.rank(rank)
        except BadSide as error:
            fail(str(error))
        message = layout.to_bytes()
        if out is not None:
            save(out, message)
        if as_json:
            dump(layout_json(layout, message))
            return
        tag = kvr.RegionTags.of(layout).to_bytes()
        say(f"{engine}, TP rank {rank} of {tp}: {len(layout.layers)} layers")
        say(f"{len(tag):,} bytes without addresses, {len(message):,} with")
        for text in dict.fromkeys(str(one.format) for layer in layout.layers for one in layer.segments):
            say(f"  {text}")
        if out is not None:
            say(f"written to {out}")


def layout_json(layout: kvr.RankLayout, message: bytes) -> dict[str, Any]:
    """A layout as JSON; its message, and its tags without addresses, in hexadecimal."""
    return {
        "engine": layout.engine,
        "generation": layout.generation,
        "tp": layout.tp,
        "layers": [
            {
                "name": layer.name,
                "totals": layer.totals,
                "segments": [
                    {
                        "format": segment.format.notation,
                        "extents": segment.format.extents,
                        "types": segment.format.types,
                        "pages": segment.pages,
                        "page_stride": segment.page_stride,
                        "offset": segment.offset,
                        "holds": segment.holds,
                    }
                    for segment in layer.segments
                ],
            }
            for layer in layout.layers
        ],
        "message": message.hex(),
        "tags": kvr.RegionTags.of(layout).to_bytes().hex(),
    }
