"""With whom the packed protocol runs: two registrations that know each other's epochs.

      A                                    B
      | -- join(A, yours none) ---------->  |   not begun: tells its epochs
      | <- join(B, yours A) --------------  |
      |  begun: A, B                        |
      | -- join(A, yours B, up) --------->  |   begun: A, B

Whoever hears `join` with other epochs than those that it began with ends what there was: the peer was registered anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import kvreshard as kvr

from .carrier import Actions, Carrier
from .control import Flow, Join, Message, Refused
from .parcels import Role
from .peer import Peer

log = logging.getLogger(__name__)

NONE = (0, 0)
RESEND, RESEND_MOST = 0.1, 2.0
"""Seconds after which `join` is said again, twice as many each time."""

DENIED = 10.0
"""Seconds after a refusal in which nothing is packed by choice."""


@dataclass
class Session:
    """What is known of a peer. `mine` and `theirs` are the epochs, as receiver and sender, that it was begun with."""

    number: int
    up: bool = False
    mine: tuple[int, int] = NONE
    theirs: tuple[int, int] = NONE
    heard: tuple[int, int] = NONE
    refused: str | None = None
    denied: float = -inf
    next: float = 0.0
    sent: int = 0


class Sessions:
    """The sessions of one connector. `say` sends a control message."""

    def __init__(
        self,
        carrier: Carrier,
        flow: Flow,
        say: Callable[[Peer, Message, bool], None],
    ) -> None:
        self._flow: Flow = flow
        self._carrier, self._say = carrier, say
        self._receiver, self._sender = carrier.receiver, carrier.sender
        self._sessions: dict[str, Session] = {}
        self._names: dict[int, str] = {}

    def of(self, name: str) -> Session:
        """The session with a peer; its number stays for as long as the machines live."""
        if name not in self._sessions:
            number = len(self._sessions)
            self._sessions[name] = Session(number)
            self._names[number] = name
        return self._sessions[name]

    def name(self, number: int) -> str:
        """The peer of that number."""
        return self._names[number]

    @property
    def any(self) -> bool:
        """Whether there was ever one: the machines may have something to say."""
        return bool(self._sessions)

    def begin(self, peer: Peer, now: float) -> bool:
        """Whether it has begun; says `join`, and again in time, while it has not."""
        session = self.of(peer.name)
        if not session.up and session.refused is None and now >= session.next:
            session.next = now + min(RESEND * 2**session.sent, RESEND_MOST)
            session.sent = min(session.sent + 1, 8)
            self._tell(peer, session, again=session.sent > 1)
        return session.up

    def hear(self, peer: Peer, join: Join) -> None:
        """A peer wants to begin, or has."""
        if peer.rings is None:
            return
        session = self.of(peer.name)
        session.heard, session.refused = join.mine, None
        if session.up and session.theirs == join.mine and (join.up or join.yours in (session.mine, NONE)):
            if not join.up:
                self._tell(peer, session)
            return
        if session.up:
            self.end(peer.name)
            session.heard = join.mine
        if join.yours == self._now and not self._up(peer, session, join):
            return
        self._tell(peer, session)

    def _up(self, peer: Peer, session: Session, join: Join) -> bool:
        assert peer.rings is not None
        mine, theirs, number = self._now, join.mine, session.number
        begun: list[tuple[Role, Actions]] = []
        try:
            slots = peer.rings.send.slots
            begun.append(("receiver", self._receiver.peer_up(number, (mine[0], theirs[1]), self._flow, slots)))
            slots = peer.rings.receive.slots
            begun.append(("sender", self._sender.peer_up(number, (theirs[0], mine[1]), join.flow, slots)))
        except kvr.Error as error:
            if begun:
                self._carrier.add("receiver", self._receiver.peer_down(number))
            log.warning("no packed transfers with %s: %s", peer.name, error)
            session.refused = str(error)[:1000]
            self._say(peer, Refused("", session.refused), False)
            return False
        session.up, session.mine, session.theirs, session.sent = True, mine, theirs, 0
        for role, actions in begun:
            self._carrier.add(role, actions)
        return True

    def refuse(self, name: str, text: str) -> None:
        """The peer does not admit this rank; whatever waits for it now has failed."""
        session = self.of(name)
        if session.up:
            # Begun on this side only: of two that know each other's epochs, the one that hears of it last refuses.
            self.end(name)
            session.denied = time.monotonic()
        else:
            session.refused = text

    def forgive(self, name: str) -> None:
        """The next that wants to begin may try again."""
        session = self.of(name)
        session.refused, session.sent, session.next = None, 0, 0.0
        session.denied = time.monotonic()

    def welcome(self, name: str, now: float) -> bool:
        """Whether there is no recent refusal."""
        session = self._sessions.get(name)
        return session is None or session.up or now - session.denied > DENIED

    def end(self, name: str) -> None:
        """The peer is lost, or another registration."""
        session = self._sessions.get(name)
        if session is None:
            return
        was, session.up, session.refused, session.sent, session.next = session.up, False, None, 0, 0.0
        session.heard = NONE
        if was:
            self._carrier.add("receiver", self._receiver.peer_down(session.number))
            self._carrier.add("sender", self._sender.peer_down(session.number))

    def gone(self, name: str) -> None:
        """Nothing of the lost peer touches the rings any more."""
        session = self._sessions.get(name)
        if session is not None and not session.up:
            self._carrier.add("receiver", self._receiver.peer_gone(session.number))
            self._carrier.add("sender", self._sender.peer_gone(session.number))

    def registered(self) -> None:
        """The rings are other memory: all sessions are over."""
        self._carrier.add("receiver", self._receiver.registered())
        self._carrier.add("sender", self._sender.registered())
        for session in self._sessions.values():
            session.up, session.heard, session.sent, session.next = False, NONE, 0, 0.0

    @property
    def _now(self) -> tuple[int, int]:
        return self._receiver.epoch, self._sender.epoch

    def _tell(self, peer: Peer, session: Session, *, again: bool = False) -> None:
        mine = session.mine if session.up else self._now
        self._say(peer, Join(mine, session.heard, self._flow, session.up, peer.generation), again)
