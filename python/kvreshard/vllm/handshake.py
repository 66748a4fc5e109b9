"""Who is talked to: the handshake, and what is concluded from what a peer says of itself.

A peer is planned for; or left to vLLM's own geometry, where that is right beyond doubt; or refused.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import GET_META_MSG, NixlHandshakePayload
from vllm.logger import init_logger

import kvreshard as kvr
from kvreshard.vllm import tag as tags
from kvreshard.vllm.assumed import assume
from kvreshard.vllm.describe import Description
from kvreshard.vllm.options import Options
from kvreshard.vllm.peers import Direction, Judged, Peer, meet, share
from kvreshard.vllm.refusal import refusal
from kvreshard.vllm.requests import Outline
from kvreshard.vllm.state import FirstUse

logger = init_logger(f"vllm.{__name__}")  # Below vLLM's own, whose handler and level it takes.


class Handshakes:
    """vLLM's handshake protocol with our conclusions, for a worker that has a description of itself."""

    _DIRECTION: ClassVar[Direction] = "read"

    # Of the worker.
    compat_hash: str | None
    enforce_compat_hash: bool

    if TYPE_CHECKING:

        @property
        def transfer_topo(self) -> Any: ...

        def add_remote_agent(
            self,
            nixl_agent_meta: Any,
            remote_tp_rank: int = 0,
            remote_tp_size: int = 1,
            remote_dcp_size: int = 1,
        ) -> str: ...

        def _forget(self, engine_id: str) -> None: ...

    options = FirstUse(lambda: Options.read(None))
    """The user's options."""

    peers = FirstUse(dict[str, Peer])
    """Engines that are planned for, by id."""

    description = FirstUse(Description)
    """What was registered."""

    # Pipeline stages of the engines that were met, by id.
    _stages = FirstUse(dict[str, int])

    # What peers' hashes are compared with, once something is registered.
    _hashes: tags.Hashes | None = None

    # What was judged of whom, and to what end: loading the agent asks for the same again.
    _just_judged: tuple[Any, Direction, Judged | None] | None = None

    def _nixl_handshake(
        self,
        host: str,
        port: int,
        remote_tp_size: int,
        expected_engine_id: str,
        remote_dcp_size: int = 1,
        remote_pp_size: int = 1,
        notif_agents_only: bool = False,
    ) -> tuple[dict[tuple[int, int], str], float]:
        """Meets the ranks of an engine that this rank exchanges requests with: agents by rank, and the clock's offset.

        The protocol is vLLM's. Which ranks there are to meet is known once one of them has said what it holds.
        """
        if self._is_csa_linear:  # type: ignore[attr-defined]
            self._validate_csa_linear_tp_layout(remote_tp_size)  # type: ignore[attr-defined]
        if not self.use_host_buffer:  # type: ignore[attr-defined]
            # This thread has no device context of its own, without which UCX would give up on NVLink.
            base_worker.current_platform.set_device(self.device_id)  # type: ignore[attr-defined]
        agents: dict[tuple[int, int], str] = {}
        try:
            with base_worker.zmq_ctx(base_worker.zmq.REQ, base_worker.make_zmq_path("tcp", host, port)) as socket:
                asked = _Questions(socket)
                ranks = self._stock_ranks(remote_tp_size, remote_dcp_size)
                pending = list(itertools.product(range(remote_pp_size), ranks))
                met = False
                while pending:
                    place = pending.pop(0)
                    metadata = self._accepted(asked.ask(*place), expected_engine_id)
                    if not met:
                        met = True
                        planned = self._ranks_of(metadata, place[1], remote_tp_size, remote_pp_size, notif_agents_only)
                        if planned is not None:
                            places = itertools.product(range(remote_pp_size), planned)
                            pending = [other for other in places if other != place]
                            if place[1] not in planned:
                                continue
                    if notif_agents_only:
                        self._expect(self._judged(metadata, (place[1], remote_tp_size), "read"))
                        agents[place] = self._add_notif_only_remote_agent(  # type: ignore[attr-defined]
                            metadata, remote_tp_size, metadata.dcp_size
                        )
                    else:
                        agents[place] = self.add_remote_agent(metadata, place[1], remote_tp_size, metadata.dcp_size)
                return agents, asked.clock_offset
        except BaseException:
            self._forget(expected_engine_id)
            raise

    def _expect(self, judged: Judged | None) -> None:
        """Told of each rank that only brings news."""

    def _stock_ranks(self, remote_tp_size: int, remote_dcp_size: int) -> list[int]:
        topology = self.transfer_topo
        larger, smaller = max(topology.tp_size, remote_tp_size), min(topology.tp_size, remote_tp_size)
        if larger % smaller == 0:
            ranks: list[int] = topology.handshake_target_ranks(remote_tp_size, remote_dcp_size)
            return ranks
        # The rank most likely to be needed is asked first; the route then names the others.
        return [topology.tp_rank * remote_tp_size // topology.tp_size]

    def _accepted(self, payload: NixlHandshakePayload, expected_engine_id: str) -> tags.TaggedAgentMetadata:
        """The peer's metadata, once its configuration is found to be one that may be talked to."""
        try:
            metadata = msgspec.msgpack.decode(payload.agent_metadata_bytes, type=tags.TaggedAgentMetadata)
            tag = None if metadata.kvreshard is None else tags.decode(metadata.kvreshard)
            undecoded = None
        except (msgspec.MsgspecError, kvr.WireError) as problem:
            metadata, tag, undecoded = None, None, problem
        if self._hashes is None:
            same = payload.compatibility_hash == self.compat_hash
        else:
            same = self._hashes.accept(payload.compatibility_hash, tag)
        if self.enforce_compat_hash and not same:
            raise RuntimeError(
                f"NIXL compatibility hash mismatch. Local: {self.compat_hash}, remote: "
                f"{payload.compatibility_hash}. Prefill and decode differ in vLLM's version, model, dtype, cache dtype "
                "or transfer mode, or a peer without kvreshard in its attention backend. "
                'kv_connector_extra_config {"enforce_handshake_compat": false} skips this check.'
            )
        if metadata is None:
            raise RuntimeError(f"Failed to decode NixlAgentMetadata. Error: {undecoded}") from undecoded
        self._validate_remote_parallel_config(metadata)  # type: ignore[attr-defined]
        if metadata.engine_id != expected_engine_id:
            raise RuntimeError(
                f"Remote NIXL agent engine ID mismatch. Expected {expected_engine_id}, received {metadata.engine_id}."
            )
        return metadata

    def _ranks_of(self, metadata: Any, rank: int, size: int, pp_size: int, notif_agents_only: bool) -> list[int] | None:
        """The ranks of a planned engine to meet; `None` for one that is left to vLLM."""
        # Who only hears of a push is its destination: the same pairs of ranks, seen as a read.
        direction: Direction = "read" if notif_agents_only else self._DIRECTION
        self._stages[metadata.engine_id] = pp_size
        judged = self._judge(metadata, (rank, size), direction)
        self._just_judged = (metadata, direction, judged)
        return None if judged is None else judged.peer.ranks

    def _judged(self, metadata: Any, place: tuple[int, int], direction: Direction | None = None) -> Judged | None:
        """As `_judge`, which is not asked again about what it has just been asked."""
        kept, self._just_judged = self._just_judged, None
        if kept is not None and kept[0] is metadata and kept[1] == (direction or self._DIRECTION):
            return kept[2]
        return self._judge(metadata, place, direction)

    def _judge(
        self,
        metadata: Any,
        place: tuple[int, int],
        direction: Direction | None = None,
    ) -> Judged | None:
        """How the peer's rank at TP `place` is served: planned for, or `None` for vLLM's own geometry.

        Raises:
            kvreshard.Error: It must not be served: its pages are not known, or do not fit ours.
        """
        mine = self.description
        direction = direction or self._DIRECTION
        encoded = getattr(metadata, "kvreshard", None)
        tag = None if encoded is None else tags.decode(encoded)
        stages = self._stages.get(metadata.engine_id, 1)
        one_stage = stages == 1 and self.pp_size == 1  # type: ignore[attr-defined]
        if tag is None:
            return self._judge_untagged(metadata, place, one_stage, direction)
        theirs = None if tag.layout is None else kvr.RankLayout.from_bytes(tag.layout)
        # A push goes from each stage by itself: its rank writes its layers, and the destination hears of each stage.
        stagewise = self._DIRECTION == "write" and (direction == "read") == (stages > 1)
        if mine.layout is not None and theirs is not None and (one_stage or stagewise):
            if theirs.engine != metadata.engine_id or theirs.tp != place:
                raise refusal(
                    f"the peer's tag is of engine {theirs.engine} TP {theirs.tp}, its metadata of "
                    f"{metadata.engine_id} TP {place}",
                    field="tag",
                    remedy="ask the peer's own side channel",
                )
            return self._meet(mine.layout, theirs, direction, tagged=True)
        if mine.standard and tag.standard and metadata.block_size == self.block_size:  # type: ignore[attr-defined]
            return None
        if self.options.assume_untagged == "standard":
            return None
        if not one_stage:
            raise refusal(
                f"pipeline stages in a pull, with pages that are not all standard, or of {metadata.block_size} and "
                f"{self.block_size} tokens",  # type: ignore[attr-defined]
                field="pp",
                remedy="push, or serve without pipeline parallelism",
            )
        unknown = mine.why_unknown if mine.layout is None else tag.unknown
        raise refusal(
            f"pages whose interior is not known ({'ours' if mine.layout is None else 'the peer`s'}): {unknown}",
            field="format",
            remedy='register the backend with kvreshard.formats.register_backend, or set assume_untagged="standard"',
        )

    def _judge_untagged(
        self, metadata: Any, place: tuple[int, int], one_stage: bool, direction: Direction
    ) -> Judged | None:
        mine, options = self.description, self.options
        if options.untagged == "refuse":
            raise refusal(
                f"engine {metadata.engine_id} does not say how its pages are built, and untagged peers are refused",
                field="tag",
                remedy='run kvreshard on the peer, or leave out untagged="refuse"',
            )
        if mine.layout is not None and mine.standard:
            logger.warning_once(
                "kvreshard: engine %s does not say how its pages are built. They are taken to be standard, as ours "
                "are: a peer that shuffles its pages under the same backend name cannot be told apart.",
                metadata.engine_id,
            )
            theirs = assume(self, mine, metadata, place) if one_stage else None
            if theirs is not None:
                return self._meet(mine.layout, theirs, direction, tagged=False)
            if metadata.block_size == self.block_size:  # type: ignore[attr-defined]
                return None
        if options.assume_untagged == "standard":
            theirs = assume(self, mine, metadata, place) if one_stage else None
            logger.warning_once(
                'kvreshard: engine %s does not say how its pages are built; as assume_untagged="standard" asks, %s.',
                metadata.engine_id,
                "it is served as vLLM would serve it" if theirs is None else "they are taken to be standard",
            )
            if theirs is not None and mine.layout is not None:
                return self._meet(mine.layout, theirs, direction, tagged=False)
            return None
        why = mine.why_unknown if mine.layout is None else ", ".join(sorted({p.label for p in mine.pages.values()}))
        raise refusal(
            f"engine {metadata.engine_id} does not say how its pages are built, and ours are not all standard ({why})",
            field="tag",
            remedy='run kvreshard on the peer, or set assume_untagged="standard"',
        )

    def _meet(self, mine: kvr.RankLayout, theirs: kvr.RankLayout, direction: Direction, *, tagged: bool) -> Judged:
        if self._stages.get(theirs.engine, 1) > 1 or self.pp_size > 1:  # type: ignore[attr-defined]
            held = [{layer.name for layer in layout.layers} for layout in (mine, theirs)]
            mine, theirs = share(mine, held[1]), share(theirs, held[0])
            for layout in (mine, theirs):
                if {layer.group for layer in layout.layers} != set(range(len(layout.groups))):
                    raise refusal(
                        f"a pipeline stage without a layer of each of {len(layout.groups)} cache groups",
                        field="pp",
                        remedy="serve without pipeline parallelism",
                    )
        known = self.peers.get(theirs.engine)
        if (
            known is not None
            and known.route.direction == direction
            and all(layout.generation == theirs.generation for layout in known.layouts.values())
        ):
            return Judged(known, mine, theirs)
        own = self.description.outline
        if own is None or own.layout is not mine:
            own = Outline.of(mine)
        return Judged(meet(own, theirs, direction, tagged=tagged), mine, theirs)


class _Questions:
    """Asks a side channel for the metadata of its ranks, and keeps the best estimate of its clock."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._best = float("inf")
        self.clock_offset = 0.0

    def ask(self, pp_rank: int, tp_rank: int) -> NixlHandshakePayload:
        """The payload of one rank.

        Raises:
            RuntimeError: It does not decode.
        """
        # A dead server must fail the request, not hold the thread.
        self._socket.setsockopt(base_worker.zmq.RCVTIMEO, 5000)
        sent = time.perf_counter()
        self._socket.send(msgspec.msgpack.encode((GET_META_MSG, pp_rank, tp_rank)))
        parts = self._socket.recv_multipart()
        received = time.perf_counter()
        if len(parts) != 2:
            raise RuntimeError(f"the side channel answered in {len(parts)} parts, and 2 are expected")
        if received - sent < self._best:
            # The round trip with the least delay skews the midpoint least.
            self._best = received - sent
            self.clock_offset = msgspec.msgpack.decode(parts[1]) - (sent + received) / 2
        try:
            return msgspec.msgpack.decode(parts[0], type=NixlHandshakePayload)
        except msgspec.MsgspecError as problem:
            raise RuntimeError(
                f"Failed to decode NixlHandshakePayload: the peer's connector is of an incompatible version. "
                f"Error: {problem}"
            ) from problem
