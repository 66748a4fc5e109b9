"""Whole engines by brute force: who sends which head to whom, what every byte is, what is left to clear.

Nothing here knows intervals, strides or periods: heads are dealt one by one, tokens are looked at one by one.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.oracle.model import Blocks, Layer, Rank, Request
from tests.oracle.notation import Body, Ints, Item, parse
from tests.oracle.transfer import WHOLE, Pairs, held, pairs

Bytes = NDArray[np.uint8]
Lists = Sequence[Sequence[Blocks]]
"""Block lists of every rank of an engine."""

Members = dict[str, set[tuple[str, int]]]

EVER = 1 << 40


@dataclass(frozen=True)
class Exchange:
    """A request between two engines: `target` wants the tokens that `source` has, each rank with its own lists."""

    source: tuple[Rank, ...]
    target: tuple[Rank, ...]
    tokens: tuple[int, int]
    source_blocks: tuple[tuple[Blocks, ...], ...]
    target_blocks: tuple[tuple[Blocks, ...], ...]

    def request(self, target: int, source: int, tokens: tuple[int, int] | None = None) -> Request:
        """What the target rank asks of the source rank, the target being local."""
        return Request(tokens or self.tokens, self.target_blocks[target], self.source_blocks[source])

    def pairs(self, target: int, source: int, carried: Members, tokens: tuple[int, int] | None = None) -> Pairs:
        """The elements that one edge carries."""
        request = self.request(target, source, tokens)
        return pairs(self.target[target], self.source[source], request, carried)


def deal(target: Sequence[Rank], source: Sequence[Rank]) -> dict[tuple[int, int], Members]:
    """For each pair (target rank, source rank) the members of each layer that go between them.

    Of `w` ranks that want one head (of the tokens of one context-parallel rank) and `g` that have it, number `i` gets
    it from number `i * g // w`. What is not sharded comes from a rank that sends something of the layer anyway, if
    there is one.
    """
    dealt: dict[tuple[int, int], Members] = {}

    def give(to: int, by: int, layer: str, member: tuple[str, int]) -> None:
        dealt.setdefault((to, by), {}).setdefault(layer, set()).add(member)

    for name in dict.fromkeys(layer.name for rank in target for layer in rank.layers):
        wanting, giving = _holders(target, name), _holders(source, name)
        if not giving:
            raise LookupError(name)
        whole = any(_is_state(target[rank], layer) for rank, layer in wanting.items())
        used: dict[tuple[int, int], set[int]] = {}
        for context in sorted({0 if whole else source[rank].cp[0] for rank in giving}):
            having = [rank for rank in giving if whole or source[rank].cp[0] == context]
            getting = [rank for rank in wanting if whole or _share_tokens(target[rank], source[having[0]])]
            members = sorted({m for rank in getting for m in _members(wanting[rank])} - {WHOLE})
            for member in [*members, WHOLE]:
                want = [rank for rank in getting if member in _members(wanting[rank])]
                have = [rank for rank in having if member in _members(giving[rank])]
                for number, rank in enumerate(want):
                    if not have:
                        raise LookupError(f"{name}: {member}")
                    by = have[number * len(have) // len(want)]
                    known = used.setdefault((rank, context), set())
                    if member == WHOLE and (sending := [other for other in have if other in known]):
                        by = sending[0]
                    known.add(by)
                    give(rank, by, name, member)
    return dealt


def _holders(ranks: Sequence[Rank], name: str) -> dict[int, Layer]:
    return {number: layer for number, rank in enumerate(ranks) for layer in rank.layers if layer.name == name}


def _is_state(rank: Rank, layer: Layer) -> bool:
    return rank.groups[layer.group].kind == "state"


def _members(layer: Layer) -> set[tuple[str, int]]:
    """Each sharded axis with each index held, and `WHOLE` where a component has no sharded axis."""
    found: set[tuple[str, int]] = set()
    for segment in layer.segments:
        named = set(segment.page.extents)
        for component in segment.page.types:
            axes = _axes_of(segment.page.notation, component)
            plane = [axis for axis in segment.holds if axis not in named]
            sharded = [axis for axis in sorted(layer.totals) if axis in axes or axis in plane]
            if sharded:
                found |= {(sharded[0], member) for member in range(*segment.holds[sharded[0]])}
            else:
                found.add(WHOLE)
    return found


def _axes_of(notation: str, component: str) -> set[str]:
    """The axes on the way to a component."""
    found: set[str] = set()

    def search(part: Body | Item, outer: set[str]) -> None:
        path = outer | {loop.axis for loop in part.loops}
        if isinstance(part, Body):
            for item in part.items:
                search(item, path)
        elif part.name == component:
            found.update(path)

    search(parse(notation), set())
    return found


def _share_tokens(one: Rank, other: Rank) -> bool:
    """Whether some token belongs to both context-parallel ranks."""
    if 1 in (one.cp[1], other.cp[1]):
        return True
    period = math.lcm(one.cp[1] * one.interleave, other.cp[1] * other.interleave)
    owns = [{t for t in range(period) if t // r.interleave % r.cp[1] == r.cp[0]} for r in (one, other)]
    return bool(owns[0] & owns[1])


def readers(exchange: Exchange) -> tuple[list[int], list[int], set[int]]:
    """Ranks that report to each source rank, sources of each target rank, and source ranks that nobody reads from."""
    dealt = deal(exchange.target, exchange.source)
    read = [sum(by == source for _, by in dealt) for source in range(len(exchange.source))]
    filled = [sum(to == target for to, _ in dealt) for target in range(len(exchange.target))]
    idle = {source for source, count in enumerate(read) if count == 0}
    return [max(1, count) for count in read], filled, idle


def contents(rank: Rank, blocks: Sequence[Blocks], tokens: tuple[int, int]) -> tuple[Ints, Bytes]:
    """Address and value of every byte that the rank's pages hold of the tokens.

    The value follows from what the byte is (layer, component, head, token, channel), not from where it lies: ranks that
    hold the same thing hold the same value, whatever their pages look like.
    """
    addresses: list[Ints] = []
    values: list[Bytes] = []
    for (layer, component), found in held(rank, blocks, tokens).items():
        mixed = np.full(len(found.address), zlib.crc32(f"{layer} {component}".encode()), dtype=np.uint64)
        for axis in sorted(found.key):
            mixed = _mix(mixed ^ found.key[axis].astype(np.uint64))
        for byte in range(found.size):
            addresses.append(found.address + byte)
            # Never 0, which is what clearing leaves.
            values.append((_mix(mixed + np.uint64(byte)) % np.uint64(255) + np.uint64(1)).astype(np.uint8))
    if not addresses:
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    return np.concatenate(addresses), np.concatenate(values)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    return (x ^ (x >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)


def span(rank: Rank) -> tuple[int, int]:
    """The first address of a rank's memory, and one past its last."""
    return min(r.base for r in rank.regions), max(r.base + r.bytes for r in rank.regions)


