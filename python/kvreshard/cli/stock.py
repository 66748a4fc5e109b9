"""What the NixlConnector of vLLM 0.33 does with a pair of engines: a model of its rules, and of the bytes it moves.

Whether it refuses follows the checks of its handshake (``nixl/base_worker.py`` and ``kv_connector/utils.py``), in the
order in which a pair meets them. Where it accepts, the byte ranges that it copies are played through: it cuts every
page into equal parts, whatever is inside. The share of elements that land where the reader looks is counted, not
assumed. Attention layers of one kind, no context parallelism, no pipeline, one memory kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

import kvreshard as kvr
from kvreshard.cli.sides import Side
from kvreshard.formats import Pages

Ints = npt.NDArray[np.int64]
BLOCK_CONTIGUOUS = ("LBHNC", "BLHNC")


@dataclass(frozen=True)
class Verdict:
    """How a pair fares.

    Attributes:
        outcome: `right`, `refused`, or `wrong`: accepted, and the decoder reads something else.
        why: The rule that refuses, or what goes wrong.
        share: Of the elements that decode ranks need, the share that is where they look; `None` where refused.
    """

    outcome: Literal["right", "refused", "wrong"]
    why: str
    share: float | None = None


def verdict(prefill: Side, decode: Side, *, push: bool = False, hit: int = 0, vetoes: bool = True) -> Verdict:
    """How stock connectors fare, both sides vLLM 0.33 with backends of :mod:`kvreshard.cli.backends`.

    Args:
        prefill: The prefill engine.
        decode: The decode engine.
        push: Whether prefill writes; otherwise decode reads.
        hit: Tokens that are in the decoder's prefix cache already.
        vetoes: Whether a backend that says it takes no connector is believed; a layer that is given one asks nobody.

    Raises:
        BadSide: A side is no vLLM backend, or cannot be made.
    """
    refusal = refused(prefill, decode, push=push, vetoes=vetoes)
    if refusal is not None:
        return Verdict("refused", refusal)
    if hit and prefill.tokens() != decode.tokens():
        return Verdict("wrong", "blocks are paired from the end of the list, so tokens land off after a prefix", 0.0)
    one, other = prefill.build(0), decode.build(0)
    for here, there in zip(one.formats, other.formats, strict=False):
        same = set(here.types) & set(there.types)
        if mixed := [name for name in sorted(same) if here.types[name] != there.types[name]]:
            name = mixed[0]
            types = f"{here.types[name]} and {there.types[name]}"
            return Verdict("wrong", f"{name} is {types} under one name: same bytes, other values", 0.0)
    share = right_share(prefill, decode)
    if share == 1:
        return Verdict("right", "equal byte ranges are what is needed here", share)
    return Verdict("wrong", f"equal byte ranges of the pages: {share:.1%} of the elements right", share)


def refused(prefill: Side, decode: Side, *, push: bool, vetoes: bool = True) -> str | None:
    """The rule of the handshake that refuses a pair; `None` where it is accepted."""
    choices = prefill.backend, decode.backend
    if choices[0] is None or choices[1] is None:
        raise ValueError("stock connectors are modelled for vLLM's backends, not for notations")
    one, other = choices[0], choices[1]
    for choice in (one, other):
        if vetoes and not choice.backend.connector:
            return f"{choice.backend.name} takes no KV connector"
    if one.backend.name != other.backend.name:
        return f"compatibility hash: backend {one.backend.name} against {other.backend.name}"
    if (one.backend.cache or kind(prefill.dtype)) != (other.backend.cache or kind(decode.dtype)):
        return "compatibility hash: cache dtype"
    if (prefill.heads, prefill.head_size, prefill.layers) != (decode.heads, decode.head_size, decode.layers):
        return "compatibility hash: heads, head size or layers"
    local, remote = (prefill, decode) if push else (decode, prefill)
    big, small = max(local.tp, remote.tp), min(local.tp, remote.tp)
    if big % small:
        return "TP sizes do not divide each other (utils.py:530, bare assertion)"
    if local.tokens() % remote.tokens():
        return "the pages of the side that issues are no multiple of the peer's (utils.py:543, bare assertion)"
    if push and local.tokens() != remote.tokens():
        return "push between unequal page sizes (utils.py:543 on the decode side, after the write)"
    if one.backend.mla:
        return None
    if remote.tp > local.tp and local.tokens() != remote.tokens():
        return "prefill TP larger and page sizes differ (base_worker.py:324, bare assertion)"
    if remote.tp > local.tp and remote.tp > local.heads:
        return "fewer KV heads than the peer has ranks (base_worker.py:2728, bare assertion)"
    if push and prefill.tp > decode.tp and prefill.tp > prefill.heads:
        return "fewer KV heads than prefill has ranks (bare assertion)"
    if one.layout != other.layout:
        return f"layouts {one.layout} and {other.layout} (base_worker.py:2808)"
    if local.tp != remote.tp and remote.tp <= local.heads and one.layout not in BLOCK_CONTIGUOUS:
        return f"unequal TP at layout {one.layout} (base_worker.py:2841)"
    if one.backend.cache == "nvfp4" and prefill.held(0) != decode.held(0):
        return "NVFP4 with other heads a rank (base_worker.py:2873)"
    return geometry(prefill, decode)


def kind(dtype: str) -> str:
    """What vLLM calls a cache dtype: it has one name for the encodings of fp8 e4m3."""
    return "fp8" if dtype.startswith("f8e4m3") else dtype


def geometry(prefill: Side, decode: Side) -> str | None:
    """Numbers and lengths of regions, which must agree."""
    one, other = prefill.build(0), decode.build(0)
    if len(one.formats) != len(other.formats):
        return "numbers of regions (base_worker.py:2904, bare assertion)"
    lengths = [sum(fmt.page_bytes for fmt in pages.formats) for pages in (one, other)]
    # Replicated heads: a rank of either side holds at least one.
    per_token = [
        length / (side.tokens() * side.held(0)) for length, side in zip(lengths, (prefill, decode), strict=True)
    ]
    if not (prefill.backend and prefill.backend.backend.mla) and per_token[0] != per_token[1]:
        return "lengths of regions (base_worker.py:2925, bare assertion)"
    return None


def right_share(prefill: Side, decode: Side) -> float:
    """Plays the byte ranges of an accepted pair through; the share of elements right on the worst decode rank."""
    source = (prefill.format, prefill.heads, prefill.head_size, prefill.tokens(), prefill.tp, prefill.dtype)
    target = (decode.format, decode.heads, decode.head_size, decode.tokens(), decode.tp, decode.dtype)
    return _share(source, target)


_Key = tuple[str, int, int, int, int, str]


@lru_cache(maxsize=4096)
def _share(source: _Key, target: _Key) -> float:
    prefill, decode = (
        Side(name, key[0], heads=key[1], head_size=key[2], page=key[3], tp=key[4], dtype=key[5])
        for name, key in (("prefill", source), ("decode", target))
    )
    return min(_rank_share(prefill, decode, rank) for rank in range(decode.tp))


def _rank_share(prefill: Side, decode: Side, rank: int) -> float:
    pages = decode.build(rank)
    wanted = [elements(fmt, decode, rank, slot, pages, 0) for slot, fmt in enumerate(pages.formats)]
    ratio = decode.tokens() // prefill.tokens()
    right = total = 0
    for slot, expected in enumerate(wanted):
        found = received(prefill, decode, rank, slot, ratio, len(expected))
        needed = expected >= 0
        total += int(needed.sum())
        right += int((found[needed] == expected[needed]).sum())
    return right / total


def received(prefill: Side, decode: Side, rank: int, slot: int, ratio: int, size: int) -> Ints:
    """The bytes of one region's page on a decode rank, after the reads and the permutation that follows them."""
    choice = decode.backend
    assert choice is not None
    page = np.full(size, -1, dtype=np.int64)
    part = size // ratio
    sources = max(1, prefill.tp // decode.tp) if not choice.backend.mla else 1
    for block in range(ratio):
        for number in range(sources):
            if prefill.tp > decode.tp:
                peer, factor = rank * (prefill.tp // decode.tp) + number, 0
            else:
                peer, factor = rank // (decode.tp // prefill.tp), _factor(prefill, decode, rank)
            built = prefill.build(peer)
            bytes = elements(built.formats[slot], prefill, peer, slot, built, block)
            length = part // sources
            start = 0 if choice.backend.mla else factor * length
            piece = bytes[start : start + length]
            page[block * part + number * length :][: len(piece)] = piece
    if ratio > 1 and choice.layout in BLOCK_CONTIGUOUS and not choice.backend.mla:
        # [blocks, slots, tokens, content] becomes [slots, all tokens, content]; what is in the slots is not looked at.
        slots = choice.backend.slots(decode.held(rank)) if choice.backend.slots else decode.held(rank)
        page = page.reshape(ratio, slots, -1).transpose(1, 0, 2).reshape(-1)
    return page


def _factor(prefill: Side, decode: Side, rank: int) -> int:
    """Which equal part of the peer's page a decode rank reads."""
    if decode.tp == prefill.tp:
        return 0
    ratio = decode.tp // prefill.tp
    if decode.tp > decode.heads:
        return rank * decode.heads // decode.tp - (rank // ratio) * decode.heads // prefill.tp
    return rank % ratio


def elements(fmt: kvr.PageFormat, side: Side, rank: int, slot: int, pages: Pages, block: int) -> Ints:
    """For every byte of a page, a number for the byte of the element that it holds, the same on every rank; else -1."""
    page = np.full(fmt.page_bytes, -1, dtype=np.int64)
    first = rank * side.heads // side.tp + (slot if pages.planes and "h" not in fmt.extents else 0)
    for name in fmt.components:
        axes = fmt.axes(name)
        offsets = fmt.offsets(name)
        number = np.full(offsets.shape, _code(name), dtype=np.int64)
        for at, (axis, extent) in enumerate(axes):
            index = np.arange(extent, dtype=np.int64).reshape([-1 if other == at else 1 for other in range(len(axes))])
            begin = first if axis == "h" else block * side.tokens() if axis == "n" else 0
            number = number + (index + begin) * _WEIGHTS.get(axis, 1)
        if not any(axis == "h" for axis, _ in axes) and pages.shards:
            number = number + first * _WEIGHTS["h"]
        width = element_bytes(fmt.types[name])
        for byte in range(width):
            page[offsets.reshape(-1) + byte] = (number.reshape(-1) << 3) + byte
    return page


# Room for every index beside the others in one number: channels, then states, then heads, then the component.
_WEIGHTS = {"n": 1 << 20, "h": 1 << 34}


def _code(component: str) -> int:
    number = 0
    for letter in component:
        number = (number * 131 + ord(letter)) % 4093
    return number << 46


def element_bytes(name: str) -> int:
    """Bytes of an element by its type's name."""
    return kvr.PageFormat("x[]", dtype=name).page_bytes
