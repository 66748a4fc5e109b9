"""Which block a tile gets, by what its two sides look like."""

from __future__ import annotations

import kvreshard as kvr

from .blocks import Config, blocks

Traits = tuple[int, bool]
"""Bytes of an element, and whether the two sides differ in order."""

TABLE: dict[Traits, Config] = {}
"""Measured choices; a tile that is not here gets `DEFAULT`."""

DEFAULT = Config()


def traits(tile: kvr.Tile, *, gather: bool, page_align: int, buffer_align: int) -> Traits:
    """What `TABLE` knows a tile by."""
    found = blocks(tile, gather=gather, page_align=page_align, buffer_align=buffer_align, config=DEFAULT)
    return found.width, found.transposed


def config(shape: list[kvr.Tile], *, gather: bool, page_align: int, buffer_align: int) -> Config:
    """The choice for the tiles of one launch: that of the tile with the most bytes."""

    def moved(tile: kvr.Tile) -> int:
        total = tile.run
        for extent, _, _ in tile.loops:
            total *= extent
        return total

    largest = max(shape, key=moved)
    return TABLE.get(traits(largest, gather=gather, page_align=page_align, buffer_align=buffer_align), DEFAULT)
