"""Two ranks that exchange bytes."""

from __future__ import annotations

from dataclasses import dataclass

import kvreshard as kvr


@dataclass(frozen=True)
class Pair:
    """One rank here and one of a peer.

    Attributes:
        mine: What this rank holds.
        theirs: What the peer's rank holds.
        edge: What of it is exchanged.
        plan: Which bytes go where.
    """

    mine: kvr.RankLayout
    theirs: kvr.RankLayout
    edge: kvr.Edge
    plan: kvr.Plan
