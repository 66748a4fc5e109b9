"""The pull worker: reads a request's blocks from a peer, by plan."""

from __future__ import annotations

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

import kvreshard as kvr
from kvreshard.vllm.peers import Link, Peer
from kvreshard.vllm.requests import pulled
from kvreshard.vllm.worker import Finish, PlannedWorker


class PlannedPullWorker(PlannedWorker, NixlPullConnectorWorker):
    """vLLM's pull worker with planned reads."""

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
        mine = self.description.layout
        assert mine is not None
        return pulled(self, mine, peer.layouts[peer.edge_ranks[0]], meta)

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
        assert link.plan is not None
        news = self._news(meta, peer, rank)
        try:
            finish.clear_bytes += self._must_clear(peer, link.plan, request)
            posted = self._start("READ", link, request, news)
        except Exception as problem:
            self._recving_transfers[req_id] += problem.__dict__.get("posted", [])
            unposted = problem.__dict__.get("unposted")
            self._log_failure(
                "transfer_setup_failed", req_id, error=problem, dst_engine_id=peer.engine_id, remote_rank=rank
            )
            if not self._handle_failed_transfer(req_id, unposted, self._recv_failures) and unposted is not None:
                self._recving_transfers[req_id].append(unposted)
            return False
        self._recving_transfers[req_id] += posted
        if not posted:
            self._notify(req_id, meta, peer, rank)
        elif len(link.handles) > 1:
            # Several lists finish in any order: the news follows when all are done.
            self._pending_recv_notifs.setdefault(req_id, []).append((link.agent, news))
        return True
