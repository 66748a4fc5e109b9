"""Writes what `tests/cases/v1.toml` lacks: messages of version 1 and fingerprints, which must be read for ever.

`python -m tests.wire_v1` adds new entries to the file and changes none that is there.
"""

from __future__ import annotations

import sys
import textwrap
from fractions import Fraction
from pathlib import Path

import numpy as np

import kvreshard as kvr
from kvreshard.nixl import control, notices, wire

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

V1 = Path(__file__).parent / "cases" / "v1.toml"

HEADER = """\
# Version 1 of everything that goes over the wire, in hexadecimal, and fingerprints of page formats. An entry is never
# changed and never removed: a build that does not read it, or reads something else, breaks with engines that run today.
# `python -m tests.wire_v1` adds what is missing; what each message says is in tests/wire_v1.py.
"""

HND, NHD = "h n k[d] v[d]", "n h k[d] v[d]"
SHUFFLE = "k[h d/8 n d%8] v[h n/8 d n%8]"
PAGE16 = "k[n/16 h d/8 n%16 d%8] v[n/16 h n%16/8 d n%8]"
NVFP4 = "k[h n b] ks[h n s] v[h n b] vs[h n/4 s n%4]"
FP4 = {"k": "fp4x2", "ks": "f8e4m3fn", "v": "fp4x2", "vs": "f8e4m3fn"}


def rank(
    page: kvr.PageFormat, layers: int = 2, *, memory: str = "DRAM", engine: str = "e", **place: object
) -> kvr.RankLayout:
    """Layers of one page format, a region each."""
    made = []
    for number in range(layers):
        region = (
            kvr.Region(0x7F00_0000_0000 + (number << 20), 16 * page.page_bytes, 3, "VRAM")
            if memory == "VRAM"
            else (kvr.Region(0x10_0000 + (number << 20), 16 * page.page_bytes))
        )
        heads = page.extents.get("h")
        totals = {} if heads is None else {"h": heads * place.get("tp", (0, 1))[1]}  # type: ignore[index]
        made.append(
            kvr.Layer(f"model.layers.{number}.self_attn.attn", [kvr.Segment(region, page, pages=16)], totals=totals)
        )
    return kvr.RankLayout(engine=engine, layers=made, **place)  # type: ignore[arg-type]


def planes() -> kvr.RankLayout:
    """K a plane a head, V in one; strides with a gap."""
    key = kvr.PageFormat("n k[d]", n=4, d=8, dtype="bf16")
    value = kvr.PageFormat("h n v[d]", h=2, n=4, d=8, dtype="bf16")
    region = kvr.Region(1 << 16, 1 << 16)
    segments = [
        *(
            kvr.Segment(region, key, pages=8, page_stride=80, offset=1024 * head, holds={"h": (head, head + 1)})
            for head in (2, 3)
        ),
        kvr.Segment(region, value, pages=8, page_stride=160, offset=8192, holds={"h": (2, 4)}),
    ]
    return kvr.RankLayout(engine="planes", layers=[kvr.Layer("layers.007", segments, totals={"h": 4})], tp=(1, 2))


def hybrid() -> kvr.RankLayout:
    """Groups of every kind: a window, pages a block, compressed and pooled tokens, states with several sharded axes."""
    region = kvr.Region(1 << 20, 1 << 20)
    attention = kvr.PageFormat(HND, h=2, n=8, d=8, dtype="bf16")
    latent = kvr.PageFormat("n q[512] sc[4] r[64]", n=2, types={"q": "f8e4m3fn", "sc": "f32", "r": "bf16"})
    state = kvr.PageFormat(
        "x[cx t] b[cb t] ssm[h p s]", cx=4, cb=2, t=3, h=2, p=2, s=4, types={"x": "bf16", "b": "bf16", "ssm": "f32"}
    )
    layers = [
        kvr.Layer("full", [kvr.Segment(region, attention, pages=16)], totals={"h": 2}, group=0),
        kvr.Layer("window", [kvr.Segment(region, attention, pages=16, offset=1 << 16)], totals={"h": 2}, group=1),
        kvr.Layer("latent", [kvr.Segment(region, latent, pages=16, offset=2 << 16)], group=2),
        kvr.Layer("pooled", [kvr.Segment(region, attention, pages=16, offset=3 << 16)], totals={"h": 2}, group=3),
        kvr.Layer(
            "mamba", [kvr.Segment(region, state, pages=16, offset=4 << 16)], totals={"cx": 4, "cb": 2, "h": 2}, group=4
        ),
    ]
    groups = [
        kvr.Group("tokens", pages_per_block=2),
        kvr.Group("tokens", window=128),
        kvr.Group("tokens", tokens_per_state=Fraction(4)),
        kvr.Group("tokens", tokens_per_state=Fraction(1, 4)),
        kvr.Group("state"),
    ]
    return kvr.RankLayout(engine="hybrid \u00e9", layers=layers, groups=groups, generation=2**63, pp=(1, 3))


