"""The native module of kvreshard. Import ``kvreshard``, which re-exports it."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeAlias, final, overload

import numpy as np
import numpy.typing as npt

__all__ = [
    "ArithmeticOverflow",
    "Blocks",
    "Chunk",
    "Cost",
    "Edge",
    "Engine",
    "Error",
    "Facts",
    "Finding",
    "FormatError",
    "Group",
    "IncompatibleLayout",
    "Landed",
    "LandedChunk",
    "Layer",
    "LayoutError",
    "LimitExceeded",
    "MissingLayer",
    "PageFormat",
    "Pairing",
    "Picture",
    "Piece",
    "Plan",
    "PresetInfo",
    "RankLayout",
    "Region",
    "RegionTags",
    "Report",
    "Request",
    "RequestError",
    "RingAction",
    "RingReceiver",
    "RingSender",
    "Route",
    "Segment",
    "StockHandshake",
    "Tile",
    "Tiles",
    "Transport",
    "VerificationError",
    "WireError",
    "__version__",
    "audit",
    "check",
    "plan",
    "preset",
    "preset_info",
    "presets",
    "ring_frame_to",
    "route",
    "verify",
    "verify_descriptors",
]

__version__: str
"""The version of the package."""

_Memory: TypeAlias = Literal["DRAM", "VRAM"]
_Direction: TypeAlias = Literal["read", "write"]
_Strategy: TypeAlias = Literal["direct", "landed", "packed"]
_BlockIds: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64] | Sequence[int]

class Error(Exception):
    """Base of every error that kvreshard raises.

    The text is a sentence; the attributes are its parts. An attribute that does not apply is ``None``.
    """

    layer: str | None
    """The layer that is concerned."""
    field: str | None
    """What is wrong: an axis, an extent, a component, a count, a term of a sum."""
    local: str | None
    """The value on the side that plans and issues the transfer."""
    remote: str | None
    """The peer's value."""
    found: str | int | None
    """The value that was given, or what is wrong with ``field``."""
    expected: str | None
    """The value, or the rule, that would be right."""
    remedy: str | None
    """What to set or choose, where something helps."""
    at: int | None
    """Byte offset in the notation (:class:`FormatError`), address (:class:`VerificationError`)."""
    side: Literal["local", "remote"] | None
    """The side at fault."""
    limit: int | None
    """The bound that was passed, or the newest version that is understood."""
    group: int | None
    """Index of the group that is concerned."""

class FormatError(Error):
    """A page format does not parse, or an axis, an extent, a component or a type does not fit it.

    Attributes: ``field``, ``found``, ``expected``, and ``at``, where the notation is at fault.
    """

class LayoutError(Error):
    """A rank's own description contradicts itself. Attributes: ``layer``, ``field``, ``found``, ``expected``."""

class IncompatibleLayout(Error):
    """Two sides do not fit: copied bytes would not mean the same; or one side does not say what its pages are.

    Attributes: ``layer``, ``field``, ``local``, ``remote``, ``remedy``. Where the peer sends no formats, ``remote`` is
    ``unknown``, and ``found`` says why that matters.
    """

class MissingLayer(Error):
    """A layer is wanted that no rank of the other side holds. Attributes: ``layer``, ``side``, ``field`` (the part
    missing).
    """

class RequestError(Error):
    """A request names blocks, tokens or groups that do not exist or do not suffice.

    Attributes: ``side``, ``group``, ``field``, ``found``, ``expected``.
    """

class WireError(Error):
    """A peer's message does not decode, or is of a newer version.

    Attributes: ``field`` (where decoding stopped), ``found``, and ``limit``, where the version is at fault.
    """

class LimitExceeded(Error):
    """A bound on size or count was passed. Attributes: ``field``, ``found``, ``limit``."""

class ArithmeticOverflow(Error):
    """An address, a product or a sum does not fit 64 bits. Attribute: ``field`` (the term)."""

class VerificationError(Error):
    """A plan does not do exactly what is needed. Attributes: ``layer``, ``found``, ``side``, ``at`` (an address)."""

@final
class PageFormat:
    """Which byte of a page is which element: a nest of loops, its extents and element types.

    Immutable, valid when made. Formats are equal (and hash alike) if every byte of a page means the same in both,
    however they are written::

        PageFormat("k[h d/8 n d%8] v[h n/8 d n%8]", h=8, n=16, d=128, dtype="bf16")

    Args:
        notation: Loops outermost first; a component lists its own inner loops in brackets. ``a/8`` and ``a%8`` are the
            upper and lower digit of axis ``a``, a bare number is a loop without a name, parentheses group, ``pad[..]``
            is bytes that nobody reads.
        extents: The extent of every axis that the notation names, as a mapping; or as keywords.
        types: The element type of components by name: ``bf16``, ``f16``, ``f32``, ``f8e4m3fn``, ``fp4x2``, ``u8``, ...;
            names and dtypes of torch and numpy are understood.
        dtype: The element type of the components that ``types`` does not name.
        axes: Extents as keywords.

    Raises:
        FormatError: The notation, an extent or a type is wrong.
        LimitExceeded: The notation is too long or too deep.
        ArithmeticOverflow: The page does not fit 64 bits.
    """

    def __new__(
        cls,
        notation: str,
        /,
        *,
        extents: Mapping[str, int] | None = None,
        types: Mapping[str, Any] | None = None,
        dtype: Any = None,
        **axes: int,
    ) -> PageFormat: ...
    @property
    def notation(self) -> str:
        """The notation as written, its white space normalised."""
    @property
    def canonical(self) -> str:
        """The notation without what makes no difference at these extents; equal formats have the same."""
    @property
    def extents(self) -> dict[str, int]:
        """The extent of every axis that the notation names. Indexes, not bytes."""
    @property
    def types(self) -> dict[str, str]:
        """The element type of each component."""
    @property
    def components(self) -> list[str]:
        """The components in order of first appearance, pads not among them."""
    @property
    def page_bytes(self) -> int:
        """Bytes of one page, pads included."""
    @property
    def fingerprint(self) -> str:
        """SHA-256 of the normal form, 64 hex digits: the same on every machine."""
    def offset(self, component: str, /, **index: int) -> int:
        """Byte offset in the page of one element.

        Args:
            component: The component's name.
            index: The index along every axis of the component.

        Raises:
            FormatError: No such component; an axis is missing, unknown or out of range.
        """
    def axes(self, component: str, /) -> list[tuple[str, int]]:
        """The axes of a component with their extents, in the order of :meth:`offsets`; bare numbers are axis ``""``.

        Raises:
            FormatError: No such component.
        """
    def offsets(self, component: str, /) -> npt.NDArray[np.int64]:
        """Byte offset in the page of every element: int64, one dimension for each of :meth:`axes`.

        Raises:
            FormatError: No such component.
            LimitExceeded: It has too many elements.
        """
    def difference(self, other: PageFormat, /) -> list[str]:
        """In words, everything that differs between the bytes of both; empty when they are equal.

        Digits, order of axes, slots and padding are told apart: ``digits of k: `h n k[d]` against `k[h d/8 n d%8]```.
        """
    def same_bytes_as(self, other: PageFormat, /) -> bool:
        """Whether every byte of a page means the same in both: what ``==`` asks."""
    def with_extents(self, **axes: int) -> PageFormat:
        """The same nest and types with other extents, such as another rank's number of heads.

        Raises:
            FormatError: As the constructor.
        """
    def pieces(self) -> list[Piece]:
        """One page cut into pieces, in the order of its bytes.

        Raises:
            LimitExceeded: There are more than 16,384.
        """
    def to_svg(self) -> str:
        """A drawing of the page, as the text of an SVG image.

        Raises:
            LimitExceeded: As :meth:`pieces`.
        """
    def _repr_html_(self) -> str:
        """Shows itself in a notebook, as self-contained HTML."""

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

