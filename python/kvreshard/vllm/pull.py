"""The pull worker: reads a request's blocks from a peer, by plan."""

from __future__ import annotations

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

import kvreshard as kvr
from kvreshard.vllm.landing import Chunk, Job, Landing, Landings, exact
from kvreshard.vllm.peers import Link, Peer
from kvreshard.vllm.requests import pulled
from kvreshard.vllm.state import FirstUse
from kvreshard.vllm.worker import Finish, PlannedWorker, Posting


# `transfer_topo` is a variable of vLLM's worker, and a property of ours.
class PlannedPullWorker(PlannedWorker, NixlPullConnectorWorker):  # pyright: ignore[reportIncompatibleVariableOverride]
    """vLLM's pull worker with planned reads."""

    # What is left of requests whose pages are landed.
    _jobs = FirstUse(dict[str, Job])

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        peer = self.peers.get(meta.remote.engine_id)
        if peer is None or not self._may_read(meta):
            # Handshakes, refusals and expiry are vLLM's, and so are peers that are not planned for.
            super()._read_blocks_for_req(req_id, meta)
            return
        self._engine_last_active[peer.engine_id] = time.perf_counter()
        if any(meta.local_block_ids):
            # Every worker must report the request, also one that reads nothing of it.
            self._recving_transfers.setdefault(req_id, [])
        finish = meta.region_blocks_to_zero = Finish()
        try:
            request = self._request(peer, meta)
        except kvr.Error as problem:
            self._log_failure("request_refused", req_id, error=problem, dst_engine_id=peer.engine_id)
            self._handle_failed_transfer(req_id, None, self._recv_failures)
            return
        if request is None:
            for rank in peer.ranks:
                self._notify(req_id, meta, peer, rank)
            if meta.awaiting_kvs:
                self._recving_transfers.setdefault(req_id, [])
            return
        for rank in peer.edge_ranks:
            if not self._read(req_id, meta, peer, rank, request, finish):
                return
        for rank in peer.notify_ranks:
            self._notify(req_id, meta, peer, rank)
        if self._jobs:
            self._read_chunks()

    def _may_read(self, meta: Any) -> bool:
        engine_id = meta.remote.engine_id
        generation = self._remote_registration_generations.get(engine_id, 0)
        expired = self._bidirectional_kv_xfer_enabled and self._is_turn2_read_expired(meta)
        return (
            engine_id in self._remote_agents
            and engine_id not in self._invalid_remote_engines
            and generation >= meta.remote.registration_generation
            and not expired
        )

    def _request(self, peer: Peer, meta: Any) -> kvr.Request | None:
        return pulled(self, peer.mine, peer.theirs, meta)

    def _news(self, meta: Any, peer: Peer, rank: int) -> bytes:
        return f"{meta.remote.request_id}:{peer.route.readers[rank]}".encode()

    def _notify(self, req_id: str, meta: Any, peer: Peer, rank: int) -> None:
        agent = self._remote_agents[peer.engine_id][(0, rank)]
        try:
            self.nixl_wrapper.send_notif(agent, notif_msg=self._news(meta, peer, rank))
        except Exception as problem:
            self._log_failure(
                "notification_failed",
                req_id,
                msg="the peer frees the request's blocks when its lease ends",
                error=problem,
                dst_engine_id=peer.engine_id,
                remote_rank=rank,
            )
            self.xfer_stats.record_failed_notification()

    def _read(self, req_id: str, meta: Any, peer: Peer, rank: int, request: kvr.Request, finish: Finish) -> bool:
        """Posts the reads from one rank; false when the request has failed."""
        link: Link = peer.links[rank]
        news = self._news(meta, peer, rank)
        plan = link.plan
        assert plan is not None
        posting = Posting()
        try:
            pairing = plan.pair(request)
            finish.clear_bytes += self._must_clear(plan, pairing)
            if isinstance(link.staged, Landing) and pairing.fits_rows:
                works = pairing.landed_chunks(link.staged.landed, self.staging.size)
                if works:
                    chunks = [Chunk(link.staged, work, link.agent) for work in works]
                    self._jobs.setdefault(req_id, Job()).waiting += chunks
                    self._pending_recv_notifs.setdefault(req_id, []).append((link.agent, news))
                else:
                    self._notify(req_id, meta, peer, rank)
                return True
            self._start("READ", link, pairing, news, posting)
        except Exception as problem:
            self._recving_transfers[req_id] += posting.posted
            unposted = posting.unposted
            self._log_failure(
                "transfer_setup_failed", req_id, error=problem, dst_engine_id=peer.engine_id, remote_rank=rank
            )
            if not self._handle_failed_transfer(req_id, unposted, self._recv_failures) and unposted is not None:
                self._recving_transfers[req_id].append(unposted)
            return False
        self._recving_transfers[req_id] += posting.posted
        if not posting.posted:
            self._notify(req_id, meta, peer, rank)
        elif len(plan.parts) > 1:
            # Several lists finish in any order: the news follows when all are done.
            self._pending_recv_notifs.setdefault(req_id, []).append((link.agent, news))
        return True

    def _rearranging(self) -> Landings:
        return Landings(self._buffers.values(), self.options.buffer_bytes)

    # Landing: chunks are read as staging buffers become free, and scattered as they arrive.

    def _read_chunks(self) -> None:
        """Reads waiting chunks, of the oldest request first, while there are free buffers."""
        for req_id, job in self._jobs.items():
            while job.waiting:
                buffer = self.staging.take()
                if buffer is None:
                    return
                chunk = job.waiting.pop(0)
                chunk.buffer = buffer
                handle = None
                try:
                    lists = chunk.work.reads(buffer.region.base, buffer.region.device)
                    memory = buffer.region.memory, chunk.landing.memory
                    handle = exact(self.nixl_wrapper, "READ", lists, memory, chunk.agent)
                    job.reading[handle] = chunk
                    self.nixl_wrapper.transfer(handle)
                    self._recving_transfers[req_id].append(handle)
                except Exception as problem:
                    self._log_failure("transfer_setup_failed", req_id, error=problem)
                    if handle is not None:
                        del job.reading[handle]
                    buffer.lost = handle is not None
                    self.staging.give(buffer)
                    job.waiting.clear()
                    if not self._handle_failed_transfer(req_id, handle, self._recv_failures) and handle is not None:
                        self._recving_transfers[req_id].append(handle)

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        """As vLLM's, but a request whose pages are landed is done when its last chunk is in its pages."""
        if transfers is not self._recving_transfers or not self._jobs:
            popped: tuple[set[str], set[str]] = super()._pop_done_transfers(transfers)
            return popped
        done, failed = super()._pop_done_transfers(transfers)
        for req_id, job in self._jobs.items():
            bad = req_id in failed or req_id in self._recv_failures
            if bad:
                job.waiting.clear()
            for handle in [handle for handle in job.reading if handle not in transfers.get(req_id, [])]:
                self._landed(job.reading.pop(handle), bad)
        self._read_chunks()
        for req_id in list(self._jobs):
            if self._jobs[req_id].waiting or self._jobs[req_id].reading:
                transfers.setdefault(req_id, [])
                done.discard(req_id)
            else:
                del self._jobs[req_id]
        if not self._jobs:
            self._replace_lost()
        return done, failed

    def _landed(self, chunk: Chunk, bad: bool) -> None:
        buffer = chunk.buffer
        assert buffer is not None
        if bad:
            # Its peer may still be writing to the buffer: it must not be read into again.
            buffer.lost = True
        else:
            chunk.landing.scatter(chunk.work, buffer)
        self.staging.give(buffer)
