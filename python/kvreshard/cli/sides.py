"""One side of a pair, as a person describes it, and the layouts of its ranks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

import kvreshard as kvr
from kvreshard.cli.backends import Choice, choose, pages_of
from kvreshard.cli.vllm import BACKENDS, BYTES, Shape
from kvreshard.formats import Pages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BASES = {"prefill": 0x7F00_0000_0000, "decode": 0x7E00_0000_0000}
"""Where an engine's caches are made up to begin: addresses are for looking at, not for use."""
PER_RANK = 1 << 38
Totals = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AXIS=N", help="Another axis that tensor parallelism shards, and its extent over all ranks; repeatable."
    ),
]


class BadSide(ValueError):
    """A side that cannot be made; the text says why."""


@dataclass(frozen=True)
class Side:
    """One engine: `format` is a notation, a preset or a vLLM backend, each with settings after a colon.

    Attributes:
        engine: Its name.
        format: Such as `k[h n d] v[h n d]`, `mla:r=576` or `rocm_aiter_fa:shuffle,layout=LBHNC`.
        heads: KV heads of the model, over all ranks.
        head_size: Channels of a head; of a row, for MLA.
        page: Tokens in a page; the backend's own, or 16, where 0.
        tp: Tensor-parallel size.
        layers: Layers of the model.
        dtype: Element type of K and V.
        pages: Pages of each layer.
        names: What layers are called, their number in the place of `#`: peers match layers by name.
        totals: Axes besides `h` that tensor parallelism shards, and their extents over all ranks: `cx=8192 cb=1024`.
            For notations and presets; a backend knows its own.
    """

    engine: str
    format: str
    heads: int = 8
    head_size: int = 128
    page: int = 0
    tp: int = 1
    layers: int = 2
    dtype: str = "bf16"
    pages: int = 1024
    names: str = "layers.#"
    totals: str = ""

    def __post_init__(self) -> None:
        for name in ("heads", "head_size", "tp", "layers", "pages"):
            if getattr(self, name) < 1:
                raise BadSide(f"{name} of {self.engine} must be at least 1, not {getattr(self, name)}")
        if "#" not in self.names:
            raise BadSide(f"names of {self.engine} must have a # for the number of a layer, not {self.names!r}")
        if self.page < 0:
            raise BadSide(f"page of {self.engine} must be at least 1, not {self.page}")
        for axis, total in settings(self.totals).items():
            if not total.isdigit() or int(total) < 1:
                raise BadSide(f"total of {axis} of {self.engine} must be a whole number of at least 1, not {total}")
        if self.totals and self.backend is not None:
            raise BadSide(f"{self.engine}: {self.format} knows its sharded axes; totals are for notations and presets")

    @property
    def backend(self) -> Choice | None:
        """The vLLM backend, where the format names one; one that is called as its preset is (`ultraquant`), too."""
        if "[" in self.format:
            return None
        try:
            return choose(self.format)
        except ValueError as error:
            if self.format.partition(":")[0] in kvr.presets():
                return None
            raise BadSide(f"{self.engine}: {error}; or give a preset (`kvreshard formats`) or a notation") from error

    def tokens(self) -> int:
        """Tokens in a page."""
        choice = self.backend
        return self.page or (choice.backend.pages[0] if choice else 16)

    def sharded(self) -> dict[str, int]:
        """The axes that tensor parallelism shards, where a format has them, and their extents over all ranks."""
        return {"h": self.heads, **{axis: int(total) for axis, total in settings(self.totals).items()}}

    def held(self, rank: int, axis: str = "h") -> int:
        """What one rank holds of a sharded axis: KV heads, for `h`."""
        total = self.sharded()[axis]
        return max(1, (rank + 1) * total // self.tp - rank * total // self.tp)

    def build(self, rank: int) -> Pages:
        """How a rank's pages are built."""
        choice = self.backend
        if choice is not None:
            if self.dtype not in BYTES:
                raise BadSide(f"{self.engine}: vLLM's cache dtypes here are {', '.join(BYTES)}, not {self.dtype}")
            try:
                return pages_of(choice, Shape(self.held(rank), self.tokens(), self.head_size, self.dtype))
            except ValueError as error:
                raise BadSide(f"{self.engine}: {error}") from error
        fixed = {axis: self.held(rank, axis) for axis in settings(self.totals)}
        usual: dict[str, int | str] = {
            "h": self.held(rank),
            "n": self.tokens(),
            "d": self.head_size,
            "dtype": self.dtype,
        }
        fmt = format_of(self.format, fixed, **usual)
        shards = tuple(axis for axis in self.sharded() if axis in fmt.extents)
        return Pages((fmt,), planes=False, shards=shards, standard=False, label=self.format)

    def rank(self, rank: int) -> kvr.RankLayout:
        """The layout of one rank, at addresses made up for it."""
        built = self.build(rank)
        layout = (self.backend.layout if self.backend else None) or "LBHNC"
        base = BASES.get(self.engine, BASES["prefill"]) + rank * PER_RANK
        page = sum(fmt.page_bytes for fmt in built.formats)
        region = kvr.Region(base, self.layers * self.pages * page, memory="DRAM")
        totals = {axis: self.sharded()[axis] for axis in built.shards}
        states = any("n" in fmt.extents for fmt in built.formats)
        layers = []
        for layer in range(self.layers):
            segments, inside = [], 0
            for slot, fmt in enumerate(built.formats):
                if layout.startswith("BH"):
                    offset, stride = self.layers * inside + layer * fmt.page_bytes, self.layers * page
                elif layout.startswith("BL"):
                    offset, stride = layer * page + inside, self.layers * page
                else:
                    offset, stride = self.pages * (layer * page + inside), fmt.page_bytes
                holds = self._plane(rank, slot) if built.planes and "h" not in fmt.extents else None
                inside += fmt.page_bytes
                segments.append(
                    kvr.Segment(region, fmt, pages=self.pages, page_stride=stride, offset=offset, holds=holds)
                )
            layers.append(kvr.Layer(self.names.replace("#", str(layer)), segments, totals=totals))
        groups = [kvr.Group("tokens" if states else "state")]
        return kvr.RankLayout(engine=self.engine, layers=layers, groups=groups, tp=(rank, self.tp))

    def _plane(self, rank: int, slot: int) -> dict[str, tuple[int, int]]:
        first = rank * self.heads // self.tp + slot
        return {"h": (first, first + 1)}

    def ranks(self) -> list[kvr.RankLayout]:
        """Every rank's layout."""
        return [self.rank(rank) for rank in range(self.tp)]

    def words(self) -> str:
        """The side in a line."""
        pages = f", pages of {self.tokens()}" if "n" in self.build(0).formats[0].extents else ""
        return f"{self.format}, TP {self.tp}{pages}"


def preset_names(incomplete: str) -> list[str]:
    """What a shell completes a preset to."""
    return [name for name in kvr.presets() if name.startswith(incomplete)]


def backend_names(incomplete: str) -> list[str]:
    """What a shell completes a backend to."""
    return [name for name in BACKENDS if name.startswith(incomplete)]


def names(incomplete: str) -> list[str]:
    """What a shell completes a format to."""
    return list(dict.fromkeys([*backend_names(incomplete), *preset_names(incomplete)]))


def settings(text: str) -> dict[str, str]:
    """`b=64,dtype=u8` as a mapping."""
    found = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        if not equals or not name or not value:
            raise BadSide(f"{part!r} is no setting: write name=value")
        found[name] = value
    return found


def format_of(text: str, fixed: Mapping[str, int] | None = None, /, **usual: int | str) -> kvr.PageFormat:
    """A notation or a preset, with settings after a colon; of `usual` what it asks for is taken, of `fixed` everything.

    Raises:
        BadSide: There is no such preset, or a setting is no `name=value`.
        FormatError: As :class:`kvreshard.PageFormat` and :func:`kvreshard.preset`.
    """
    what, _, rest = text.partition(":")
    given: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in settings(rest).items()}
    if "[" in what:
        dtype = given.pop("dtype", usual.get("dtype"))
        types = {name: given.pop(name) for name in list(given) if isinstance(given[name], str)}
        # An axis that the notation does not have is an error, so usual extents go only where they are named.
        names = set(what.replace("[", " ").replace("]", " ").replace("/", " ").replace("%", " ").split())
        extents = {name: value for name, value in usual.items() if name in names and isinstance(value, int)}
        return kvr.PageFormat(what, extents={**extents, **(fixed or {}), **given}, types=types, dtype=dtype)
    if what not in kvr.presets():
        raise BadSide(f"no preset {what!r}; known are {', '.join(kvr.presets())}")
    asked = {name: default for name, _, default in kvr.preset_info(what).parameters}
    # A default of the preset's own says more than what is usual, but for the element type and the page.
    taken = {
        name: value
        for name, value in usual.items()
        if name in asked and (asked[name] is None or name in ("n", "dtype"))
    }
    if "dtype" in taken and what not in ("packed-hnd", "packed-nhd", "packed-plane"):
        taken = {name: value for name, value in taken.items() if name != "dtype"} if taken["dtype"] == "bf16" else taken
    return kvr.preset(what, **{**taken, **(fixed or {}), **given})


def read_toml(path: Path, engine: str) -> Side:
    """A side from a TOML file whose keys are the attributes of :class:`Side`.

    Raises:
        BadSide: It does not parse, a key is unknown, or a value is of the wrong type.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSide(f"{path}: {error}") from error
    known = {one.name: one.type for one in fields(Side)}
    totals = values.get("totals")
    if isinstance(totals, dict):
        values["totals"] = " ".join(f"{axis}={total}" for axis, total in totals.items())
    for name, value in values.items():
        if name not in known:
            raise BadSide(f"{path}: unknown key {name!r}; known are {', '.join(known)}")
        wanted: type = str if known[name] == "str" else int
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise BadSide(f"{path}: {name} must be {'a text' if wanted is str else 'a whole number'}, not {value!r}")
    if "format" not in values:
        raise BadSide(f"{path}: format is missing")
    return replace(Side(engine, "-"), **{"engine": engine, **values})
