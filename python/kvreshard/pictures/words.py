"""What a piece of a page is, in words and in colour."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import kvreshard as kvr

AXES = {"h": "head", "n": "token", "d": "channel", "dv": "channel", "r": "element", "": "index"}

# K, V and what comes with them; any other component takes the next free hue.
HUES = {"k": 212, "v": 28, "ks": 190, "vs": 48, "c": 140, "q": 140, "cs": 90, "sc": 90, "r": 175, "ssm": 285, "x": 330}
SPARE = (330, 255, 5, 160, 70)


def axis_words(axis: str, reach: tuple[int, int, int]) -> str:
    """`heads 0-3`, `token 5`, `token 0-12, 4 of them`."""
    first, last, count = reach
    name = AXES.get(axis, axis)
    if first == last:
        return f"{name} {first}"
    some = "" if count == last - first + 1 else f", {count} of them"
    return f"{name}s {first}-{last}{some}"


def piece_words(piece: kvr.Piece) -> str:
    """A piece in a line: component, indexes along every axis, bytes."""
    where = f"bytes {piece.offset}-{piece.offset + piece.bytes - 1}"
    if piece.component is None:
        return f"padding, {where}"
    order = {axis: at for at, axis in enumerate(("h", "n"))}
    axes = sorted(piece.axes.items(), key=lambda item: order.get(item[0], len(order)))
    return ", ".join([piece.component, *(axis_words(axis, reach) for axis, reach in axes), where])


def colours(components: Sequence[str]) -> dict[str, int]:
    """A hue for each component."""
    spare = iter(SPARE * (1 + len(components) // len(SPARE)))
    return {name: HUES[name] if name in HUES else next(spare) for name in components}


def shade(hue: int, piece: kvr.Piece) -> str:
    """The colour of a piece: its component's hue, darker and lighter by head; by state where there is no head."""
    head = piece.axes.get("h", piece.axes.get("n", (0, 0, 1)))[0]
    lightness = (0.40, 0.56, 0.47, 0.63)[head % 4]
    red, green, blue = colorsys.hls_to_rgb(hue / 360, lightness, 0.62)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def component_names(pieces: Sequence[kvr.Piece]) -> list[str]:
    """The components of pieces, in order of first appearance."""
    return list(dict.fromkeys(piece.component for piece in pieces if piece.component is not None))


def rank_words(layout: kvr.RankLayout) -> str:
    """A rank by name and place."""
    text = f"{layout.engine}, TP rank {layout.tp[0]} of {layout.tp[1]}"
    for name, (rank, size) in (("PP", layout.pp), ("CP", layout.cp)):
        if size > 1:
            text += f", {name} rank {rank} of {size}"
    return text