def preset(name: str, /, **parameters: int | str) -> PageFormat:
    """A format that an engine is known to use, by name.

    Raises:
        FormatError: No such preset; a parameter is missing, unknown or does not fit.
    """

def presets() -> list[str]:
    """The names that :func:`preset` knows, families together."""

@final
class PresetInfo:
    """What is known of a preset. Made by :func:`preset_info`."""

    @property
    def name(self) -> str:
        """Its name."""
    @property
    def summary(self) -> str:
        """What the page looks like."""
    @property
    def found_in(self) -> str:
        """Which engines and backends build such pages."""
    @property
    def parameters(self) -> list[tuple[str, str, str | None]]:
        """Name, meaning and default of each parameter; ``None`` where one must be given."""

def preset_info(name: str, /) -> PresetInfo:
    """What is known of the preset ``name``.

    Raises:
        FormatError: No such preset.
    """

@final
class Piece:
    """Contiguous bytes of one page, of one component: a part of a picture."""

    @property
    def segment(self) -> int:
        """Index of the segment in its layer."""
    @property
    def page(self) -> int:
        """Number of the page in the period."""
    @property
    def offset(self) -> int:
        """First byte, counted from the start of the page."""
    @property
    def bytes(self) -> int:
        """Bytes."""
    @property
    def component(self) -> str | None:
        """The component; ``None`` for bytes that nobody reads."""
    @property
    def axes(self) -> dict[str, tuple[int, int, int]]:
        """Lowest index, highest index and number of indexes along each axis; heads are counted over all ranks."""
    @property
    def run(self) -> int | None:
        """Index of the run that moves it; ``None`` where none does."""
    def __eq__(self, other: object, /) -> bool: ...

@final
class Picture:
    """One layer of a plan over one period of pages, cut into pieces. Made by :meth:`Plan.picture`."""

    @property
    def layer(self) -> str:
        """The layer's name."""
    @property
    def local(self) -> list[Piece]:
        """The local pages, in order of page, segment and offset."""
    @property
    def remote(self) -> list[Piece]:
        """The remote pages."""
    @property
    def runs(self) -> list[tuple[tuple[int, int, int], tuple[int, int, int], int]]:
        """Each run: page, segment and byte offset on the local side, the same on the remote side, and its bytes."""
    def __eq__(self, other: object, /) -> bool: ...

