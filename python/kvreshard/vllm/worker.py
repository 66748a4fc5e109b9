"""What the pull and the push worker have in common: what they say of their memory, and the plans they prepare.

These are mixed into vLLM's workers. Scheduling, leases and heartbeats stay vLLM's.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from vllm.distributed.kv_transfer.kv_connector.utils import EngineTransferInfo, TransferTopology
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlAgentMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import TPMapping
from vllm.logger import init_logger

import kvreshard as kvr
from kvreshard.vllm import tag as tags
from kvreshard.vllm.agents import locked_agents
from kvreshard.vllm.describe import Description, describe
from kvreshard.vllm.handshake import Handshakes
from kvreshard.vllm.landing import exact
from kvreshard.vllm.options import Options
from kvreshard.vllm.peers import Judged, Link, Local, pair_of
from kvreshard.vllm.rearranging import Rearranging, choose
from kvreshard.vllm.staging import Staging
from kvreshard.vllm.state import FirstUse
from kvreshard.vllm.topology import PlannedTopology

logger = init_logger(f"vllm.{__name__}")  # Below vLLM's own, whose handler and level it takes.


class Finish(list[list[int]]):
    """What is left to do when a request's transfers are done, in the place where vLLM keeps blocks to clear."""

    def __init__(self) -> None:
        super().__init__()
        self.clear_bytes: list[tuple[int, int]] = []


@dataclass
class Posting:
    """Transfers of one link.

    Attributes:
        posted: Those under way.
        unposted: The one that was made, but whose posting failed.
    """

    posted: list[int] = field(default_factory=list)
    unposted: int | None = None


