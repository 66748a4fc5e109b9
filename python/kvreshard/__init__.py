"""Exact NIXL descriptor plans for moving paged KV cache between engines that lay it out differently.

A :class:`PageFormat` says which byte of a page is which element. A :class:`RankLayout` says where a rank's pages are.
From two of them :func:`plan` makes the smallest descriptor lists that move one side's cache into the other's pages, or
raises an :class:`Error` that names what does not fit. Nothing here copies bytes; ``kvreshard.nixl`` hands the plans to
NIXL.
"""

from kvreshard._core import (
    ArithmeticOverflow,
    Blocks,
    Edge,
    Engine,
    Error,
    FormatError,
    Group,
    IncompatibleLayout,
    Layer,
    LayoutError,
    LimitExceeded,
    MissingLayer,
    PageFormat,
    Plan,
    RankLayout,
    Region,
    Request,
    RequestError,
    Route,
    Segment,
    VerificationError,
    WireError,
    __version__,
    plan,
    preset,
    presets,
    route,
    verify,
)

__all__ = [
    "ArithmeticOverflow",
    "Blocks",
    "Edge",
    "Engine",
    "Error",
    "FormatError",
    "Group",
    "IncompatibleLayout",
    "Layer",
    "LayoutError",
    "LimitExceeded",
    "MissingLayer",
    "PageFormat",
    "Plan",
    "RankLayout",
    "Region",
    "Request",
    "RequestError",
    "Route",
    "Segment",
    "VerificationError",
    "WireError",
    "__version__",
    "plan",
    "preset",
    "presets",
    "route",
    "verify",
]
