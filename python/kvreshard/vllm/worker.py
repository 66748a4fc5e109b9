"""What the pull and the push worker have in common: the tag, who may be talked to, and the prepared plans.

These are mixed into vLLM's workers. Scheduling, leases and heartbeats stay vLLM's; what is said about memory, and what
is concluded from what a peer says, is here. A peer is either planned for, or left to vLLM's own geometry where that is
right beyond doubt, or refused.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from typing import Any, ClassVar

import msgspec
import torch
import zmq
from vllm.distributed.kv_transfer.kv_connector.utils import EngineTransferInfo
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
    GET_META_MSG,
    NixlAgentMetadata,
    NixlHandshakePayload,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import TPMapping
from vllm.logger import init_logger

import kvreshard as kvr
from kvreshard.vllm import tag as tags
from kvreshard.vllm.assumed import assume
from kvreshard.vllm.describe import Description, describe
from kvreshard.vllm.landing import Landing
from kvreshard.vllm.options import Options
from kvreshard.vllm.peers import Direction, Link, Local, Peer, meet, plan_of
from kvreshard.vllm.staging import Staging
from kvreshard.vllm.topology import PlannedTopology

logger = init_logger(__name__)


class Finish(list[list[int]]):
    """What is left to do when a request's transfers are done, in the place where vLLM keeps blocks to clear."""

    def __init__(self) -> None:
        super().__init__()
        self.clear_bytes: list[tuple[int, int]] = []


def _pages_read(mine: kvr.RankLayout, theirs: kvr.RankLayout) -> int:
    """The peer's pages that one period of a plan touches: what landing them would take in descriptors."""
    ours = {layer.name: layer.segments[0].format.extents.get("n", 1) for layer in mine.layers}
    count = 0
    for layer in theirs.layers:
        states = layer.segments[0].format.extents.get("n", 1)
        count += math.lcm(states, ours.get(layer.name, states)) // states
    return count


def refusal(text: str, *, field: str, remedy: str) -> kvr.IncompatibleLayout:
    """An error for a peer that cannot be planned for and must not be guessed at."""
    problem = kvr.IncompatibleLayout(f"{text}; {remedy}")
    problem.field = field
    problem.remedy = remedy
    return problem