class PlannedWorker(Handshakes):
    """Planned transfers for a NIXL connector worker of vLLM; stands before it in a class's bases."""

    # vLLM's own, as far as used here.
    engine_id: str
    vllm_config: Any
    kv_cache_config: Any
    kv_transfer_config: Any
    nixl_wrapper: Any
    xfer_handshake_metadata: Any
    tp_mappings: dict[str, Any]
    dst_num_blocks: dict[str, int]
    _remote_agents: dict[str, dict[tuple[int, int], str]]
    _group_spec_types: tuple[Any, ...]

    # Lists of our own memory, by their plan's digest.
    _locals = FirstUse(dict[str, Local])

    # Held while peers and what is prepared for them change.
    _plan_lock = FirstUse(threading.RLock)

    # How often the caches were registered anew.
    _generation = 0

    _staging: Staging | None = None

    # Staging memory of which peers may still read or write every part.
    _lost_staging = FirstUse(list[Staging])

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        with locked_agents():
            super().__init__(vllm_config, engine_id, kv_cache_config)  # type: ignore[call-arg]
        self.options = Options.read(vllm_config.kv_transfer_config.kv_connector_extra_config)

    @property
    def transfer_topo(self) -> Any:
        """vLLM's topology, which leaves the engines that are planned for to the planner."""
        return self._topology

    @transfer_topo.setter
    def transfer_topo(self, made: Any) -> None:
        self._topology = PlannedTopology.adopt(made) if type(made) is TransferTopology else made

    # What this rank says of itself.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Registers with vLLM's own code, then says what was registered."""
        super().register_kv_caches(kv_caches)  # type: ignore[misc]
        self._describe(self._generation)

    def restore_kv_caches(self) -> None:
        """Registers again after a sleep: the tag stays, of a new generation, and peers prepare anew."""
        asleep = self._kv_unregistered  # type: ignore[attr-defined]
        super().restore_kv_caches()  # type: ignore[misc]
        if asleep:
            self._describe(self._generation + 1)

    def _describe(self, generation: int) -> None:
        self._generation = generation
        try:
            found = describe(self, self._buffers, self.options, generation)
            # Worked out now, while no request waits for it.
            _ = found.outline
        except kvr.Error as problem:
            logger.warning("kvreshard: these caches have no layout that a peer could plan for: %s", problem)
            found = Description(unknown={"layout": str(problem)})
        self.description = found
        mode = self._TRANSFER_MODE  # type: ignore[attr-defined]
        published = self.compat_hash
        if published is None or self.xfer_handshake_metadata is None:
            return
        hashes = self._hashes = self._hashes or tags.Hashes.of(self.vllm_config, published, mode)
        # Pages that no stock peer may read go under a hash that no stock peer accepts; so do unknown ones, unless the
        # caller answers for them.
        answered = found.layout is None and self.options.assume_untagged == "standard"
        self.compat_hash = hashes.stock if found.standard or answered else hashes.own
        metadata = msgspec.msgpack.decode(self.xfer_handshake_metadata.agent_metadata_bytes, type=NixlAgentMetadata)
        tag = tags.encode(hashes.factors, found.layout, standard=found.standard, unknown=found.why_unknown)
        encoded = msgspec.msgpack.encode(tags.attach(metadata, tag))
        self.xfer_handshake_metadata.agent_metadata_bytes = encoded
        self.xfer_handshake_metadata.compatibility_hash = self.compat_hash

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
        judged = self._judged(nixl_agent_meta, (remote_tp_rank, remote_tp_size))
        if judged is None:
            agent: str = super().add_remote_agent(nixl_agent_meta, remote_tp_rank, remote_tp_size, remote_dcp_size)
            return agent
        with self._plan_lock:
            return self._link(judged, nixl_agent_meta)

    def _link(self, judged: Judged, metadata: Any) -> str:
        peer, mine, theirs = judged.peer, judged.mine, judged.theirs
        rank = theirs.tp[0]
        pair = pair_of(peer, mine, theirs, self._DIRECTION)
        plan = staged = None
        if pair is not None:
            plan = pair.plan
            staged = choose(pair, (peer.mine, peer.theirs), self.options, self._rearranging())
        agent: str = self.nixl_wrapper.add_remote_agent(metadata.agent_metadata)
        link = Link(agent)
        try:
            link.plan, link.staged = plan, staged
            if plan is not None and staged is None:
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
            "news only"
            if plan is None
            else f"{plan.runs_per_page} runs of {plan.bytes_per_run} bytes a page"
            + ("" if staged is None else ", rearranged in staging memory"),
        )
        return agent

    @abstractmethod
    def _rearranging(self) -> Rearranging:
        """How this worker rearranges pages in staging memory."""

    @property
    def _buffers(self) -> dict[str, torch.Tensor]:
        """The tensors that NIXL reads and writes, by layer."""
        buffers: dict[str, torch.Tensor] = (
            self.host_xfer_buffers or self.device_kv_caches  # type: ignore[attr-defined]
        )
        return buffers

    @property
    def staging(self) -> Staging:
        """Where pages are rearranged; made when first needed."""
        if self._staging is None:
            self._staging = Staging(
                self.nixl_wrapper,
                self.nixl_backends,  # type: ignore[attr-defined]
                next(iter(self._buffers.values())).device,
                self.nixl_memory_type,  # type: ignore[attr-defined]
                self.options,
            )
        return self._staging

    def _replace_lost(self) -> None:
        """Begins with new buffers when next needed, where all are lost: peers may still read or write those.

        Looks without making any: another thread may be about to.
        """
        if self._staging is not None and self._staging.exhausted:
            self._lost_staging.append(self._staging)
            self._staging = None

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
        link.prepared = True
        for part, (_, memory) in enumerate(plan.parts):
            rows = plan.remote_rows(part=part)
            remote = self.nixl_wrapper.prep_xfer_dlist(link.agent, rows, mem_type=memory)
            link.handles.append((local.handles[part], remote))

    def _release(self, link: Link) -> None:
        for _, remote in link.handles:
            self.nixl_wrapper.release_dlist_handle(remote)
        plan, prepared = link.plan, link.prepared
        link.plan, link.staged, link.handles, link.prepared = None, None, [], False
        local = self._locals.get(plan.digest) if plan is not None and prepared else None
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
        if self._staging is not None:
            self._staging.close()
            self._staging = None
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

    def _must_clear(self, plan: kvr.Plan, pairing: kvr.Pairing) -> list[tuple[int, int]]:
        """Bytes of the request's pages that the plan does not fill, `(address, bytes)`.

        Between pages of one length the tail of the last page comes with it, from the peer's own page.
        """
        if plan.pages_alike and all(group.window is None for group in plan.local.groups):
            return []
        kinds = {region.memory: region for region in plan.local.regions}
        return [(int(row[0]), int(row[1])) for one in kinds.values() for row in pairing.zero(memory=one.memory)]

    def _start(self, operation: str, link: Link, pairing: kvr.Pairing, news: bytes, posting: Posting) -> None:
        """Posts the transfers of one link. The news goes with it where there is one; else it is to follow the last.

        Args:
            operation: `READ` or `WRITE`.
            link: The link.
            pairing: What of its plan is moved.
            news: What the peer is told.
            posting: Where the transfers are noted, also when one of them fails.
        """
        plan = link.plan
        assert plan is not None
        parts = plan.parts
        news = news if len(parts) == 1 else b""
        for part, memory in enumerate(parts):
            if link.handles and pairing.fits_rows:
                here, there = pairing.ids(part=part)
                if not len(here):
                    continue
                local, remote = link.handles[part]
                handle = self.nixl_wrapper.make_prepped_xfer(operation, local, here, remote, there, notif_msg=news)
            else:
                lists = pairing.lists(part=part)
                if not len(lists[0]):
                    continue
                handle = exact(self.nixl_wrapper, operation, lists, memory, link.agent, news)
            posting.unposted = handle
            self.nixl_wrapper.transfer(handle)
            posting.unposted = None
            posting.posted.append(handle)
