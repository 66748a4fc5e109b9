"""The oracle's plain values as objects of kvreshard."""

from __future__ import annotations

from typing import Literal, cast

import kvreshard as kvr
from tests.oracle.model import Page, Rank, Request, Segment


def to_format(page: Page) -> kvr.PageFormat:
    """The page's format."""
    return kvr.PageFormat(page.notation, extents=dict(page.extents), types=dict(page.types))


def to_rank(rank: Rank, engine: str) -> kvr.RankLayout:
    """The rank's layout, every share written out."""
    regions = [
        kvr.Region(region.base, region.bytes, region.device, cast(Literal["DRAM", "VRAM"], region.memory))
        for region in rank.regions
    ]

    def to_segment(segment: Segment) -> kvr.Segment:
        return kvr.Segment(
            regions[segment.region],
            to_format(segment.page),
            pages=segment.pages,
            page_stride=segment.page_stride,
            offset=segment.offset,
            holds=dict(segment.holds),
        )

    return kvr.RankLayout(
        engine=engine,
        layers=[
            kvr.Layer(layer.name, [to_segment(s) for s in layer.segments], totals=dict(layer.totals), group=layer.group)
            for layer in rank.layers
        ],
        groups=[
            kvr.Group(
                "state" if group.kind == "state" else "tokens",
                pages_per_block=group.pages_per_block,
                tokens_per_state=group.tokens_per_state,
                window=group.window,
            )
            for group in rank.groups
        ],
        tp=rank.tp,
        pp=rank.pp,
        cp=rank.cp,
        cp_interleave=rank.interleave,
    )


def to_request(request: Request, *, more: bool = False) -> kvr.Request:
    """The request with its block lists."""
    local, remote = ([kvr.Blocks(b.ids, b.first_token) for b in side] for side in (request.local, request.remote))
    return kvr.Request(request.tokens, local, remote, more=more)
