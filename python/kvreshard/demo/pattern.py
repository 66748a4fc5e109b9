"""Pages filled with bytes that tell where they belong, and a check that says which ones do not.

Every element gets bytes that depend on its component, layer, global token, global head, channel and a seed, so a byte
that arrives anywhere but at its own place is noticed (one time in 256 per byte it is equal by chance). The tables say
where the elements of a page are; they come from `formulas`, and nothing here knows a notation or a plan.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _spread(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every input bit reaches every output bit."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    spread: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return spread


def _mix(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Stir uint32 in place. One multiplication is not enough: a low byte would depend on the low bits alone."""
    shifted = x >> np.uint32(16)
    x ^= shifted
    x *= np.uint32(0x7FEB352D)
    np.right_shift(x, np.uint32(15), out=shifted)
    x ^= shifted
    x *= np.uint32(0x846CA68B)
    np.right_shift(x, np.uint32(16), out=shifted)
    x ^= shifted
    return x


@dataclass(frozen=True, eq=False)
class Component:
    """Where the elements of one component lie in a page.

    `offsets` is int64 of shape [H, N, content...], in bytes from the start of the page: H the heads (or channels)
    that this rank holds and N the states of a page, both 1 where the component has no such axis. An element is
    `element_bytes` long (1, 2, 4 or 8).
    """

    name: str
    offsets: Ints
    element_bytes: int

    def __post_init__(self) -> None:
        if self.offsets.ndim < 2 or self.offsets.dtype != np.int64:
            raise ValueError(f"{self.name}: offsets must be int64 [H, N, content...]")
        if self.element_bytes not in (1, 2, 4, 8):
            raise ValueError(f"{self.name}: elements of {self.element_bytes} bytes")
        self.offsets.flags.writeable = False

    @property
    def heads(self) -> int:
        """H, the extent of the sharded axis in this page."""
        return len(self.offsets)

    @property
    def states(self) -> int:
        """N, the states (tokens) of one page."""
        return len(self.offsets[0])

    @property
    def channels(self) -> int:
        """Elements of one (head, state), the content axes taken together."""
        return math.prod(self.offsets.shape[2:])

    @functools.cached_property
    def _flat(self) -> Ints:
        """Offsets as [H, N, channels]."""
        return self.offsets.reshape(self.heads, self.states, self.channels)

    @functools.cached_property
    def _lane(self) -> int:
        """Bytes of the widest unit that every offset and the element are multiples of."""
        return math.gcd(int(np.gcd.reduce(self.offsets, axis=None)), self.element_bytes)

    @functools.cached_property
    def _lanes(self) -> NDArray[np.intp]:
        """Index of each unit of `_lane` bytes, [H, N, channels * units of an element]."""
        lane = self._lane
        units = np.arange(self.element_bytes // lane, dtype=np.int64)
        index = self._flat[..., None] // lane + units
        return index.reshape(self.heads, self.states, -1).astype(np.intp)

    @functools.cached_property
    def _channel_words(self) -> NDArray[np.uint32]:
        """A random word for each 4 bytes (or less) of each channel, [channels * words]."""
        words = self.channels * max(1, self.element_bytes // 4)
        salt = np.uint64(zlib.crc32(self.name.encode()) << 32)
        return _spread(np.arange(words, dtype=np.uint64) + salt).astype(np.uint32)

    def _row_words(self, layer: int, states: Ints, first_head: int, seed: int) -> NDArray[np.uint32]:
        """A random word for each head and state: [pages, H, N] for global states [pages, N]."""
        salt = np.array([zlib.crc32(self.name.encode())], dtype=np.uint64)
        for value in (seed, layer):
            salt = _spread(salt ^ np.uint64(value & 0xFFFFFFFFFFFFFFFF))
        heads = _spread(np.arange(first_head, first_head + self.heads).astype(np.uint64) + salt)
        return _spread(heads[None, :, None] ^ _spread(states.astype(np.uint64))[:, None, :]).astype(np.uint32)

    def _values(self, rows: NDArray[np.uint32]) -> NDArray[np.unsignedinteger]:
        """The bytes of all elements of the rows [H, n], as units [H, n, channels * units of an element]."""
        words = _mix(rows[..., None] ^ self._channel_words)
        stored = words.astype(f"<u{min(self.element_bytes, 4)}")
        units: NDArray[np.unsignedinteger] = stored.view(f"<u{self._lane}")
        return units


@dataclass(frozen=True)
class Wrong:
    """One element whose bytes are not the ones that belong there; all positions are global."""

    component: str
    layer: int
    token: int
    head: int
    channel: int
    expected: bytes
    found: bytes

    def __str__(self) -> str:
        return (
            f"layer {self.layer}, {self.component}, token {self.token}, head {self.head}, channel {self.channel}: "
            f"expected {self.expected.hex()}, found {self.found.hex()}"
        )


@dataclass(frozen=True)
class Verdict:
    """What a check found: elements looked at, wrong ones, and the first wrong one by page, component, token, head."""

    elements: int
    wrong: int
    first: Wrong | None

    @property
    def ok(self) -> bool:
        """True if elements were looked at and all of them are right."""
        return self.elements > 0 and self.wrong == 0


@dataclass(frozen=True, eq=False)
class Page:
    """A page as its writer's formulas place it: the components, and the bytes of the page, holes included."""

    name: str
    components: tuple[Component, ...]
    page_bytes: int

    def component(self, name: str) -> Component:
        """The component of that name; KeyError if there is none."""
        for component in self.components:
            if component.name == name:
                return component
        raise KeyError(name)

    @property
    def states(self) -> int:
        """N, the states (tokens) of one page."""
        return self.components[0].states

    def addresses(self, component: str, bases: ArrayLike, *, states: ArrayLike, heads: ArrayLike) -> Ints:
        """Byte address of elements: int64 [len(heads), len(states), channels].

        `bases` holds the address of each page in token order; `states` count from the first of these pages and `heads`
        from the first head that this rank holds.
        """
        table = self.component(component)._flat
        at, states = np.asarray(bases, dtype=np.int64), np.asarray(states, dtype=np.int64)
        inside = table[np.asarray(heads, dtype=np.int64)[:, None], (states % self.states)[None, :]]
        result: Ints = inside + at[states // self.states][None, :, None]
        return result

    def fill(
        self,
        pages: Bytes,
        ids: Sequence[int] | Ints,
        *,
        layer: int,
        seed: int,
        first_token: int = 0,
        held: tuple[int, int] | Mapping[str, tuple[int, int]] | None = None,
        tokens: tuple[int, int] | None = None,
        cp: tuple[int, int] = (0, 1),
        interleave: int = 1,
    ) -> int:
        """Write the elements of the pages `ids` into `pages`; returns the bytes written.

        `pages` is uint8 [pages, at least page_bytes], contiguous in its last axis (a strided view of a row layout
        will do). `ids` are the pages in token order; the first of them starts at global token `first_token`. `held`
        is the interval of global heads in this page, one for all components or one for each name (0..H if not given).
        `tokens` limits what is written to a half-open interval of global tokens. With context parallelism `cp` =
        (rank, size), `first_token` is the first token of the virtual block, and token t belongs to rank `(t //
        interleave) % size`. A token is one state here. Bytes that hold no element are left alone.
        """
        written = 0
        numbers, rows = self._token_rows(pages, ids, layer, seed, first_token, held, tokens, cp, interleave)
        for at, page in enumerate(ids):
            inside = np.flatnonzero(numbers[at] >= 0)
            for component, words in zip(self.components, rows, strict=True):
                units = self._units(pages, int(page), component)
                if len(inside) == self.states:
                    units[component._lanes] = component._values(words[at])
                else:
                    units[component._lanes[:, inside]] = component._values(words[at][:, inside])
                written += component.heads * len(inside) * component.channels * component.element_bytes
        return written

    def check(
        self,
        pages: Bytes,
        ids: Sequence[int] | Ints,
        *,
        layer: int,
        seed: int,
        first_token: int = 0,
        held: tuple[int, int] | Mapping[str, tuple[int, int]] | None = None,
        tokens: tuple[int, int] | None = None,
        cp: tuple[int, int] = (0, 1),
        interleave: int = 1,
    ) -> Verdict:
        """Compare the elements of the pages `ids` with what `fill` writes; same arguments as `fill`."""
        elements = wrong = 0
        first: Wrong | None = None
        numbers, rows = self._token_rows(pages, ids, layer, seed, first_token, held, tokens, cp, interleave)
        for at, page in enumerate(ids):
            inside = np.flatnonzero(numbers[at] >= 0)
            for component, words in zip(self.components, rows, strict=True):
                units = self._units(pages, int(page), component)
                if len(inside) == self.states:
                    found, expected = units.take(component._lanes), component._values(words[at])
                else:
                    found = units.take(component._lanes[:, inside])
                    expected = component._values(words[at][:, inside])
                elements += component.heads * len(inside) * component.channels
                if np.array_equal(found, expected):
                    continue
                shape = (component.heads, len(inside), component.channels, -1)
                found, expected = found.reshape(shape), expected.reshape(shape)
                # Token first, then head: the order in which a reader of the report would look for the cause.
                bad = np.argwhere((found != expected).any(axis=-1).swapaxes(0, 1))
                wrong += len(bad)
                if first is None:
                    n, h, channel = (int(i) for i in bad[0])
                    first = Wrong(
                        component=component.name,
                        layer=layer,
                        token=int(numbers[at, inside[n]]),
                        head=_held(component, held)[0] + h,
                        channel=channel,
                        expected=expected[h, n, channel].tobytes(),
                        found=found[h, n, channel].tobytes(),
                    )
        return Verdict(elements, wrong, first)

    def _units(self, pages: Bytes, page: int, component: Component) -> NDArray[np.unsignedinteger]:
        """One page as units of the component's lane."""
        lane = component._lane
        units: NDArray[np.unsignedinteger] = pages[page, : self.page_bytes - self.page_bytes % lane].view(f"<u{lane}")
        return units

    def _token_rows(
        self,
        pages: Bytes,
        ids: Sequence[int] | Ints,
        layer: int,
        seed: int,
        first_token: int,
        held: tuple[int, int] | Mapping[str, tuple[int, int]] | None,
        tokens: tuple[int, int] | None,
        cp: tuple[int, int],
        interleave: int,
    ) -> tuple[Ints, list[NDArray[np.uint32]]]:
        """Global token of each state, int64 [pages, N] with -1 outside `tokens`, and each component's row words."""
        if pages.dtype != np.uint8 or pages.ndim != 2 or pages.shape[1] < self.page_bytes:
            raise ValueError(f"pages must be uint8 [pages, >= {self.page_bytes}], not {pages.dtype} {pages.shape}")
        if pages.shape[1] > 1 and pages.strides[1] != 1:
            raise ValueError("the bytes of a page must be contiguous")
        if len(ids) and not 0 <= min(ids) <= max(ids) < len(pages):
            raise IndexError(f"page ids {min(ids)}..{max(ids)} of {len(pages)} pages")
        numbers = global_tokens(len(ids) * self.states, first_token, cp, interleave).reshape(len(ids), self.states)
        rows = [c._row_words(layer, numbers, _held(c, held)[0], seed) for c in self.components]
        if tokens is not None:
            numbers = np.where((numbers >= tokens[0]) & (numbers < tokens[1]), numbers, -1)
        return numbers, rows


def global_tokens(count: int, first_token: int = 0, cp: tuple[int, int] = (0, 1), interleave: int = 1) -> Ints:
    """The global token, int64, of each of the `count` positions that one rank holds from `first_token` on."""
    rank, size = cp
    if size > 1 and first_token % (size * interleave):
        raise ValueError(f"token {first_token} does not start a stretch of {interleave} on {size} ranks")
    at = np.arange(count, dtype=np.int64)
    return first_token + (at // interleave * size + rank) * interleave + at % interleave


def _held(component: Component, held: tuple[int, int] | Mapping[str, tuple[int, int]] | None) -> tuple[int, int]:
    """The global interval of the component's sharded axis, checked against its extent."""
    if held is None:
        return (0, component.heads)
    low, high = held[component.name] if isinstance(held, Mapping) else held
    if high - low != component.heads or low < 0:
        raise ValueError(f"{component.name}: heads {low}..{high} do not fit a page of {component.heads}")
    return (low, high)