def layouts() -> dict[str, kvr.RankLayout]:
    """What each message of a layout says."""
    eight = {"h": 2, "n": 16, "d": 64}
    return {
        "packed": rank(kvr.PageFormat(HND, extents=eight, dtype="bf16"), tp=(1, 4)),
        "token-major": rank(kvr.PageFormat(NHD, extents=eight, dtype="f8e4m3fnuz"), memory="VRAM", pp=(1, 2)),
        "shuffled": rank(kvr.PageFormat(SHUFFLE, extents=eight, dtype="f16"), 80, generation=7, tp=(0, 2)),
        "page-16": rank(kvr.PageFormat(PAGE16, h=2, n=64, d=64, dtype="bf16")),
        "nvfp4": rank(kvr.PageFormat(NVFP4, h=2, n=16, b=32, s=4, types=FP4), 1),
        "deepseek-v4": rank(
            kvr.PageFormat("c[n r] cs[n s] pad[p]", n=64, r=576, s=8, p=64, types={"c": "u8", "cs": "f8e8m0"}), 1
        ),
        "context-parallel": rank(kvr.PageFormat(HND, extents=eight, dtype="bf16"), cp=(1, 4), cp_interleave=16),
        "planes": planes(),
        "hybrid": hybrid(),
    }


def messages() -> dict[str, bytes]:
    """Every message by name: `kind/what`."""
    made = {f"layout/{name}": layout.to_bytes() for name, layout in layouts().items()}
    for name, layout in layouts().items():
        made[f"tags/{name}"] = kvr.RegionTags.of(layout).to_bytes()
    made |= {f"metadata/{name}": wire.encode(told) for name, told in metadata().items()}
    made |= {f"notice/{name}": notices.encode(notice) for name, notice in notes().items()}
    made |= {f"control/{name}": control.encode(message) for name, message in controls().items()}
    return made


def metadata() -> dict[str, wire.Metadata]:
    """What each message of a connector says."""
    layout = layouts()["shuffled"]
    plain = wire.Metadata("prefill-0", b"what NIXL says", layout, layout.generation, 1)
    ring = wire.Ring(1 << 40, 8, 1 << 20, 0, "VRAM")
    rings = wire.Rings(1, ring, wire.Ring(2 << 40, 4, 1 << 21, 1, "DRAM"))
    return {"plain": plain, "rings": wire.Metadata("decode-0", b"\x00\xff", layout, layout.generation, 3, rings=rings)}


def notes() -> dict[str, notices.Notice]:
    """Notices."""
    return {
        "read": notices.Notice(notices.Kind.READ, "request-1", 2),
        "written": notices.Notice(notices.Kind.WRITTEN, "\u00e9" * 20, 2**31 - 1),
    }


def controls() -> dict[str, control.Message]:
    """Control messages, one of each kind at least."""
    blocks: control.Blocks = [(16, np.array([7, 2**31 - 1], np.int32).tobytes()), (0, b"")]
    takes: control.Takes = [("layers.0", [("h", 0, 2)], True), ("layers.1", [], False)]
    parcel = control.Parcel(
        "18a", "r", True, True, (16, 48), False, blocks, blocks, ["layers.0"], takes, 1 << 20, 4096, 1024, "digest"
    )
    return {
        "hello": control.Hello(b"metadata"),
        "ask": control.Ask("r", 10_000),
        "held": control.Held("r", 2**62, 10_000),
        "gone": control.Gone("r"),
        "done": control.Done("r", 5, 2**62, 3),
        "confirmed": control.Confirmed("r"),
        "join": control.Join((1, 2), (0, 0), "pull", False),
        "parcel": parcel,
        "parcel of all": control.Parcel("1", "r", False, False, (0, 1), True, [], [], None, None, 1, 1, 1, ""),
        "refused": control.Refused("18a", "why", True),
        "marked": control.Marked("first-contact/1", 5, (0, 32), blocks, takes),
        "found": control.Found("first-contact/1", 2, 4096, True, "what is wrong"),
    }


def formats() -> dict[str, kvr.PageFormat]:
    """Every preset with small parameters, and formats that are none."""
    from tests.probed import OTHERS, preset_parameters

    made = {}
    for name in kvr.presets():
        parameters = OTHERS.get(name) or preset_parameters(name)
        assert parameters is not None
        made[name] = kvr.preset(name, **parameters)
    made["digits of digits"] = kvr.PageFormat(
        "(n%8/4 k[h n/8 d n%4] pad[3]) v[h d/2 n d%2]", h=4, n=16, d=8, dtype="f32"
    )
    made["nameless loops"] = kvr.PageFormat("4 k[2 n 3] v[n]", n=5, types={"k": "u8", "v": "i64"})
    return made


def text(value: str) -> str:
    """A basic string of TOML."""
    return '"' + "".join(one if one.isprintable() and one not in '"\\' else f"\\u{ord(one):04x}" for one in value) + '"'


def main() -> None:
    """Adds what is missing."""
    there = V1.read_text(encoding="utf-8") if V1.exists() else HEADER
    known = tomllib.loads(there)
    lines = []
    for name, form in formats().items():
        if name not in {entry["name"] for entry in known.get("format", [])}:
            extents = ", ".join(f"{axis} = {extent}" for axis, extent in sorted(form.extents.items()))
            types = ", ".join(f"{component} = {text(kind)}" for component, kind in sorted(form.types.items()))
            lines += ["", "[[format]]", f"name = {text(name)}", f"notation = {text(form.notation)}"]
            lines += [f"extents = {{ {extents} }}", f"types = {{ {types} }}", f"fingerprint = {text(form.fingerprint)}"]
    for name, data in messages().items():
        if name not in {entry["name"] for entry in known.get("message", [])}:
            lines += ["", "[[message]]", f"name = {text(name)}", 'hex = """', *textwrap.wrap(data.hex(), 120), '"""']
    V1.write_text(there + "".join(line + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