def filled(rank: Rank, blocks: Sequence[Blocks], tokens: tuple[int, int], seed: int) -> Bytes:
    """A rank's memory from its first address on: contents for the tokens, and noise that is never 0 elsewhere."""
    start, end = span(rank)
    memory = np.random.default_rng(seed).integers(1, 256, end - start, dtype=np.uint8)
    addresses, values = contents(rank, blocks, tokens)
    memory[addresses - start] = values
    return memory


def arriving(exchange: Exchange, target: int) -> Ints:
    """Addresses of all bytes of a target rank that some source rank has in its lists."""
    found = [np.zeros(0, np.int64)]
    for (to, by), carried in deal(exchange.target, exchange.source).items():
        if to == target:
            found.append(exchange.pairs(target, by, carried).by_byte()[0])
    return np.concatenate(found)


def bare(exchange: Exchange, target: int) -> Ints:
    """Addresses to clear: what the listed pages hold from the first token wanted on and no source sends."""
    until_ever = (exchange.tokens[0], EVER)
    listed, _ = contents(exchange.target[target], exchange.target_blocks[target], until_ever)
    return np.setdiff1d(listed, arriving(exchange, target))


def expected(exchange: Exchange, target: int, before: Bytes) -> Bytes:
    """A target rank's memory afterwards, from what it was before."""
    rank, start = exchange.target[target], span(exchange.target[target])[0]
    after = before.copy()
    if exchange.tokens[0] < exchange.tokens[1]:
        after[bare(exchange, target) - start] = 0
    addresses, values = contents(rank, exchange.target_blocks[target], exchange.tokens)
    arrived = np.isin(addresses, arriving(exchange, target))
    after[addresses[arrived] - start] = values[arrived]
    return after