class PlannedWorker:
    """Planned transfers for a NIXL connector worker of vLLM; stands before it in a class's bases."""

    _DIRECTION: ClassVar[Direction] = "read"

    # vLLM's own, as far as used here.
    engine_id: str
    vllm_config: Any
    kv_cache_config: Any
    kv_transfer_config: Any
    nixl_wrapper: Any
    transfer_topo: Any
    xfer_handshake_metadata: Any
    compat_hash: str | None
    enforce_compat_hash: bool
    tp_mappings: dict[str, Any]
    dst_num_blocks: dict[str, int]
    _remote_agents: dict[str, dict[tuple[int, int], str]]
    _group_spec_types: tuple[Any, ...]

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)  # type: ignore[call-arg]
        self._options = Options.read(vllm_config.kv_transfer_config.kv_connector_extra_config)

    # State is made on first use: vLLM builds workers without running constructors in places.

    @property
    def options(self) -> Options:
        """The user's options."""
        found: Options = self.__dict__.setdefault("_options", Options.read(None))
        return found

    @property
    def peers(self) -> dict[str, Peer]:
        """Engines that are planned for, by id."""
        found: dict[str, Peer] = self.__dict__.setdefault("_peers", {})
        return found

    @property
    def description(self) -> Description:
        """What was registered."""
        found: Description = self.__dict__.setdefault("_description", Description())
        return found

    @property
    def _locals(self) -> dict[str, Local]:
        found: dict[str, Local] = self.__dict__.setdefault("_prepared", {})
        return found

    @property
    def _plan_lock(self) -> threading.RLock:
        found: threading.RLock = self.__dict__.setdefault("_planning", threading.RLock())
        return found

    # What this rank says of itself.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Registers with vLLM's own code, then says what was registered."""
        super().register_kv_caches(kv_caches)  # type: ignore[misc]
        self.transfer_topo = PlannedTopology.adopt(self.transfer_topo)
        self._describe(self.__dict__.get("_generation", 0))

    def restore_kv_caches(self) -> None:
        """Registers again after a sleep: the tag stays, of a new generation, and peers prepare anew."""
        asleep = self._kv_unregistered  # type: ignore[attr-defined]
        super().restore_kv_caches()  # type: ignore[misc]
        if asleep:
            self._describe(self.__dict__.get("_generation", 0) + 1)

    def _describe(self, generation: int) -> None:
        self.__dict__["_generation"] = generation
        try:
            found = describe(self, self._buffers, self.options, generation)
        except kvr.Error as problem:
            logger.warning("kvreshard: these caches have no layout that a peer could plan for: %s", problem)
            found = Description(unknown={"layout": str(problem)})
        self.__dict__["_description"] = found
        mode = self._TRANSFER_MODE  # type: ignore[attr-defined]
        published = self.compat_hash
        if published is None or self.xfer_handshake_metadata is None:
            return
        hashes = self.__dict__.get("_hashes") or tags.Hashes.of(self.vllm_config, published, mode)
        self.__dict__["_hashes"] = hashes
        # Pages that no stock peer may read go under a hash that no stock peer accepts. Unknown pages stay under stock's:
        # a stock peer is as right or wrong about them as without us.
        self.compat_hash = hashes.stock if found.standard or found.layout is None else hashes.own
        metadata = msgspec.msgpack.decode(self.xfer_handshake_metadata.agent_metadata_bytes, type=NixlAgentMetadata)
        tag = tags.encode(hashes.factors, found.layout, standard=found.standard, unknown=found.why_unknown)
        encoded = msgspec.msgpack.encode(tags.attach(metadata, tag))
        self.xfer_handshake_metadata.agent_metadata_bytes = encoded
        self.xfer_handshake_metadata.compatibility_hash = self.compat_hash

    # Who is talked to.

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
            with base_worker.zmq_ctx(zmq.REQ, base_worker.make_zmq_path("tcp", host, port)) as socket:
                asked = _Questions(socket)
                ranks = self._stock_ranks(remote_tp_size, remote_dcp_size)
                pending = list(itertools.product(range(remote_pp_size), ranks))
                met = False
                while pending:
                    place = pending.pop(0)
                    metadata = self._accepted(asked.ask(*place), expected_engine_id)
                    if not met:
                        met = True
                        planned = self._ranks_of(
                            metadata, place[1], remote_tp_size, remote_pp_size, notif_agents_only
                        )
                        if planned is not None:
                            pending = [(0, rank) for rank in planned if rank != place[1]]
                            if place[1] not in planned:
                                continue
                    if notif_agents_only:
                        agents[place] = self._add_notif_only_remote_agent(  # type: ignore[attr-defined]
                            metadata, remote_tp_size, metadata.dcp_size
                        )
                    else:
                        agents[place] = self.add_remote_agent(metadata, place[1], remote_tp_size, metadata.dcp_size)
                return agents, asked.clock_offset
        except BaseException:
            self._forget(expected_engine_id)
            raise

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
        hashes = self.__dict__.get("_hashes")
        if hashes is None:
            same = payload.compatibility_hash == self.compat_hash
        else:
            same = hashes.accept(payload.compatibility_hash, tag)
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

    def _ranks_of(
        self, metadata: Any, rank: int, size: int, pp_size: int, notif_agents_only: bool
    ) -> list[int] | None:
        """The ranks of a planned engine to meet; `None` for one that is left to vLLM."""
        # Who only hears of a push is its destination: the same pairs of ranks, seen as a read.
        direction: Direction = "read" if notif_agents_only else self._DIRECTION
        judged = self._judge(metadata, (rank, size), pp_size, direction)
        return None if judged is None else judged[0].ranks

    def _judge(
        self,
        metadata: Any,
        place: tuple[int, int],
        pp_size: int = 1,
        direction: Direction | None = None,
    ) -> tuple[Peer, kvr.RankLayout] | None:
        """How the peer's rank at TP `place` is served: planned for, or `None` for vLLM's own geometry.

        Raises:
            kvreshard.Error: It must not be served: its pages are not known, or do not fit ours.
        """
        mine = self.description
        direction = direction or self._DIRECTION
        encoded = getattr(metadata, "kvreshard", None)
        tag = None if encoded is None else tags.decode(encoded)
        one_stage = pp_size == 1 and self.pp_size == 1  # type: ignore[attr-defined]
        if tag is None:
            return self._judge_untagged(metadata, place, one_stage, direction)
        theirs = None if tag.layout is None else kvr.RankLayout.from_bytes(tag.layout)
        if mine.layout is not None and theirs is not None and one_stage:
            if theirs.engine != metadata.engine_id or theirs.tp != place:
                raise refusal(
                    f"the peer's tag is of engine {theirs.engine} TP {theirs.tp}, its metadata of "
                    f"{metadata.engine_id} TP {place}",
                    field="tag",
                    remedy="ask the peer's own side channel",
                )
            return self._meet(mine.layout, theirs, direction, tagged=True), theirs
        if mine.standard and tag.standard and metadata.block_size == self.block_size:  # type: ignore[attr-defined]
            return None
        if self.options.assume_untagged == "standard":
            return None
        if not one_stage:
            raise refusal(
                f"pipeline stages with pages that are not all standard, or of {metadata.block_size} and "
                f"{self.block_size} tokens",  # type: ignore[attr-defined]
                field="pp",
                remedy="serve without pipeline parallelism, or with standard pages of one size",
            )
        unknown = mine.why_unknown if mine.layout is None else tag.unknown
        raise refusal(
            f"pages whose interior is not known ({'ours' if mine.layout is None else 'the peer`s'}): {unknown}",
            field="format",
            remedy='register the backend with kvreshard.formats.register_backend, or set assume_untagged="standard"',
        )

    def _judge_untagged(
        self, metadata: Any, place: tuple[int, int], one_stage: bool, direction: Direction
    ) -> tuple[Peer, kvr.RankLayout] | None:
        mine, options = self.description, self.options
        if options.untagged == "refuse":
            raise refusal(
                f"engine {metadata.engine_id} does not say how its pages are built, and untagged peers are refused",
                field="tag",
                remedy='run kvreshard on the peer, or leave out untagged="refuse"',
            )
        if mine.layout is not None and mine.standard:
            logger.warning_once(
                "kvreshard: engine %s does not say how its pages are built. They are taken to be standard, as ours are; "
                "a peer that shuffles its pages under the same backend name cannot be told apart.",
                metadata.engine_id,
            )
            theirs = assume(self, mine, metadata, place) if one_stage else None
            if theirs is not None:
                return self._meet(mine.layout, theirs, direction, tagged=False), theirs
            if metadata.block_size == self.block_size:  # type: ignore[attr-defined]
                return None
        if options.assume_untagged == "standard":
            theirs = assume(self, mine, metadata, place) if one_stage else None
            logger.warning_once(
                "kvreshard: engine %s does not say how its pages are built; as assume_untagged=\"standard\" asks, %s.",
                metadata.engine_id,
                "it is served as vLLM would serve it" if theirs is None else "they are taken to be standard",
            )
            if theirs is not None and mine.layout is not None:
                return self._meet(mine.layout, theirs, direction, tagged=False), theirs
            return None
        why = mine.why_unknown if mine.layout is None else ", ".join(sorted({p.label for p in mine.pages.values()}))
        raise refusal(
            f"engine {metadata.engine_id} does not say how its pages are built, and ours are not all standard ({why})",
            field="tag",
            remedy='run kvreshard on the peer, or set assume_untagged="standard"',
        )

    def _meet(
        self, mine: kvr.RankLayout, theirs: kvr.RankLayout, direction: Direction, *, tagged: bool
    ) -> Peer:
        known = self.peers.get(theirs.engine)
        if (
            known is not None
            and known.route.direction == direction
            and all(layout.generation == theirs.generation for layout in known.layouts.values())
        ):
            return known
        return meet(mine, theirs, direction, tagged=tagged)

    # What is prepared.

    def add_remote_agent(
        self,
        nixl_agent_meta: Any,
        remote_tp_rank: int = 0,
        remote_tp_size: int = 1,
        remote_dcp_size: int = 1,
    ) -> str:
        """Loads a peer's agent and prepares what is exchanged with it."""
        engine_id = nixl_agent_meta.engine_id
        known = self._remote_agents.get(engine_id, {}).get((0, remote_tp_rank))
        if known is not None:
            return known
        judged = self._judge(nixl_agent_meta, (remote_tp_rank, remote_tp_size))
        if judged is None:
            agent: str = super().add_remote_agent(  # type: ignore[misc]
                nixl_agent_meta, remote_tp_rank, remote_tp_size, remote_dcp_size
            )
            return agent
        with self._plan_lock:
            return self._link(*judged, nixl_agent_meta)

    def _link(self, peer: Peer, theirs: kvr.RankLayout, metadata: Any) -> str:
        mine = self.description.layout
        assert mine is not None
        rank = theirs.tp[0]
        plan = plan_of(peer, mine, theirs, self._DIRECTION)
        landing = None if plan is None else self._landing(peer, mine, theirs, plan)
        agent: str = self.nixl_wrapper.add_remote_agent(metadata.agent_metadata)
        link = Link(agent)
        try:
            if landing is not None:
                link.landing = landing
                landing.prepare(self, agent)
            elif plan is not None:
                link.plan = plan
                self._prepare(link)
        except BaseException:
            self._release(link)
            self.nixl_wrapper.remove_remote_agent(agent)
            raise
        stale = peer.links.pop(rank, None)
        if stale is not None:
            self._release(stale)
        peer.links[rank] = link
        peer.layouts[rank] = theirs
        self.peers[peer.engine_id] = peer
        info = EngineTransferInfo(
            remote_tp_size=peer.size,
            remote_block_size=metadata.block_size,
            remote_block_len=metadata.block_lens[0],
            remote_physical_blocks_per_logical=metadata.physical_blocks_per_logical_kv_block,
            remote_dcp_size=theirs.cp[1],
        )
        self.transfer_topo.plan_for(peer.engine_id, info, peer.ranks)
        self.dst_num_blocks[peer.engine_id] = metadata.num_blocks
        self.tp_mappings[peer.engine_id] = TPMapping(
            source_ranks_per_group=tuple(tuple(peer.edge_ranks) for _ in self._group_spec_types),
            all_source_ranks=tuple(peer.edge_ranks),
            rank_to_attention_slot={},
            rank_offset_factor=0,
            local_consumers=max(peer.route.readers) if self._DIRECTION == "read" else 1,
        )
        logger.info(
            "kvreshard: engine %s rank %d: %s",
            peer.engine_id,
            rank,
            "news only" if plan is None else f"{plan.runs_per_page} runs of {plan.bytes_per_run} bytes a page",
        )
        return agent

    def _landing(self, peer: Peer, mine: kvr.RankLayout, theirs: kvr.RankLayout, plan: kvr.Plan) -> Landing | None:
        """What lands the peer's pages, where runs are too short to be moved one by one; `None` moves them so.

        Raises:
            kvreshard.Error: Runs are too short and pages cannot, or must not, be landed.
        """
        short = plan.bytes > 0 and (
            plan.bytes_per_run < self.options.shortest_run or (peer.clear and plan.runs > _pages_read(mine, theirs))
        )
        if self.options.conversion == "direct" or not (short or self.options.conversion == "landed"):
            return None
        converts = [
            (ours.segments[0].format, layer.segments[0].format)
            for ours in mine.layers
            for layer in theirs.layers
            if ours.name == layer.name and ours.segments[0].format.notation != layer.segments[0].format.notation
        ]
        if self._DIRECTION == "write" or self.options.conversion == "off":
            if not converts or plan.bytes_per_run >= self.options.shortest_run:
                return None
            ours, other = converts[0]
            raise refusal(
                f"pages {ours} here and {other} at the peer share only runs of {plan.bytes_per_run} bytes, and "
                + ("a push cannot convert them" if self._DIRECTION == "write" else "conversion is off"),
                field="format",
                remedy="pull" if self._DIRECTION == "write" else 'set conversion="auto", or use one format on both sides',
            )
        if mine.cp[1] > 1 or theirs.cp[1] > 1 or any(group.kind == "state" for group in theirs.groups):
            return None
        edge = peer.route.edges_of(local=peer.rank, remote=theirs.tp[0])[0]
        landing = Landing(mine, theirs, edge)
        landing.to(next(iter(self._buffers.values())).device)
        return landing

    @property
    def _buffers(self) -> dict[str, torch.Tensor]:
        """The tensors that NIXL reads and writes, by layer."""
        buffers: dict[str, torch.Tensor] = (
            self.host_xfer_buffers or self.device_kv_caches  # type: ignore[attr-defined]
        )
        return buffers

    @property
    def staging(self) -> Staging:
        """Where pages are landed; made when first needed."""
        found: Staging | None = self.__dict__.get("_staging")
        if found is None:
            found = Staging(
                self.nixl_wrapper,
                self.nixl_backends,  # type: ignore[attr-defined]
                next(iter(self._buffers.values())).device,
                self.nixl_memory_type,  # type: ignore[attr-defined]
                self.options.staging_bytes,
            )
            self.__dict__["_staging"] = found
        return found

    def _prepare(self, link: Link) -> None:
        """Prepares the plan's lists. Lists of our own memory are shared by all plans of one digest."""
        plan = link.plan
        assert plan is not None
        local = self._locals.get(plan.digest)
        if local is None:
            local = self._locals[plan.digest] = Local([])
            for part, (memory, _) in enumerate(plan.parts):
                rows = plan.local_rows(part=part)
                local.handles.append(self.nixl_wrapper.prep_xfer_dlist("NIXL_INIT_AGENT", rows, mem_type=memory))
        local.users += 1
        for part, (_, memory) in enumerate(plan.parts):
            rows = plan.remote_rows(part=part)
            remote = self.nixl_wrapper.prep_xfer_dlist(link.agent, rows, mem_type=memory)
            link.handles.append((local.handles[part], remote))

    def _release(self, link: Link) -> None:
        for _, remote in link.handles:
            self.nixl_wrapper.release_dlist_handle(remote)
        link.handles = []
        if link.landing is not None:
            link.landing.release(self)
            link.landing = None
        if link.plan is None:
            return
        local = self._locals.get(link.plan.digest)
        link.plan = None
        if local is None:
            return
        local.users -= 1
        if local.users <= 0:
            self._locals.pop(next(digest for digest, found in self._locals.items() if found is local))
            for handle in local.handles:
                self.nixl_wrapper.release_dlist_handle(handle)

    def _forget(self, engine_id: str) -> None:
        """Releases what was prepared for an engine; its agents stay."""
        with self._plan_lock:
            peer = self.peers.pop(engine_id, None)
            for link in [] if peer is None else peer.links.values():
                self._release(link)

    def _cleanup_remote_engine(self, engine_id: str, *, log_eviction: bool = True) -> None:
        """Releases what was prepared for an engine, then its agents."""
        self._forget(engine_id)
        super()._cleanup_remote_engine(engine_id, log_eviction=log_eviction)  # type: ignore[misc]

    def _release_local_xfer_handles(self) -> None:
        """Releases every list of our memory, before it is registered anew or given up."""
        for engine_id in list(self.peers):
            self._forget(engine_id)
        staging = self.__dict__.pop("_staging", None)
        if staging is not None:
            staging.close()
        super()._release_local_xfer_handles()  # type: ignore[misc]

    # What is left to do when a transfer is done.

    def _zero_region_blocks(self, block_ids: Any) -> None:
        if isinstance(block_ids, Finish):
            self._clear(block_ids.clear_bytes)
            return
        super()._zero_region_blocks(block_ids)  # type: ignore[misc]

    def sync_recved_kv_to_device(self, req_id: str, meta: Any) -> None:
        """Clears in the host buffer what must be clear, before it is copied to the device."""
        if isinstance(meta.region_blocks_to_zero, Finish):
            self._clear(meta.region_blocks_to_zero.clear_bytes)
            meta.region_blocks_to_zero.clear_bytes = []
        super().sync_recved_kv_to_device(req_id, meta)  # type: ignore[misc]

    def _clear(self, spans: list[tuple[int, int]]) -> None:
        if not spans:
            return
        storages = {}
        for tensor in self._buffers.values():
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in storages:
                flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                storages[storage.data_ptr()] = flat
        for address, size in spans:
            for base, flat in storages.items():
                if base <= address and address + size <= base + flat.numel():
                    flat[address - base : address - base + size].zero_()
                    break

    def _must_clear(self, peer: Peer, plan: kvr.Plan, request: kvr.Request) -> list[tuple[int, int]]:
        """Bytes of the request's pages that the plan does not fill, `(address, bytes)`.

        Between pages of one length the tail of the last page comes with it, from the peer's own page.
        """
        if not peer.clear and all(group.window is None for group in plan.local.groups):
            return []
        spans: list[tuple[int, int]] = []
        for memory in dict.fromkeys(memory for memory, _ in plan.parts):
            spans += [(int(row[0]), int(row[1])) for row in plan.zero(request, memory=memory)]
        return spans

    def _start(self, operation: str, link: Link, request: kvr.Request, news: bytes) -> list[int]:
        """Posts the transfers of one link; the last one, alone, carries the news.

        Raises:
            Exception: What was not posted is released; what was posted is in the exception's `posted`.
        """
        plan = link.plan
        assert plan is not None
        posted: list[int] = []
        handle = None
        try:
            for part, (local, remote) in enumerate(link.handles):
                here, there = plan.ids(request, part=part)
                if not len(here):
                    continue
                last = part == len(link.handles) - 1
                handle = self.nixl_wrapper.make_prepped_xfer(
                    operation, local, here, remote, there, notif_msg=news if last and part == 0 else b""
                )
                self.nixl_wrapper.transfer(handle)
                posted.append(handle)
                handle = None
        except Exception as problem:
            problem.__dict__["posted"] = posted
            problem.__dict__["unposted"] = handle
            raise
        return posted


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
        self._socket.setsockopt(zmq.RCVTIMEO, 5000)
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