@final
class Region:
    """One NIXL registration.

    Args:
        base: The first address.
        bytes: The length.
        device: NIXL's device id: 0 for host memory, the CUDA ordinal for device memory.
        memory: The kind of memory, by NIXL's names.

    Raises:
        LayoutError: The region is empty, or the kind of memory unknown.
        ArithmeticOverflow: Its end does not fit 64 bits.
    """

    def __new__(cls, base: int, bytes: int, device: int = 0, memory: _Memory = "DRAM") -> Region: ...
    @property
    def base(self) -> int:
        """The first address."""
    @property
    def bytes(self) -> int:
        """The length in bytes."""
    @property
    def device(self) -> int:
        """NIXL's device id."""
    @property
    def memory(self) -> _Memory:
        """Host (``DRAM``) or device memory (``VRAM``)."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Segment:
    """A strided run of pages in a region: page ``i`` starts ``offset + i * page_stride`` bytes into it.

    Args:
        region: The registration that it lies in.
        format: How each page is built.
        pages: How many pages.
        page_stride: Bytes from one page to the next; the page bytes where not given.
        offset: Bytes from the start of the region to page 0.
        holds: The half-open interval of each sharded axis that it holds, such as ``{"h": (0, 4)}``. Axes not given get
            the rank's tensor-parallel share. A format without the axis is a plane at the one index given here.

    Raises:
        LayoutError: No pages, pages that overlap, or a reversed interval.
        ArithmeticOverflow: The span does not fit 64 bits.
    """

    def __new__(
        cls,
        region: Region,
        format: PageFormat,
        *,
        pages: int,
        page_stride: int | None = None,
        offset: int = 0,
        holds: Mapping[str, tuple[int, int]] | None = None,
    ) -> Segment: ...
    @property
    def region(self) -> Region:
        """The registration that it lies in."""
    @property
    def format(self) -> PageFormat:
        """How each page is built."""
    @property
    def pages(self) -> int:
        """How many pages."""
    @property
    def page_stride(self) -> int:
        """Bytes from one page to the next."""
    @property
    def offset(self) -> int:
        """Bytes from the start of the region to page 0."""
    @property
    def holds(self) -> dict[str, tuple[int, int]]:
        """The half-open interval of each sharded axis; complete once the segment is read back from a
        :class:`RankLayout`.
        """
    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Layer:
    """One model layer's cache on one rank. Peers match layers by name, never by index.

    Args:
        name: The name that peers match by.
        segments: At least one; several where K and V stand apart, or each head has a plane of its own.
        totals: For every sharded axis, its extent over all ranks: ``{"h": 8}``. Without one the layer is replicated
            (MLA).
        group: Index of its group in the rank's list of groups.

    Raises:
        LayoutError: No segments, or a total that is zero or of the token axis.
    """

    def __new__(
        cls,
        name: str,
        segments: Sequence[Segment],
        *,
        totals: Mapping[str, int] | None = None,
        group: int = 0,
    ) -> Layer: ...
    @property
    def name(self) -> str:
        """The name that peers match by."""
    @property
    def segments(self) -> list[Segment]:
        """The segments, in the order given."""
    @property
    def totals(self) -> dict[str, int]:
        """For every sharded axis, its extent over all ranks."""
    @property
    def group(self) -> int:
        """Index of its group."""
    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Group:
    """Layers that share block ids. Block ``b`` is the pages ``b * pages_per_block`` to ``(b + 1) * pages_per_block -
    1``.

    Args:
        kind: Whether a block holds consecutive ``tokens`` or one whole ``state`` (Mamba and its like).
        pages_per_block: Kernel pages in a block of the scheduler.
        tokens_per_state: Tokens for one index of axis ``n``: 4 where a compressor keeps one state for four tokens,
            ``Fraction(1, 4)`` where four states belong to a token.
        window: How many last tokens are kept (sliding window); ``None`` keeps all.

    Raises:
        LayoutError: An unknown kind, or a count that is zero.
    """

    def __new__(
        cls,
        kind: Literal["tokens", "state"] = "tokens",
        *,
        pages_per_block: int = 1,
        tokens_per_state: int | Fraction = 1,
        window: int | None = None,
    ) -> Group: ...
    @property
    def kind(self) -> Literal["tokens", "state"]:
        """What a block holds."""
    @property
    def pages_per_block(self) -> int:
        """Kernel pages in a block of the scheduler."""
    @property
    def tokens_per_state(self) -> Fraction:
        """Tokens for one index of axis ``n``."""
    @property
    def window(self) -> int | None:
        """How many last tokens are kept; ``None`` keeps all."""
    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class RankLayout:
    """All that a peer must know of one rank; immutable, valid when made.

    Args:
        engine: The engine's id.
        layers: The layers that this rank holds.
        groups: The groups that the layers refer to; one group of tokens where not given.
        generation: Counts registrations. Memory that is registered anew gets a new one, and what peers prepared is
            void.
        tp: Tensor-parallel rank and size. A segment without ``holds`` holds ``[rank*total//size,
            (rank+1)*total//size)`` of each sharded axis, or the one index ``rank*total//size`` when there are more
            ranks than indexes.
        pp: Pipeline-parallel rank and size.
        cp: Context-parallel rank and size.
        cp_interleave: How many consecutive states a context-parallel rank gets at a time.

    Raises:
        LayoutError: A segment outside its region, heads in a page that contradict the share, two layers of one name,
            ...
        LimitExceeded: Too many of anything.
        ArithmeticOverflow: An address does not fit 64 bits.
    """

    def __new__(
        cls,
        *,
        engine: str,
        layers: Sequence[Layer],
        groups: Sequence[Group] | None = None,
        generation: int = 0,
        tp: tuple[int, int] = (0, 1),
        pp: tuple[int, int] = (0, 1),
        cp: tuple[int, int] = (0, 1),
        cp_interleave: int = 1,
    ) -> RankLayout: ...
    @property
    def engine(self) -> str:
        """The engine's id."""
    @property
    def generation(self) -> int:
        """The generation of its registration."""
    @property
    def tp(self) -> tuple[int, int]:
        """Tensor-parallel rank and size."""
    @property
    def pp(self) -> tuple[int, int]:
        """Pipeline-parallel rank and size."""
    @property
    def cp(self) -> tuple[int, int]:
        """Context-parallel rank and size."""
    @property
    def cp_interleave(self) -> int:
        """How many consecutive states a context-parallel rank gets at a time; 1 where there is one rank."""
    @property
    def regions(self) -> list[Region]:
        """The registrations, each once, in order of first use."""
    @property
    def groups(self) -> list[Group]:
        """The groups."""
    @property
    def tokens_per_block(self) -> list[int | None]:
        """Tokens in a block of each group, counted over all context-parallel ranks; ``None`` where it holds states.

        Raises:
            LayoutError: A block does not hold a whole number of tokens.
            ArithmeticOverflow: A number of tokens does not fit 64 bits.
        """
    @property
    def layers(self) -> list[Layer]:
        """The layers, in the order given, with every segment's ``holds`` filled in."""
    def to_bytes(self) -> bytes:
        """The layout as a message for a peer. Releases the GIL.

        Raises:
            LimitExceeded: It is longer than a peer would read.
        """
    @staticmethod
    def from_bytes(data: bytes, /) -> RankLayout:
        """Reads a peer's message. Every field is validated, sizes before anything is allocated. Releases the
        GIL, for messages over 64 KiB.

        Raises:
            WireError: The message does not decode, or is of a newer version.
            LayoutError, FormatError, LimitExceeded, ArithmeticOverflow: It decodes, but describes nothing that can be.
        """
    def __eq__(self, other: object, /) -> bool: ...

@final
class Engine:
    """The ranks of one engine. A rank is named by its index here.

    Args:
        ranks: The layout of every rank, in any order.

    Raises:
        LayoutError: There is none, two stand at one place, or they disagree about the sizes of their parallelism.
        LimitExceeded: There are too many.
    """

    def __new__(cls, ranks: Sequence[RankLayout]) -> Engine: ...
    @staticmethod
    def uniform(rank: RankLayout, /) -> Engine:
        """An engine whose tensor-parallel ranks are all built like this one, each with its share of the heads.

        Only shares are worked out, not addresses: enough to route, not to plan.

        Raises:
            LayoutError: The format does not allow another rank's share.
        """
    @property
    def ranks(self) -> list[RankLayout]:
        """The layout of every rank, by rank index."""
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Edge:
    """What one local and one remote rank exchange. Made by :func:`route`; narrows a :func:`plan`."""

    @property
    def local(self) -> int:
        """Index of the local rank in its engine."""
    @property
    def remote(self) -> int:
        """Index of the remote rank in its engine."""
    @property
    def direction(self) -> _Direction:
        """``read``: local is the destination; ``write``: local is the source."""
    @property
    def layers(self) -> list[str]:
        """The layers that cross."""
    @property
    def takes(self) -> list[tuple[str, list[tuple[str, int, int]], bool]]:
        """What it carries: layer, interval of each sharded axis, and whether what is not sharded comes along. For a
        peer that cannot route both engines: see :meth:`told`.
        """
    @staticmethod
    def told(direction: _Direction, takes: Sequence[tuple[str, Sequence[tuple[str, int, int]], bool]], /) -> Edge:
        """The edge of a peer that routed both engines and told its :attr:`takes`. Plans check it against both layouts.

        Raises:
            LayoutError: An interval is reversed, or a name is none.
        """
    def __eq__(self, other: object, /) -> bool: ...

@final
class Route:
    """Which rank gets what from which. Both sides compute the same. Made by :func:`route`."""

    @property
    def direction(self) -> _Direction:
        """``read``: local is the destination; ``write``: local is the source."""
    @property
    def edges(self) -> list[Edge]:
        """The pairs of ranks between which bytes move, ordered by destination rank and then by source rank."""
    @property
    def notify(self) -> list[tuple[int, int]]:
        """Pairs ``(local, remote)`` of ranks that exchange no bytes, only the news that a request is done: replicas
        nobody reads.
        """
    @property
    def readers(self) -> list[int]:
        """For each source rank, how many destination ranks report on each request: readers and those that only
        notify."""
    @property
    def writers(self) -> list[int]:
        """For each destination rank, how many source ranks fill its pages."""
    def edges_of(self, *, local: int | None = None, remote: int | None = None) -> list[Edge]:
        """The edges of one rank, or between two."""
    def __eq__(self, other: object, /) -> bool: ...

def route(*, local: Engine, remote: Engine, direction: _Direction = "read") -> Route:
    """Which rank of one engine gets what from which rank of the other; replicas share the load. Releases the GIL, but
    for at most 1,024 segments.

    Args:
        local: The engine that plans and issues the transfers.
        remote: Its peer.
        direction: ``read``: local is the destination; ``write``: local is the source.

    Raises:
        MissingLayer: No source holds a layer, or some members of it.
        IncompatibleLayout: Totals of a layer contradict one another.
    """

@final
class Blocks:
    """The blocks of one group on one side of a request.

    Args:
        ids: Block ids, 1-D: int32 or int64 array, or a sequence of ints. Copied once, as int32.
        first_token: The global token that the first block starts with.

    Raises:
        RequestError: An id is negative or does not fit int32; NIXL would cut it silently.
        TypeError: Not integers, or not one-dimensional.
    """

    def __new__(cls, ids: _BlockIds, first_token: int = 0) -> Blocks: ...
    @property
    def ids(self) -> npt.NDArray[np.int32]:
        """The block ids, ``(N,)``; a copy."""
    @property
    def first_token(self) -> int:
        """The global token that the first block starts with."""
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Request:
    """The tokens wanted and where they are.

    Args:
        tokens: Half-open interval of global tokens.
        local: The blocks of every local group.
        remote: The blocks of every remote group.
        more: Later tokens come by other requests, before or after this one (chunked prefill). Then nothing after the
            end is touched: the end is not rounded up to a row's end, :meth:`Plan.zero` reports nothing after it, a
            state of several tokens waits for the part that has its last one, and groups of states move with the part
            that has the last token of all.
    """

    def __new__(
        cls, tokens: tuple[int, int], local: Sequence[Blocks], remote: Sequence[Blocks], *, more: bool = False
    ) -> Request: ...
    @property
    def tokens(self) -> tuple[int, int]:
        """Half-open interval of global tokens."""
    @property
    def local(self) -> list[Blocks]:
        """The blocks of every local group."""
    @property
    def remote(self) -> list[Blocks]:
        """The blocks of every remote group."""
    @property
    def more(self) -> bool:
        """Whether later tokens come by other requests."""
    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Plan:
    """How one local rank moves its pages from or to one remote rank. Made by :func:`plan`; its size does not depend on
    the pages.

    Counts are over one period: the pages of either side in the least common multiple of both sides' page lengths; one
    page where they are equal. Arrays are C-contiguous, new, owned by the caller, and handed over without a copy. Long
    calls release the GIL.

    NIXL's lists are of one memory kind a side. A plan over several kinds has several ``parts``; ``part`` picks one by
    index, and may be left out where there is one.
    """

    @property
    def local(self) -> RankLayout:
        """The rank that issues the transfer."""
    @property
    def remote(self) -> RankLayout:
        """The peer."""
    @property
    def direction(self) -> _Direction:
        """``read``: local is the destination; ``write``: local is the source."""
    @property
    def runs(self) -> int:
        """Contiguous runs of all layers in one period: descriptors for one period of a request, before any are
        joined."""
    @property
    def runs_per_page(self) -> int:
        """Runs of all layers for each page of the local side, rounded up."""
    @property
    def pages(self) -> tuple[int, int]:
        """Pages of all layers in one period, local and remote."""
    @property
    def pages_alike(self) -> bool:
        """Whether pages hold as many tokens or states on both sides, in all groups that meet: then each ends where its
        like does."""
    @property
    def bytes(self) -> int:
        """Bytes of all layers in one period."""
    @property
    def bytes_per_run(self) -> int:
        """``bytes // runs``: the mean; 0 when nothing moves."""
    @property
    def shortest_run(self) -> int:
        """Bytes of the shortest run; 0 when nothing moves."""
    @property
    def longest_run(self) -> int:
        """Bytes of the longest run; 0 when nothing moves."""
    @property
    def digest(self) -> str:
        """SHA-256 of all that the rows depend on, 64 hex digits: prepared handles can be kept by it."""
    @property
    def parts(self) -> list[tuple[_Memory, _Memory]]:
        """The ``(local, remote)`` memory kind of each part; empty when nothing moves.

        Raises:
            LimitExceeded: The rows, or the descriptors that they stand for, are too many.
        """
    @property
    def row_count(self) -> int:
        """Rows of all parts.

        Raises:
            LimitExceeded: As :attr:`parts`.
        """
    def local_rows(self, *, part: int | None = None) -> npt.NDArray[np.uint64]:
        """Local memory for ``prep_xfer_dlist``: uint64 ``(N, 5)``, a row ``[address, bytes, device, stride, count]``.

        A row stands for ``count`` descriptors, one for each page; ids number them row after row.

        Raises:
            LimitExceeded: As :attr:`parts`; or no such part, or several and none picked.
        """
    def remote_rows(self, *, part: int | None = None) -> npt.NDArray[np.uint64]:
        """Remote memory, as :meth:`local_rows`: the same runs in the same order, each with the peer's pages."""
    def local_flat(self, *, part: int | None = None) -> npt.NDArray[np.uint64]:
        """Local memory for NIXL before 1.5: uint64 ``(N, 3)``, a row ``[address, bytes, device]`` for every descriptor,
        by id.

        Raises:
            LimitExceeded: As :meth:`local_rows`.
        """
    def remote_flat(self, *, part: int | None = None) -> npt.NDArray[np.uint64]:
        """Remote memory, as :meth:`local_flat`."""
    def ids(
        self,
        request: Request,
        /,
        out: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None = None,
        *,
        part: int | None = None,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Which prepared descriptors make up a request: ``(local, remote)``, int32 ``(N,)`` each, for
        ``make_prepped_xfer``.

        The end of the tokens wanted is rounded up to the end of a row, inside pages that the request owns alone; not
        where ``more`` of them come by other requests.

        Args:
            request: The request.
            out: Arrays to fill: C-contiguous, writable, int32, at least N long. Views of their first N elements are
                returned.
            part: Which part.

        Raises:
            RequestError: A block does not exist, or the lists do not suffice; the tokens begin inside a row, or end
                inside one with ``more`` to come (:meth:`lists` serves them); or ``out`` is too short.
            LimitExceeded: As :meth:`local_rows`.
            TypeError: ``out`` is of another type, read-only, not contiguous, or one array twice.
        """
    def lists(
        self, request: Request, /, *, part: int | None = None
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Exactly the bytes of a request, runs joined where they touch on both sides: ``(local, remote)`` for
        ``initialize_xfer``.

        uint64 ``(N, 3)`` each, a row ``[address, bytes, device]``; row ``i`` of both is one copy.

        Raises:
            RequestError: A block does not exist, or the lists do not suffice.
            LimitExceeded: As :meth:`local_rows`.
        """
    def zero(self, request: Request, /, *, memory: _Memory | None = None) -> npt.NDArray[np.uint64]:
        """Destination bytes that the request's pages own and no transfer fills: clear them before the pages count as
        ready.

        All that the listed blocks hold after the last token wanted, and tokens that a sliding window has dropped at the
        source; pads are left out. uint64 ``(N, 3)``, a row ``[address, bytes, device]``.

        Args:
            request: The request.
            memory: The kind of destination memory; may be left out where there is one.

        Raises:
            RequestError: As :meth:`lists`.
            LimitExceeded: The destination has both kinds of memory, and none is picked.
        """
    def posted(self, request: Request, /, *, part: int | None = None) -> int:
        """How many descriptors NIXL posts for the request when it goes by :meth:`ids`: of one part, or over all.

        Raises:
            RequestError, LimitExceeded: As :meth:`ids`.
        """
    def pair(self, request: Request, /) -> Pairing:
        """Pairs the pages of a request, once for all that is made of it: :meth:`ids`, :meth:`lists`, :meth:`zero`,
        :meth:`posted`, :meth:`chunks`, :meth:`landed_chunks`, :meth:`costs` and :meth:`choose` of a plan are
        shorthands that pair anew at every call. Releases the GIL, but for at most 1,024 blocks of pages that line up.

        Raises:
            RequestError: A block does not exist, or the lists do not suffice.
        """
    def packed_tiles(self, side: Literal["local", "remote"], /) -> Tiles:
        """What kernels move between the pages of ``side`` and a packed buffer, which holds the bytes once, each pair of
        pages one after the other.

        Both sides of a transfer make the plan of the destination (``read``), and each asks for its own side: the buffer
        is the same.
        """
    def landed(self, *, hole: int = 0) -> Landed:
        """How the destination reads whole spans of remote pages into a buffer and scatters them from there.

        Args:
            hole: Bytes between two spans that are worth reading along to save a descriptor, :attr:`Transport.hole`;
                at most eight times a span's are. 0 reads nothing along.

        Raises:
            LayoutError: The plan is not a ``read``.
        """
    def chunks(self, request: Request, tiles: Tiles, chunk: int, /) -> list[Chunk]:
        """:meth:`Pairing.chunks`."""
    def landed_chunks(self, request: Request, landed: Landed, chunk: int, /) -> list[LandedChunk]:
        """:meth:`Pairing.landed_chunks`."""
    def costs(
        self,
        request: Request,
        /,
        *,
        transport: Transport | str,
        lands: bool = True,
        packs: bool = True,
        chunk: int = ...,
    ) -> list[Cost]:
        """:meth:`Pairing.costs`."""
    def choose(
        self,
        request: Request,
        /,
        *,
        transport: Transport | str,
        lands: bool = True,
        packs: bool = True,
        chunk: int = ...,
    ) -> Cost:
        """:meth:`Pairing.choose`."""
    def verify(self) -> None:
        """Proves, element by element and without the planner, that the plan writes what it should, once, inside one
        region on each side, and takes it from the right place. Releases the GIL. For tests and tools: the time grows
        with the elements of a page, not with the pages.

        Raises:
            VerificationError: It does not; the error names layer, fault and address.
        """
    def explain(self) -> str:
        """The plan in words: both sides' formats, runs, and the first lanes. For a person; the text may change."""
    def picture(self, layer: str | None = None) -> Picture:
        """What to draw of one layer: the pieces of both sides' pages, and the runs between them.

        Args:
            layer: The layer's name; the first one where not given.

        Raises:
            LayoutError: A side has no such layer.
            LimitExceeded: There are more than 16,384 pieces or runs.
        """
    def to_svg(self, layer: str | None = None) -> str:
        """A drawing of one layer, as the text of an SVG image; arguments and errors as :meth:`picture`."""
    def _repr_html_(self) -> str:
        """Shows itself in a notebook, as self-contained HTML."""

@final
class Pairing:
    """One request of a plan: which page goes with which. Made by :meth:`Plan.pair`; keeps the plan alive."""

    @property
    def fits_rows(self) -> bool:
        """Whether prepared rows and tiles can serve the request; they cannot when the tokens wanted begin inside a
        row."""
    @property
    def cuts_rows(self) -> bool:
        """Whether a row is wanted in part, at either end of the tokens."""
    def ids(
        self, out: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None = None, *, part: int | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """:meth:`Plan.ids`."""
    def lists(self, *, part: int | None = None) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """:meth:`Plan.lists`."""
    def rounded(self) -> Pairing:
        """The same with its end rounded up to whole rows, as :meth:`ids` move them: its :meth:`lists` are fewer where a
        cut row is many runs. The same as it is where the tokens begin inside a row.
        """
    def zero(self, *, memory: _Memory | None = None) -> npt.NDArray[np.uint64]:
        """:meth:`Plan.zero`."""
    def posted(self, *, part: int | None = None) -> int:
        """:meth:`Plan.posted`."""
    def chunks(self, tiles: Tiles, chunk: int, /) -> list[Chunk]:
        """Cuts the request into packed chunks of at most ``chunk`` bytes, with the pages of ``tiles.side``. Both sides
        get the same cuts from the same request.

        Raises:
            LimitExceeded: One pair of pages is larger than a chunk.
            RequestError: The tokens begin inside a row, which tiles move whole.
        """
    def landed_chunks(self, landed: Landed, chunk: int, /) -> list[LandedChunk]:
        """Cuts the request into landed chunks of at most ``chunk`` bytes.

        Raises:
            LimitExceeded: The span of one page is larger than a chunk.
            RequestError: As :meth:`chunks`.
        """
    def costs(
        self,
        *,
        transport: Transport | str,
        direct: bool = True,
        lands: bool = True,
        packs: bool = True,
        chunk: int = ...,
    ) -> list[Cost]:
        """What the request costs by each strategy that the two sides are able to use.

        Args:
            transport: The transport, or the name of a measured one.
            direct: Whether direct descriptors are of interest.
            lands: Whether the destination has a buffer and kernels.
            packs: Whether both sides speak the packed protocol.
            chunk: Bytes of one chunk of the buffer.

        Raises:
            LayoutError: No transport has that name.
        """
    def choose(self, *, transport: Transport | str, lands: bool = True, packs: bool = True, chunk: int = ...) -> Cost:
        """The cheapest of :meth:`costs`; direct where two are equal."""

@final
class Tile:
    """A strided copy between a page and its place in a buffer: ``run`` bytes at each point of the loops."""

    @property
    def run(self) -> int:
        """Bytes contiguous in both."""
    @property
    def page(self) -> int:
        """Offset of the first run from the lane's place in the page, in bytes."""
    @property
    def buffer(self) -> int:
        """Offset of the first run from the place of the page in the buffer, in bytes."""
    @property
    def loops(self) -> list[tuple[int, int, int]]:
        """Each loop's ``(extent, bytes between turns in the page, bytes between turns in the buffer)``, the largest
        first."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Tiles:
    """What kernels move between one side's pages and a buffer. Made by :meth:`Plan.packed_tiles` and
    :meth:`Plan.landed`."""

    @property
    def side(self) -> Literal["local", "remote"]:
        """The side whose pages the tiles touch."""
    @property
    def shapes(self) -> list[list[Tile]]:
        """The different lists of tiles, each used by one lane or more."""
    @property
    def lanes(self) -> npt.NDArray[np.uint64]:
        """Stretches of equidistant pages: uint64 ``(N, 6)``, a row ``[shape, region, address, stride, pages, unit]``.

        ``shape`` and ``region`` are indexes; page ``i`` begins at ``address + i * stride``; a pair of pages takes
        ``unit`` bytes in the buffer.
        """
    def __eq__(self, other: object, /) -> bool: ...

@final
class Chunk:
    """What goes through a buffer at once, packed."""

    @property
    def bytes(self) -> int:
        """Bytes of buffer."""
    @property
    def parts(self) -> npt.NDArray[np.uint64]:
        """uint64 ``(N, 4)``, a row ``[lane, first, count, offset]``: of the lane, the pages ``first`` to ``first +
        count``, whose place 0 begins at byte ``offset`` of the chunk."""
    @property
    def pages(self) -> npt.NDArray[np.int32]:
        """int32 ``(M,)``: page ids of the side that the chunk was made for; parts with equal pages share them."""
    @property
    def places(self) -> npt.NDArray[np.int32]:
        """int32 ``(M,)``: the place of each page's bytes, in units of the lane."""
    @property
    def table_bytes(self) -> int:
        """Bytes of :meth:`table`."""
    def table(
        self, tiles: Tiles, out: npt.NDArray[np.uint8], /, *, most: int = ...
    ) -> tuple[list[tuple[int, int, int, int]], int, int, int]:
        """Writes what a kernel on a device needs to know to the beginning of ``out``: a row of six 64-bit numbers a
        part ``[address, page stride, unit, offset, first, count]``, parts of a shape together, then page ids and
        places, 32-bit each.

        Args:
            tiles: The tiles that the chunk was made of.
            out: uint8 ``(N,)``, at least :attr:`table_bytes` long.
            most: Parts that one launch covers at most.

        Returns:
            Launches, each ``(shape, first row, rows, pages of the row that has most)``; the bytes that page ids and
            places begin at; and the bits of all units and offsets of the buffer, joined.

        Raises:
            LimitExceeded: ``out`` is too short, or the tiles are others.
        """

@final
class Landed:
    """How a plan is landed. Made by :meth:`Plan.landed`."""

    @property
    def tiles(self) -> Tiles:
        """The tiles that scatter the buffer into local pages."""
    @property
    def spans(self) -> list[int]:
        """Bytes that are read of each page, for every stretch of remote pages."""

@final
class LandedChunk:
    """What goes through a buffer at once, landed."""

    @property
    def bytes(self) -> int:
        """Bytes of buffer."""
    @property
    def parts(self) -> npt.NDArray[np.uint64]:
        """As :attr:`Chunk.parts`."""
    @property
    def pages(self) -> npt.NDArray[np.int32]:
        """As :attr:`Chunk.pages`, of the local side."""
    @property
    def places(self) -> npt.NDArray[np.int32]:
        """As :attr:`Chunk.places`."""
    @property
    def table_bytes(self) -> int:
        """As :attr:`Chunk.table_bytes`."""
    def table(
        self, tiles: Tiles, out: npt.NDArray[np.uint8], /, *, most: int = ...
    ) -> tuple[list[tuple[int, int, int, int]], int, int, int]:
        """As :meth:`Chunk.table`, of the landed tiles."""
    def reads(self, buffer: int, device: int = 0) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """The descriptors that fill the chunk, ``(local, remote)``: uint64 ``(N, 3)`` each, a row ``[address, bytes,
        device]``.

        Args:
            buffer: Address of the chunk's buffer.
            device: NIXL's id of the buffer's device.

        Raises:
            ArithmeticOverflow: An address does not fit 64 bits.
        """

@final
class Transport:
    """The constants of a way to move bytes between two ranks; times in nanoseconds, rates in bytes a microsecond.

    Args:
        read_post_ns: For each descriptor posted, pulling.
        read_bytes_per_us: Once posted, pulling.
        write_post_ns: For each descriptor posted, pushing.
        write_bytes_per_us: Once posted, pushing.
        pass_bytes_per_us: That a gather or a scatter gets through where its pieces are long.
        round_trip_ns: For a message and its answer.
        pass_piece_ps: Picoseconds that each contiguous piece of a gather or a scatter adds.
        pass_ns: For gathers or scatters beside their bytes, until the first one runs and the host has seen the last
            one end.
    """

    def __new__(
        cls,
        *,
        read_post_ns: int,
        read_bytes_per_us: int,
        write_post_ns: int,
        write_bytes_per_us: int,
        pass_bytes_per_us: int,
        round_trip_ns: int,
        pass_piece_ps: int = 0,
        pass_ns: int = 0,
    ) -> Transport: ...
    @staticmethod
    def named(name: str, /) -> Transport:
        """A measured transport: ``cma``, ``tcp`` or ``cuda_ipc``; the constants belong to the machines measured.

        Raises:
            LayoutError: There is none of that name.
        """
    @staticmethod
    def names() -> list[str]:
        """The measured transports."""
    @property
    def name(self) -> str:
        """Its name; ``calibrated`` for constants given by the caller."""
    @property
    def read_post_ns(self) -> int:
        """Nanoseconds for each descriptor posted by a read."""

    @property
    def read_bytes_per_us(self) -> int:
        """Bytes a microsecond of a read once posted."""

    @property
    def write_post_ns(self) -> int:
        """Nanoseconds for each descriptor posted by a write."""

    @property
    def write_bytes_per_us(self) -> int:
        """Bytes a microsecond of a write once posted."""

    @property
    def pass_bytes_per_us(self) -> int:
        """Bytes a microsecond that a gather or a scatter gets through where its pieces are long."""

    @property
    def pass_piece_ps(self) -> int:
        """Picoseconds that each contiguous piece of a gather or a scatter adds."""

    @property
    def pass_ns(self) -> int:
        """Nanoseconds of gathers or scatters beside their bytes."""

    @property
    def round_trip_ns(self) -> int:
        """Nanoseconds for a message and its answer."""

    @property
    def hole(self) -> int:
        """Bytes that a read moves in the time that one more descriptor takes."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Cost:
    """What a request costs by one strategy, predicted."""

    @property
    def strategy(self) -> _Strategy:
        """How the bytes go."""
    @property
    def posted(self) -> int:
        """Descriptors posted."""
    @property
    def bytes(self) -> int:
        """Bytes over the transport."""
    @property
    def ns(self) -> int:
        """Nanoseconds."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

def verify(plans: Sequence[Plan], /) -> None:
    """Proves of all plans into one destination rank what :meth:`Plan.verify` proves of one, and that nothing is
    missing.

    Raises:
        VerificationError: They do not fill it exactly.
        LayoutError: They do not go into one rank, in one direction.
    """

def verify_descriptors(
    local: RankLayout,
    remote: RankLayout,
    local_list: npt.NDArray[np.uint64],
    remote_list: npt.NDArray[np.uint64],
    /,
    *,
    direction: _Direction = "read",
) -> None:
    """Proves of any list of descriptors that it stays inside one region on each side and writes no byte twice.

    Says nothing of what the bytes mean: a list that another library made can be safe and still be wrong.

    Args:
        local: The rank that issues the transfer.
        remote: The peer.
        local_list: uint64 ``(N, 3)``, a row ``[address, bytes, device]``.
        remote_list: The same; row ``i`` of both is one copy.
        direction: ``read``: local is the destination; ``write``: local is the source.

    Raises:
        VerificationError: It does not; the error names side and address.
        ValueError: The lists are not alike.
    """

def plan(
    local: RankLayout,
    remote: RankLayout,
    *,
    edge: Edge | None = None,
    direction: _Direction | None = None,
    layers: Sequence[str] | None = None,
    strategy: _Strategy | None = None,
    max_runs_per_page: int | None = None,
) -> Plan:
    """How bytes move between two ranks. Releases the GIL, but for ranks of at most 1,024 segments whose pages line up.

    Args:
        local: The rank that issues the transfer.
        remote: The peer.
        edge: An edge of a :class:`Route`, which narrows the plan to its layers and shares; without one, all that both
            ranks hold.
        direction: ``read``: local is the destination; ``write``: local is the source. Where not given, the edge's, or
            ``read``.
        layers: Plans only these layers, each once, of what it would plan else: prefill that sends a layer as soon as it
            is computed.
        strategy: ``direct`` insists on one descriptor a run, and refuses a pair of which a page takes more than
            ``max_runs_per_page`` of them; :func:`check` says what else could be done.
        max_runs_per_page: The bound for one layer; 1024 where not given.

    Raises:
        IncompatibleLayout: Copied bytes would not mean the same; the error names layer, field and both values.
        MissingLayer: The source does not hold a layer of the destination; or one of ``layers`` is not on both sides, or
            not on the edge.
        LimitExceeded: Page sizes or nests need more pieces than can be planned.
        ArithmeticOverflow: An address does not fit 64 bits.
        LayoutError: ``direction`` contradicts the edge.
    """

@final
class Finding:
    """One thing that a :func:`check` found. An attribute that does not apply is ``None``."""

    @property
    def severity(self) -> Literal["error", "warning", "note"]:
        """``error``: must not transfer; ``warning``: cannot be seen, or looks wrong; ``note``: planned through."""
    @property
    def row(self) -> str | None:
        """The row of the table of silent mismatches in docs/handshake.md, in an :func:`audit`."""
    @property
    def error(self) -> Error:
        """The same as an exception; for an ``error``, what planning the pair raises."""
    @property
    def layer(self) -> str | None:
        """The layer concerned."""
    @property
    def field(self) -> str | None:
        """What it is about."""
    @property
    def local(self) -> str | None:
        """This side's value."""
    @property
    def remote(self) -> str | None:
        """The peer's value."""
    @property
    def remedy(self) -> str | None:
        """What to set or choose."""

@final
class Report:
    """Everything that a :func:`check` found. Its text has one line a finding; layers that say the same share a line."""

    @property
    def findings(self) -> list[Finding]:
        """All of them, heaviest first."""
    @property
    def errors(self) -> list[Finding]:
        """Why the pair must not transfer."""
    @property
    def warnings(self) -> list[Finding]:
        """What cannot be seen, or looks like a mistake."""
    @property
    def notes(self) -> list[Finding]:
        """What differs and is planned through."""
    @property
    def omitted(self) -> int:
        """Findings left out because there were more than 1024."""
    @property
    def accepted(self) -> bool:
        """Whether there is no error."""
    @property
    def advice(self) -> Literal["direct", "landed", "packed", "refuse"]:
        """The strategy that the caller insists on, or the one that makes sense."""
    @property
    def strategies(self) -> list[Literal["direct", "landed", "packed", "refuse"]]:
        """What is possible; ``refuse`` alone where there is an error."""
    @property
    def runs_per_page(self) -> int | None:
        """Descriptors for each local page, all layers, if the pair is moved directly."""
    @property
    def bytes_per_run(self) -> int | None:
        """Bytes of such a descriptor, in the mean."""
    def raise_errors(self) -> None:
        """Raises the first error, if there is one.

        Raises:
            Error: As planning the pair would.
        """
    def _repr_html_(self) -> str:
        """Shows itself in a notebook, as self-contained HTML."""

    def __eq__(self, other: object, /) -> bool: ...

@overload
def check(
    local: RankLayout,
    remote: RankLayout | StockHandshake,
    /,
    *,
    direction: _Direction = "read",
    strategy: _Strategy | None = None,
    max_runs_per_page: int | None = None,
    landing: bool = True,
    packing: bool = True,
    untagged: Literal["refuse"] | None = None,
    assume_untagged: Literal["standard"] | None = None,
) -> Report:
    """Compares two sides in everything that decides whether copied bytes mean the same. Releases the GIL.

    Two ranks, a rank and the handshake of a peer that sends no formats, or two engines (which also compares who holds
    what). Nothing is raised for what is found; :meth:`Report.raise_errors` does.

    Args:
        local: The side that issues the transfer.
        remote: Its peer.
        direction: ``read``: local is the destination; ``write``: local is the source.
        strategy: A strategy to insist on. ``direct`` is refused where a page of a layer takes more than
            ``max_runs_per_page`` descriptors.
        max_runs_per_page: That bound; 1024 where not given.
        landing: Whether the receiver can scatter pages that it landed elsewhere.
        packing: Whether both sides run the packed protocol.
        untagged: ``refuse`` refuses every peer that sends no formats. Otherwise one is accepted, with a warning, if
            every page of this rank is standard: packed K and V (HND, NHD) or MLA rows, of 16-bit elements.
        assume_untagged: ``standard`` takes such a peer's pages as standard whatever this rank's are: the caller knows
            it.

    Raises:
        LayoutError: An option that does not exist.
    """

@overload
def check(
    local: Engine,
    remote: Engine,
    /,
    *,
    direction: _Direction = "read",
    strategy: _Strategy | None = None,
    max_runs_per_page: int | None = None,
    landing: bool = True,
    packing: bool = True,
    untagged: Literal["refuse"] | None = None,
    assume_untagged: Literal["standard"] | None = None,
) -> Report:
    """Compares two engines: every layer has a source for each member, and every pair of ranks that meets fits."""

@final
class StockHandshake:
    """What a stock NixlConnector of vLLM 0.33 tells its peers: where regions are, nothing of the inside of a page."""

    @staticmethod
    def from_bytes(
        data: bytes,
        /,
        *,
        tp: tuple[int, int] = (0, 1),
        pp: tuple[int, int] = (0, 1),
        cp: tuple[int, int] = (0, 1),
        cp_interleave: int = 1,
    ) -> StockHandshake:
        """Reads a captured ``NixlHandshakePayload``, or the ``NixlAgentMetadata`` in it.

        Args:
            data: The msgpack bytes.
            tp: Tensor-parallel rank and size of the peer, which the handshake does not say.
            pp: Pipeline-parallel rank and size.
            cp: Context-parallel rank and size.
            cp_interleave: How many consecutive states a context-parallel rank gets at a time.

        Raises:
            WireError: It does not decode.
            LimitExceeded: It is too long.
            LayoutError: A rank is not below its size.
        """
    @property
    def engine(self) -> str:
        """The peer's engine id."""
    @property
    def backend(self) -> str:
        """The name of its first attention backend."""
    @property
    def layout_name(self) -> str:
        """The name of its layout."""
    @property
    def block_size(self) -> int:
        """Tokens in a kernel page."""
    @property
    def regions(self) -> int:
        """How many regions it has."""
    @property
    def compatibility_hash(self) -> str | None:
        """The hash that stock peers compare, where the whole payload was captured."""
    def assume(
        self,
        local: RankLayout,
        /,
        *,
        untagged: Literal["refuse"] | None = None,
        assume_untagged: Literal["standard"] | None = None,
    ) -> RankLayout:
        """The layout that the peer has if its pages are standard; layers, head sizes, totals and types are ``local``'s.

        Raises:
            IncompatibleLayout: The assumption is not allowed (see :func:`check`), or the page bytes contradict it.
            LayoutError: The handshake contradicts it otherwise.
        """
    def __eq__(self, other: object, /) -> bool: ...

@final
class Facts:
    """What an operator knows of an engine and its handshake does not say. What is left out is not known.

    Args:
        backends: The attention backend of every layer, by the name that it reports.
        shuffle: Whether ``VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT`` is set and AITER in use.
        platform: ``sm90``, ``sm100``, ``gfx942``, ``gfx950``, ``cpu``, ...
        isa: What CPU_ATTN packs for: ``amx``, ``vec``, ...
        cache_dtype: As vLLM names it: ``auto``, ``fp8``, ``nvfp4``, ...
        heads: KV heads of the model.
        tp: Tensor-parallel rank and size.
        fused_cache_pass: Whether ROCM_ATTN runs with the fused norm, rope and cache pass.
        sparse_indexer: Whether the model has a sparse indexer.
        mamba_groups: Groups of a Mamba-2 model.
        conv_rows: Rows of a convolution's state.
        cp_interleave: ``--cp-kv-cache-interleave-size``.
        hash_enforced: Whether peers with another hash are refused.
        push: Whether the engine pushes.

    Raises:
        LayoutError: A rank that is not below its size.
    """

    def __new__(
        cls,
        *,
        backends: Sequence[str] = (),
        shuffle: bool | None = None,
        platform: str | None = None,
        isa: str | None = None,
        cache_dtype: str = "auto",
        heads: int | None = None,
        tp: tuple[int, int] = (0, 1),
        fused_cache_pass: bool | None = None,
        sparse_indexer: bool = False,
        mamba_groups: int | None = None,
        conv_rows: int | None = None,
        cp_interleave: int | None = None,
        hash_enforced: bool = True,
        push: bool = False,
    ) -> Facts: ...
    def __eq__(self, other: object, /) -> bool: ...

def audit(
    local: StockHandshake,
    remote: StockHandshake,
    /,
    *,
    local_facts: Facts | None = None,
    remote_facts: Facts | None = None,
) -> Report:
    """The silent mismatches that a pair of stock peers falls into; :attr:`Finding.row` names each.

    What follows from the facts is an error, what they cannot rule out a warning that says what to find out.
    """

@final
class RegionTags:
    """The formats of a host's regions, for a host whose own metadata has the addresses: one optional field in it."""

    @staticmethod
    def of(layout: RankLayout, /) -> RegionTags:
        """One tag a segment of ``layout``, layer by layer."""
    @staticmethod
    def from_bytes(data: bytes, /) -> RegionTags:
        """Reads a peer's tags.

        Raises:
            WireError, FormatError, LimitExceeded: As :meth:`RankLayout.from_bytes`.
        """
    def to_bytes(self) -> bytes:
        """The tags as bytes.

        Raises:
            LimitExceeded: They are longer than a peer would read.
        """
    def without(self, *indexes: int) -> RegionTags:
        """The same with some regions undescribed."""
    @property
    def layers(self) -> list[str | None]:
        """The layer of each region; ``None`` where nothing is said of it."""
    @property
    def formats(self) -> list[PageFormat | None]:
        """The format of each region's pages."""
    def join(
        self,
        *,
        engine: str,
        regions: Sequence[tuple[int, int, int, int, int, _Memory]],
        generation: int = 0,
    ) -> RankLayout:
        """The layout that the tags and the host's addresses make; regions without a tag are left out.

        Args:
            engine: The peer's engine id.
            regions: ``(base, page_bytes, page_stride, pages, device, memory)`` of each region, in the tags' order.
            generation: The generation of its registration.

        Raises:
            LayoutError: The regions are not as many as the tags, or their pages not as long.
        """
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

def ring_frame_to(data: bytes, /) -> Literal["receiver", "sender"] | None:
    """Which machine of this host a message is for; ``None`` where it is not of the ring protocol.

    Raises:
        WireError: It is meant to be, and does not decode.
    """

@final
class RingAction:
    """What a :class:`RingReceiver` or :class:`RingSender` asks of its host. An attribute that does not apply is
    ``None``, or ``False``.

    ========  ====================================================================================================
    send      send ``frame`` to ``peer``; it may be lost
    read      receiver: read the peer's staging slot ``remote_slot`` into ``slot``; then ``read_ended``
    write     sender: write staging slot ``slot`` into the peer's ``remote_slot``; then ``write_ended``
    gather    sender: gather chunk ``sequence`` of ``request`` into ``slot``; then ``gathered``
    scatter   receiver: scatter chunk ``sequence`` of ``request`` out of ``slot``; then ``scattered``
    finished  ``request`` is done: on the receiver all bytes are in the pages, on the sender the pages are free
    failed    ``request`` failed for ``reason``; its pages must not be used until ``freed`` where ``held``
    freed     the pages of ``request``, which failed, are free
    asked     sender: the peer wants ``request``, which was not offered
    ========  ====================================================================================================
    """

    @property
    def kind(self) -> Literal["send", "read", "write", "gather", "scatter", "finished", "failed", "freed", "asked"]:
        """What to do."""
    @property
    def peer(self) -> int:
        """The peer, by the host's number."""
    @property
    def frame(self) -> bytes | None:
        """The message to send."""
    @property
    def request(self) -> str | None:
        """The request."""
    @property
    def slot(self) -> int | None:
        """A slot of this side's ring."""
    @property
    def remote_slot(self) -> int | None:
        """A slot of the peer's ring; of a gather the one that the chunk is to be written to, if it is."""
    @property
    def sequence(self) -> int | None:
        """Index of the chunk."""
    @property
    def offset(self) -> int | None:
        """Where the chunk begins in the request's packed bytes."""
    @property
    def bytes(self) -> int | None:
        """Bytes to move, from the start of the slots; of ``asked``, all bytes of the request."""
    @property
    def chunk_bytes(self) -> int | None:
        """Bytes of a chunk, of ``asked``."""
    @property
    def reason(self) -> str | None:
        """Why the request failed."""
    @property
    def by_peer(self) -> bool:
        """Whether the peer gave it up."""
    @property
    def held(self) -> bool:
        """Whether a kernel is still at the pages."""

@final
class RingReceiver:
    """The receiving side of the packed protocol: events in, actions out; it has no socket, clock or memory.

    docs/protocol.md has the table that it goes by. Every method answers with what to do, in order.

    Args:
        slots: Slots of the ring.
        slot_bytes: Bytes of each.
        epoch: The first epoch; those of one host grow from process to process, such as the time in microseconds.
        minimum: Slots that every admitted peer can count on.
        requests: Requests that a peer may have open.
        resend: Ticks after which an unanswered message is sent again.

    Raises:
        Error: A method was called that is not legal in the present state. Attributes: ``field``, ``found``,
            ``expected``.
        LimitExceeded: A bound was passed.
    """

    def __new__(
        cls, *, slots: int, slot_bytes: int, epoch: int, minimum: int = 1, requests: int = 1024, resend: int = 16
    ) -> RingReceiver: ...
    @property
    def epoch(self) -> int:
        """The epoch to tell a peer when connecting."""
    @property
    def held(self) -> int:
        """Failed requests whose pages are held."""
    @property
    def free(self) -> int:
        """Slots that are free."""
    @property
    def quarantined(self) -> int:
        """Slots that a lost peer may still touch."""
    def progress(self, peer: int, request: str) -> tuple[int, int, bool] | None:
        """Chunks done with, chunks of the request, and whether the peer takes part yet; ``None`` when the request is
        over or was never known."""
    def slot(self, slot: int) -> tuple[str, int] | None:
        """State and generation of a slot."""
    def peer_up(
        self, peer: int, session: tuple[int, int], flow: Literal["push", "pull"], slots: int
    ) -> list[RingAction]:
        """A sender is connected: ``session`` is the receiver's and the sender's epoch, ``slots`` those of its ring."""
    def peer_down(self, peer: int) -> list[RingAction]:
        """A sender is lost. Slots that it may still write are in quarantine."""
    def peer_gone(self, peer: int) -> list[RingAction]:
        """Nothing of a lost sender can write here any more."""
    def registered(self) -> list[RingAction]:
        """The ring is registered anew, in other memory: all sessions end."""
    def want(
        self, peer: int, request: str, bytes: int, chunk_bytes: int, deadline: int | None = None
    ) -> list[RingAction]:
        """Fetch a request of ``bytes`` in chunks of ``chunk_bytes``; ``deadline`` in ticks."""
    def cancel(self, peer: int, request: str) -> list[RingAction]:
        """Give a request up."""
    def message(self, peer: int, frame: bytes) -> list[RingAction]:
        """A frame came. Raises :class:`WireError` when it does not decode."""
    def read_ended(self, slot: int, ok: bool) -> list[RingAction]:
        """A ``read`` is over: nothing moves any more."""
    def scattered(self, slot: int, ok: bool) -> list[RingAction]:
        """A ``scatter`` is over."""
    def tick(self) -> list[RingAction]:
        """Time passes."""

@final
class RingSender:
    """The sending side of the packed protocol; arguments and errors as of :class:`RingReceiver`."""

    def __new__(
        cls, *, slots: int, slot_bytes: int, epoch: int, minimum: int = 1, requests: int = 1024, resend: int = 16
    ) -> RingSender: ...
    @property
    def epoch(self) -> int:
        """The epoch to tell a peer when connecting."""
    @property
    def held(self) -> int:
        """Failed requests whose pages are held."""
    @property
    def free(self) -> int:
        """Slots that are free."""
    @property
    def quarantined(self) -> int:
        """Slots that a lost peer may still touch."""
    def progress(self, peer: int, request: str) -> tuple[int, int, bool] | None:
        """Chunks done with, chunks of the request, and whether the peer takes part yet; ``None`` when the request is
        over or was never known."""
    def is_asked(self, peer: int, request: str) -> bool:
        """Whether a peer waits for a request that was not offered."""
    def slot(self, slot: int) -> tuple[str, int] | None:
        """State and generation of a slot."""
    def peer_up(
        self, peer: int, session: tuple[int, int], flow: Literal["push", "pull"], slots: int
    ) -> list[RingAction]:
        """A receiver is connected."""
    def peer_down(self, peer: int) -> list[RingAction]:
        """A receiver is lost. Slots that it may still read are in quarantine."""
    def peer_gone(self, peer: int) -> list[RingAction]:
        """Nothing of a lost receiver can read here any more."""
    def registered(self) -> list[RingAction]:
        """The ring is registered anew, in other memory: all sessions end."""
    def offer(
        self, peer: int, request: str, bytes: int, chunk_bytes: int, lease: int | None = None
    ) -> list[RingAction]:
        """Lease the pages of a request to a receiver, for ``lease`` ticks."""
    def withdraw(self, peer: int, request: str) -> list[RingAction]:
        """End a lease, or refuse what was asked for."""
    def message(self, peer: int, frame: bytes) -> list[RingAction]:
        """A frame came."""
    def gathered(self, slot: int, ok: bool) -> list[RingAction]:
        """A ``gather`` is over."""
    def write_ended(self, slot: int, ok: bool) -> list[RingAction]:
        """A ``write`` is over: nothing moves any more. One that failed and may still move is not."""
    def tick(self) -> list[RingAction]:
        """Time passes."""
