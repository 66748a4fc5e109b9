"""Pages drawn with characters, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

import kvreshard as kvr
from kvreshard.pictures.words import colours, component_names, shade

UNREAD, STILL = "/", "."


def strip(pieces: Sequence[kvr.Piece], width: int, *, moved_only: bool = False) -> list[Text]:
    """Two lines for the pages of one side: what most of each stretch of bytes is, and its head.

    The first line has the initial of the component, `/` for padding and, with `moved_only`, `.` for what is not moved;
    the second the last digit of the head.
    """
    total = sum(piece.bytes for piece in pieces)
    width = min(width, total)
    hues = colours(component_names(pieces))
    starts, at = [], 0
    for piece in pieces:
        starts.append(at)
        at += piece.bytes
    what, heads = Text(), Text(style="dim")
    index = 0
    for column in range(width):
        middle = (2 * column + 1) * total // (2 * width)
        while index + 1 < len(pieces) and starts[index + 1] <= middle:
            index += 1
        piece = pieces[index]
        if piece.component is None:
            what.append(UNREAD, style="dim")
            heads.append(" ")
            continue
        still = moved_only and piece.run is None
        style = "dim" if still else f"white on {shade(hues[piece.component], piece)}"
        what.append(STILL if still else piece.component[0], style=style)
        head = piece.axes.get("h")
        heads.append(str(head[0] % 10) if head else " ")
    return [what, heads] if heads.plain.strip() else [what]


def legend(pieces: Sequence[kvr.Piece]) -> str:
    """What the characters of :func:`strip` mean."""
    parts = [f"{name[0]} {name}" for name in component_names(pieces)]
    if any(piece.component is None for piece in pieces):
        parts.append(f"{UNREAD} padding")
    if any("h" in piece.axes for piece in pieces):
        parts.append("below: head")
    return ", ".join(parts)
