"""What a probe finds wrong."""

from __future__ import annotations

import kvreshard as kvr


class ProbeError(kvr.Error):
    """A probe cannot run: the memory, the extents or the writer's inputs do not fit."""


class WriterMismatch(ProbeError):
    """The writer does not write what the format says.

    ``component`` and ``index`` name the first element concerned, ``declared`` the byte of the page where the format has
    it, ``moved`` the bytes that the writer moved for it (at most eight).
    """

    def __init__(
        self,
        message: str,
        *,
        component: str | None = None,
        index: dict[str, int] | None = None,
        declared: int | None = None,
        moved: list[int] | None = None,
    ) -> None:
        super().__init__(message)
        self.component = component
        self.index = index
        self.declared = declared
        self.moved = moved


class NotANest(ProbeError):
    """The pages are no nest of loops, so no notation describes them."""
