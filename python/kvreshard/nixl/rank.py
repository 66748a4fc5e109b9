"""This rank's own side: its NIXL agent, what is registered with it, and the layout that peers see."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import kvreshard as kvr

from . import notices, wire
from .agent import Agent, NixlAgent, open_agent
from .contact import Write, mark
from .digests import digests
from .errors import Closed, NotPublished
from .memory import Memory
from .peer import Peer
from .strides import Axes

if TYPE_CHECKING:
    from kvreshard.probe import Source


class LocalRank:
    """Registers memory and publishes its layout; the half of `Connector` that needs no peer."""

    def __init__(
        self,
        name: str | None = None,
        *,
        agent: NixlAgent | None = None,
        progress_thread: bool = False,
        telemetry: bool = True,
        threads: int = 0,
    ) -> None:
        if agent is None:
            name = name or f"kvreshard-{uuid.uuid4().hex[:12]}"
            self._agent = open_agent(name, progress_thread=progress_thread, telemetry=telemetry, threads=threads)
        else:
            self._agent = Agent(agent, owned=False)
        self._lock = threading.RLock()
        self._closed = False
        self._memory = Memory(self._agent)
        self._layers: list[kvr.Layer] = []
        self._layout: kvr.RankLayout | None = None
        # Larger than that of any earlier process of this rank, so that a restart is a new registration.
        self._generation = time.time_ns()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """The lock, and the certainty that there is still something behind it."""
        with self._lock:
            if self._closed:
                raise Closed(f"connector {self.name} is closed")
            yield

    def _drop_peers(self) -> None:
        """Called before the layout or the registrations change: what peers are planned with is void."""

    def _part(self) -> None:
        """Called before all registrations are dropped: what peers know, and what they were promised, is void."""

    @property
    def name(self) -> str:
        """The NIXL agent's name, which peers know this rank by."""
        return self._agent.name

    @property
    def generation(self) -> int:
        """Names the current registrations; rises when they are dropped."""
        return self._generation

    @property
    def layout(self) -> kvr.RankLayout:
        """The published layout."""
        if self._layout is None:
            raise NotPublished("this connector has published no layout", remedy="publish() it first")
        return self._layout

    @property
    def regions(self) -> tuple[kvr.Region, ...]:
        """What is registered."""
        with self._lock:
            return self._memory.regions

    # Memory

    def register(self, memory: Any) -> kvr.Region:
        """Registers a torch tensor, a numpy array (either with its whole storage, once), a `Region` or raw memory.

        Raw memory is `(address, bytes, device, memory)`. Tensors and arrays are kept alive; the rest the caller keeps.
        """
        with self._open():
            return self._memory.register(memory)

    def adopt(self, memory: Any) -> kvr.Region:
        """As `register`, for memory that the host has registered with its agent: it stays the host's to deregister."""
        with self._open():
            return self._memory.adopt(memory)

    def segment(
        self,
        memory: Any,
        format: kvr.PageFormat,
        *,
        layer: str = "",
        axes: Axes | None = None,
        pages: int | None = None,
        page_stride: int | None = None,
        offset: int = 0,
        holds: Mapping[str, tuple[int, int]] | None = None,
    ) -> kvr.Segment:
        """Registers `memory` and describes its pages, for a layer of several segments (K and V apart, a plane a head).

        A tensor or array has its pages along the first axis and tells their number, place and stride itself; its
        strides are checked against `format`. `axes` names its other axes ("h", "n", ..., `None` for one that the format
        does not know); without it they are recognised by their extents where that is certain. A region or raw memory is
        told: `pages` (as many as fit), `page_stride` (dense), `offset` in bytes of page 0.

        Raises `TensorMismatch` (a `kvreshard.LayoutError`) with layer, axis, stride found and stride implied.
        """
        with self._open():
            return self._memory.segment(
                memory,
                format,
                layer=layer,
                axes=axes,
                pages=pages,
                page_stride=page_stride,
                offset=offset,
                holds=dict(holds) if holds else None,
            )

    def add_layer(
        self,
        name: str,
        memory: Any,
        format: kvr.PageFormat | None = None,
        *,
        totals: Mapping[str, int] | None = None,
        group: int = 0,
        axes: Axes | None = None,
        pages: int | None = None,
        page_stride: int | None = None,
        offset: int = 0,
        holds: Mapping[str, tuple[int, int]] | None = None,
    ) -> kvr.Layer:
        """Adds a layer to what `publish` will publish.

        `memory` with `format` is one segment, as for `segment`; without `format` it is a list of segments. `totals` is
        the extent over all ranks of every sharded axis, such as {"h": 8}.
        """
        with self._open():
            if format is None:
                segments = list(memory)
            else:
                one = self.segment(
                    memory,
                    format,
                    layer=name,
                    axes=axes,
                    pages=pages,
                    page_stride=page_stride,
                    offset=offset,
                    holds=holds,
                )
                segments = [one]
            layer = kvr.Layer(name, segments, totals=dict(totals or {}), group=group)
            self._layers.append(layer)
            return layer

    def publish(
        self,
        layout: kvr.RankLayout | None = None,
        *,
        engine: str | None = None,
        groups: Sequence[kvr.Group] | None = None,
        tp: tuple[int, int] = (0, 1),
        pp: tuple[int, int] = (0, 1),
        cp: tuple[int, int] = (0, 1),
        cp_interleave: int = 1,
    ) -> kvr.RankLayout:
        """Settles the layout that peers see: of the layers added, under `engine` and a parallel position, or a prepared
        one.

        Every region of a prepared layout must be registered or adopted. Peers connected under an earlier layout are
        dropped.
        """
        with self._open():
            if layout is None:
                if engine is None:
                    raise NotPublished("publish needs the engine's id, or a layout", field="engine")
                layout = kvr.RankLayout(
                    engine=engine,
                    layers=self._layers,
                    groups=list(groups) if groups is not None else None,
                    generation=self._generation,
                    tp=tp,
                    pp=pp,
                    cp=cp,
                    cp_interleave=cp_interleave,
                )
            self._memory.require(layout)
            self._drop_peers()
            self._open_staging(layout)
            self._layout = layout
            return layout

    def _open_staging(self, layout: kvr.RankLayout | None) -> None:
        """Staging memory beside the layout's pages, where they are all of one kind; none without a layout."""

    def _rings(self) -> wire.Rings | None:
        """What peers are told of staging memory."""
        return None

    def deregister(self) -> None:
        """Drops every registration, the layers and all peers, as before sleep mode; what is registered next is a new
        generation.

        Raises `PeerBusy` while requests are in flight. What this rank expects ends with `LeaseEnded`, and peers that
        it is connected with are told. Peers must not read any more all the same: NIXL would tell them DONE.
        """
        with self._open():
            self._part()
            self._drop_peers()
            self._layers, self._layout = [], None
            self._generation += 1
            self._open_staging(None)
            self._memory.deregister()

    def mark(
        self,
        blocks: Sequence[kvr.Blocks],
        write: Write,
        *,
        seed: int = 0,
        sources: Mapping[str, Source] | None = None,
    ) -> int:
        """Stores marked pages in scratch blocks (one list a group) with the engine's own writer, for a peer's
        `first_contact`: `write(layer, page, values)` once a page of a layer. Returns how many.

        The arrays are those of `kvreshard.probe.marks`; a writer that quantises says in `sources` what its pages are
        made of, and is given inputs.
        """
        return mark(self.layout, blocks, write, seed, sources)

    def digests(
        self,
        peer: Peer,
        blocks: Sequence[kvr.Blocks],
        tokens: tuple[int, int],
        *,
        samples: int = 64,
        seed: int = 0,
    ) -> dict[str, str]:
        """A digest of `samples` elements a component for each layer that both sides hold, of the page with token
        `tokens[0]` in this side's `blocks` (one list a group).

        Both ends of a transfer call it with the same tokens, samples and seed, and compare: the digests are equal when
        the elements are, however the pages are built. It copies one page a layer to host memory.
        """
        with self._open():
            spans = self._memory.spans(self.layout)
            return digests(self.layout, peer.layout, spans, blocks, tokens, samples, seed)

    def metadata(self) -> bytes:
        """What a peer needs to `connect`: agent, registrations and layout. Register everything first."""
        with self._open():
            layout = self.layout
            told = wire.Metadata(
                self.name,
                self._agent.metadata(),
                layout,
                layout.generation,
                notices.VERSION,
                rings=self._rings(),
            )
            return wire.encode(told)
