"""Packing over machines, a carrier and sessions that only take note of what they are asked."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from kvreshard.nixl.packing import Packing
from kvreshard.nixl.parcels import Parcel, Role
from kvreshard.nixl.peer import Peer


class Machine:
    """Notes what it is asked, and asks for that in turn."""

    def __init__(self, role: str) -> None:
        self.role, self.asked, self.refuse = role, list[tuple[Any, ...]](), dict[str, Exception]()
        self.quarantined = 0

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> list[Any]:
            self.asked.append((name, *arguments))
            if name in self.refuse:
                raise self.refuse[name]
            return [(self.role, name)]

        return ask


class Carrier:
    """Notes what it is given to do."""

    def __init__(self) -> None:
        self.receiver, self.sender = Machine("receiver"), Machine("sender")
        self.busy = False
        self.done: list[Any] = []

    def add(self, role: str, actions: list[Any]) -> None:
        assert [who for who, _ in actions] == [role]
        self.done += [what for _, what in actions]

    def run(self) -> None:
        self.done.append("run")

    def look(self, *, every: bool) -> None:
        self.done.append(("look", every))

    def keep(self) -> None:
        self.done.append("keep")

    def abandon(self) -> list[Any]:
        self.done.append("abandon")
        return ["left"]

    def busy_with(self, peer: Any) -> bool:
        return peer is None or peer.name == "there"


@dataclass
class Sessions:
    """The sessions of peers by name, each with a number; begun where that is said."""

    up: bool = True
    asked: list[Any] = field(default_factory=list)
    known: dict[str, Any] = field(default_factory=dict)
    any: bool = True

    def of(self, name: str) -> Any:
        return self.known.setdefault(name, SimpleNamespace(number=5 + len(self.known), refused=None))

    def name(self, number: int) -> str:
        return next(name for name, one in self.known.items() if one.number == number)

    def begin(self, peer: Any, now: float) -> bool:
        self.of(peer.name)
        self.asked.append(("begin", peer.name, now))
        return self.up

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments: self.asked.append((name, *arguments))


class One:
    """Packing with a peer."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any, bool]] = []
        self.lost: list[tuple[str, Exception]] = []
        self.packing = Packing(
            cast(Any, None),
            cast(Any, None),
            "push",
            lambda peer, message, again: self.said.append((peer.name, message, again)),
            lambda peer, error: self.lost.append((peer.name, error)),
        )
        self.carrier, self.sessions = Carrier(), Sessions()
        self.packing._running = cast(Any, (self.carrier, self.sessions))
        self.packing._areas = cast(Any, {"receiver": object(), "sender": object()})
        self.peer, self.other = self.rank("there"), self.rank("other")
        self._names = itertools.count(1)

    @staticmethod
    def rank(name: str) -> Peer:
        return cast(Peer, SimpleNamespace(name=name, connected=True, rings=None))

    def parcel(self, role: Role = "receiver", *, open: bool = True, peer: Peer | None = None, **fields: Any) -> Parcel:
        """One of two chunks, 10 and 4 bytes, which the machine is asked for unless told otherwise."""
        chunks: Any = [SimpleNamespace(bytes=10), SimpleNamespace(bytes=4)]
        made = Parcel(
            name=f"p{next(self._names)}",
            peer=peer or self.peer,
            role=role,
            chunks=chunks,
            mover=cast(Any, None),
            message=cast(Any, "the message"),
            **{"id": "r", "ours": True, **fields},
        )
        if open:
            self.packing.open(made)
        return made

    @property
    def left(self) -> list[str]:
        """Names of the parcels that are not forgotten."""
        return [parcel.name for parcel in self.packing._parcels.values()]
