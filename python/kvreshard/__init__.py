"""Exact NIXL descriptor plans for moving paged KV cache between engines that lay it out differently."""

from kvreshard._core import (
    ArithmeticOverflow,
    Error,
    FormatError,
    IncompatibleLayout,
    LayoutError,
    LimitExceeded,
    MissingLayer,
    PageFormat,
    RequestError,
    VerificationError,
    WireError,
    __version__,
)

__all__ = [
    "ArithmeticOverflow",
    "Error",
    "FormatError",
    "IncompatibleLayout",
    "LayoutError",
    "LimitExceeded",
    "MissingLayer",
    "PageFormat",
    "RequestError",
    "VerificationError",
    "WireError",
    "__version__",
]
