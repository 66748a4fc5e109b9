"""By which strategy a request goes: the one asked for, or the cheapest by the planner's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import kvreshard as kvr

from .errors import Unsupported
from .events import Direction, Predicted, Strategy
from .peer import Peer

Wanted = Literal["auto", "direct", "landed", "packed"]
WANTED: tuple[Wanted, ...] = ("auto", "direct", "landed", "packed")

TRANSPORTS = {"DRAM": "cma", "VRAM": "cuda_ipc"}
"""The measured transport that stands for one that was not calibrated, by the kind of this rank's memory."""


@dataclass(frozen=True)
class Able:
    """What the two sides can do besides direct transfers: bytes of a chunk when landed and when packed, 0 for not at
    all.
    """

    lands: int
    packs: int


def check(wanted: str) -> None:
    """Raises `Unsupported` for a word that is no strategy."""
    if wanted not in WANTED:
        raise Unsupported(
            f"strategy is {wanted!r}, but must be one of {', '.join(WANTED)}", field="strategy", found=wanted
        )


def decide(
    pairing: kvr.Pairing, peer: Peer, direction: Direction, wanted: Wanted, able: Able
) -> tuple[Strategy, Predicted | None]:
    """The strategy, and what it is expected to take; `None` for a direct transfer that nothing was weighed against.

    Raises:
        Unsupported: The strategy asked for is one that this pair cannot run.
        kvreshard.RequestError: The request begins inside a row, which only a direct transfer can serve.
        kvreshard.LimitExceeded: A page is larger than a slot.
    """
    if not pairing.fits_rows:
        able = Able(0, 0)
    if wanted == "direct" or (wanted == "auto" and not (able.lands or able.packs)):
        return "direct", None
    if wanted == "auto":
        # Direct first: the cheapest of equals is the one that needs no kernel.
        cost = min(_costs(pairing, peer, able), key=lambda one: one.ns)
        return cost.strategy, _predicted(cost)
    # What was not asked for is not worked out.
    only = Able(able.lands if wanted == "landed" else 0, able.packs if wanted == "packed" else 0)
    found = next((cost for cost in _costs(pairing, peer, only, direct=False) if cost.strategy == wanted), None)
    if found is None:
        raise _refusal(pairing, peer, direction, wanted, able)
    return wanted, _predicted(found)


def predicted_direct(peer: Peer, direction: Direction, posted: int, bytes: int) -> Predicted:
    """What a direct transfer is expected to take."""
    transport = kvr.Transport.named(peer.transport) if isinstance(peer.transport, str) else peer.transport
    if direction == "read":
        post_ns, rate = transport.read_post_ns, transport.read_bytes_per_us
    else:
        post_ns, rate = transport.write_post_ns, transport.write_bytes_per_us
    return Predicted(posted, bytes, posted * post_ns * 1e-9 + bytes / max(rate, 1) * 1e-6)


def _costs(pairing: kvr.Pairing, peer: Peer, able: Able, *, direct: bool = True) -> list[kvr.Cost]:
    costs = []
    if direct or able.lands:
        lands = able.lands > 0
        costs += pairing.costs(
            transport=peer.transport, direct=direct, lands=lands, packs=False, chunk=max(able.lands, 1)
        )
    if able.packs:
        costs += pairing.costs(transport=peer.transport, direct=False, lands=False, chunk=able.packs)
    return costs


def _predicted(cost: kvr.Cost) -> Predicted:
    return Predicted(cost.posted, cost.bytes, cost.ns * 1e-9)


def _refusal(pairing: kvr.Pairing, peer: Peer, direction: Direction, wanted: Wanted, able: Able) -> kvr.Error:
    if not pairing.fits_rows:
        return kvr.RequestError(
            f"strategy {wanted}: the request begins inside a row, and kernels move whole rows; begin it where a row of "
            "the plan begins, or leave the strategy to the planner"
        )
    if wanted == "landed" and direction == "write":
        why = "landing is the receiver's own read"
    elif wanted == "landed" and not able.lands:
        why = "this connector has no staging memory beside its pages"
    elif wanted == "packed" and not able.packs:
        why = f"not both sides run the packed protocol ({peer.name} announced version {peer.packs})"
    else:
        return kvr.LimitExceeded(f"strategy {wanted}: one page needs more than the bytes of a staging slot")
    return Unsupported(
        f"strategy {wanted} cannot be run with peer {peer.name}: {why}",
        peer=peer.name,
        field="strategy",
        found=wanted,
        remedy="give both connectors staging memory, or choose another strategy",
    )
