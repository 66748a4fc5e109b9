"""First contact of a push: the target's own reader looks at marked pages that a writer has written, and says so.

    writer                                      target
      | marks its scratch pages                   |   expect_contacts(blocks, read) was called
      | ============ writes ====================> |
      | -- marked(id, seed, blocks, tokens) --->  |   reads, and holds it against the marks
      | <- found(id, 2 pages, nothing wrong) ---  |

`marked` is sent again until it is answered; a question that was answered is answered alike.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import kvreshard as kvr
from kvreshard.probe import Source, WriterMismatch

from . import control
from .contact import Expected, Read, compare
from .control import Found, Marked
from .peer import Peer

log = logging.getLogger(__name__)

MAX_ANSWERS = 256
"""Answers that are remembered, of the last peers that asked."""

MAX_TEXT = 4096


@dataclass(frozen=True)
class Scratch:
    """Blocks (one list a group) that peers may mark, this engine's reader, and what its pages are made of."""

    blocks: Sequence[kvr.Blocks]
    read: Read
    sources: Mapping[str, Source] | None


class Meetings:
    """What one connector expects of writers, and has asked of targets."""

    def __init__(self) -> None:
        self.scratch: Scratch | None = None
        self._answers: OrderedDict[str, Found] = OrderedDict()
        self._asked: dict[str, Found | None] = {}

    # The target's side

    def answer(self, layout: kvr.RankLayout, peer: Peer, told: Marked) -> Found:
        """Looks, unless it is the question that the peer asked last."""
        known = self._answers.get(peer.name)
        if known is None or known.id != told.id:
            known = self._answers[peer.name] = self._look(layout, peer, told)
            self._answers.move_to_end(peer.name)
            while len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        return known

    def _look(self, layout: kvr.RankLayout, peer: Peer, told: Marked) -> Found:
        scratch = self.scratch
        if scratch is None:
            return Found(told.id, 0, 0, False, "it expects no first contact: expect_contacts() there first")
        try:
            blocks = _scratch_only(scratch, told)
            expected = Expected(blocks, told.tokens, told.seed, scratch.sources)
            pages, elements = compare(layout, peer.layout, told.takes, expected, scratch.read)
        except WriterMismatch as problem:
            return Found(told.id, 0, 0, True, str(problem)[: MAX_TEXT // 4])
        except Exception as problem:  # Whatever the engine's reader raises is an answer, and does not end who polls.
            if not isinstance(problem, kvr.Error):
                log.warning("first contact of %s: the reader raised", peer.name, exc_info=problem)
            return Found(told.id, 0, 0, False, f"{type(problem).__name__}: {problem}"[: MAX_TEXT // 4])
        return Found(told.id, pages, elements, False, "")

    # The writer's side

    def ask(self, id: str) -> None:
        """An answer may come."""
        self._asked[id] = None

    def hear(self, found: Found) -> None:
        """It has."""
        if found.id in self._asked:
            self._asked[found.id] = found

    def answered(self, id: str) -> Found | None:
        """What was answered, if anything."""
        return self._asked.get(id)

    def forget(self, id: str) -> None:
        """Nothing is waited for any more."""
        self._asked.pop(id, None)


def told_blocks(blocks: Sequence[kvr.Blocks]) -> control.Blocks:
    """Block lists as they go over the wire."""
    return [(listed.first_token, np.asarray(listed.ids, np.int32).tobytes()) for listed in blocks]


def _scratch_only(scratch: Scratch, told: Marked) -> list[kvr.Blocks]:
    """The peer's blocks, all of them scratch ones, each once: it can have nothing else read, and nothing often."""
    start, end = told.tokens
    if not start < end:
        raise kvr.RequestError(f"tokens [{start}, {end}) are none")
    if len(told.blocks) != len(scratch.blocks):
        raise kvr.RequestError(f"blocks of {len(told.blocks)} groups are told, this rank has {len(scratch.blocks)}")
    found = []
    for (first, raw), mine in zip(told.blocks, scratch.blocks, strict=True):
        if len(raw) % 4:
            raise kvr.RequestError("a list of blocks ends inside an id")
        ids = np.frombuffer(raw, np.int32).tolist()
        allowed = {int(id) for id in mine.ids}
        if len(set(ids)) != len(ids) or not set(ids) <= allowed:
            raise kvr.RequestError(
                f"blocks {ids[:8]} are not, each once, among the scratch blocks {sorted(allowed)[:8]}"
            )
        found.append(kvr.Blocks(ids, first))
    return found
