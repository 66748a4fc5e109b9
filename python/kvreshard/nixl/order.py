"""What a caller orders of the connector besides peers and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from .errors import Unsupported
from .events import Direction
from .peer import Peer
from .strategy import Wanted, check


class Options(TypedDict, total=False):
    """Keywords of `Connector.read`, `read_all`, `write` and `write_all`; each may be left out."""

    notify: bool | bytes
    """How each peer is told when its part is over: our notice (the default; peers that do not understand it get none),
    bytes of the caller's own, or `False` for not at all."""
    deadline: float | None
    """Seconds until the request fails; the connector's where not given."""
    zero: bool
    """Whether bytes are cleared that the destination's pages own and no peer covers (the default)."""
    layers: Sequence[str] | None
    """Narrows the request to some layers."""
    wait: bool
    """Whether nothing moves before the current stream of the calling thread has done what it was given until now (the
    default): pages in device memory are complete when they are sent, and not in use when they are written."""
    strategy: Wanted
    """Forces a strategy. "auto", the default, takes the cheapest that both sides can run, by the planner's model."""
    fence: bool | None
    """Whether a read is finished only when each producer has confirmed that it held the pages until the last byte had
    arrived; leases are asked for and prolonged meanwhile. The producers must `expect` the request. The connector's
    choice where not given."""


@dataclass(frozen=True)
class Order:
    """One request's id, direction and options."""

    id: str
    direction: Direction
    notify: bool | bytes = True
    deadline: float | None = None
    zero: bool = True
    layers: Sequence[str] | None = None
    wait: bool = True
    strategy: Wanted = "auto"
    fence: bool | None = None

    def __post_init__(self) -> None:
        check(self.strategy)


def fenced(order: Order, peers: Sequence[Peer], default: bool) -> bool:
    """Whether the read is fenced: as ordered, or as the connector does by `default` where it can.

    Raises:
        Unsupported: It is ordered, and cannot be.
    """
    deaf = [peer.name for peer in peers if not peer.understands_control]
    why = ""
    if order.direction == "write":
        why = "it is a write"
    elif order.notify is not True:
        why = "its notice is not ours"
    elif deaf:
        why = f"{', '.join(deaf)} did not announce that it answers"
    wanted = (default and not why) if order.fence is None else order.fence
    if wanted and why:
        raise Unsupported(f"request {order.id} cannot be fenced: {why}", request=order.id, field="fence")
    return wanted
