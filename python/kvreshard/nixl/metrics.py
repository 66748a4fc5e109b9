"""What has been done with one peer, in numbers that only grow."""

from __future__ import annotations

from dataclasses import dataclass, field

from .events import Share, Strategy


@dataclass
class Metrics:
    """Counts of one peer since it was connected.

    `requests` finished by strategy, `posted` descriptors, `bytes` and `seconds` of them; `predicted_seconds` is what
    the cost model expected for those that it was asked about, which took `seconds_predicted`. `refusals` are requests
    that were refused before anything moved, `failures` requests that failed with this peer's part unfinished.
    """

    requests: dict[Strategy, int] = field(default_factory=dict)
    posted: int = 0
    bytes: int = 0
    seconds: float = 0.0
    predicted_seconds: float = 0.0
    seconds_predicted: float = 0.0
    refusals: int = 0
    failures: int = 0

    def count(self, share: Share) -> None:
        """Adds a part that finished."""
        self.requests[share.strategy] = self.requests.get(share.strategy, 0) + 1
        self.posted += share.posted
        self.bytes += share.bytes
        self.seconds += share.seconds
        if share.predicted is not None:
            self.predicted_seconds += share.predicted.seconds
            self.seconds_predicted += share.seconds
