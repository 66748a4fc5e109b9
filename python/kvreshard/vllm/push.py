"""The push worker: writes a request's blocks into a peer's pages, by plan, and what the peer tells it for that."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker

import kvreshard as kvr
from kvreshard.vllm.peers import Direction, Peer, plan_of
from kvreshard.vllm.requests import Shape, build
from kvreshard.vllm.worker import Finish, PlannedWorker

# The registration's field for the tokens that the destination wants and has. Only peers with a tag are sent it.
_FIELD = "kvreshard"


def state_wanted(scheduler: Any, request: Any, num_external_tokens: int) -> None:
    """Adds to a request's new registration the tokens wanted, of which the first ones are there already.

    vLLM's registration has block ids alone, which the source can only count from their end.
    """
    registration = scheduler._push_pending_registrations.get(request.request_id)
    if registration is not None and _FIELD not in registration:
        end = scheduler._get_remote_prefill_token_count(len(request.prompt_token_ids or []))
        registration[_FIELD] = {"tokens": end, "first": max(0, end - num_external_tokens)}


class PlannedPushWorker(PlannedWorker, NixlPushConnectorWorker):
    """vLLM's push worker with planned writes."""

    _DIRECTION: ClassVar[Direction] = "write"

    # Destination: what it asked for.

    def start_load_kv(self, metadata: Any) -> None:
        """Keeps what each registration asks for, to know what the writes will leave unfilled."""
        for req_id, registration in metadata.push_registrations.items():
            wanted = registration.get(_FIELD)
            if wanted is not None:
                self._wanted[req_id] = wanted
        super().start_load_kv(metadata)

    @property
    def _wanted(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.__dict__.setdefault("_registered_tokens", {})
        return found

    @property
    def _sources(self) -> dict[str, tuple[Peer, kvr.RankLayout]]:
        """Engines that push to this one: how they are met, and one of their ranks."""
        found: dict[str, tuple[Peer, kvr.RankLayout]] = self.__dict__.setdefault("_pushing", {})
        return found

    def _forget(self, engine_id: str) -> None:
        self._sources.pop(engine_id, None)
        super()._forget(engine_id)

    def _nixl_handshake(self, *args: Any, **kwargs: Any) -> tuple[dict[tuple[int, int], str], float]:
        # A consumer never reads or writes a producer's memory; also its heartbeats only bring news.
        if self.kv_transfer_config.kv_role == "kv_consumer":
            args, kwargs = args[:6], {**kwargs, "notif_agents_only": True}
        return super()._nixl_handshake(*args, **kwargs)

    def _add_notif_only_remote_agent(self, metadata: Any, remote_tp_size: int, remote_dcp_size: int = 1) -> str:
        """Loads a producer's agent for news, after checking that what it will write fits."""
        rank = self._rank_in(metadata)
        judged = None if rank is None else self._judge(metadata, (rank, remote_tp_size), direction="read")
        if judged is not None:
            peer, theirs = judged
            mine = self.description.layout
            assert mine is not None
            plan_of(peer, mine, theirs, "read")
            self._sources[peer.engine_id] = judged
        agent: str = super()._add_notif_only_remote_agent(metadata, remote_tp_size, remote_dcp_size)
        return agent

    @staticmethod
    def _rank_in(metadata: Any) -> int | None:
        """The TP rank that the metadata's tag is of; vLLM does not say here."""
        from kvreshard.vllm import tag as tags

        encoded = getattr(metadata, "kvreshard", None)
        tag = None if encoded is None else tags.decode(encoded)
        if tag is None or tag.layout is None:
            return None
        return kvr.RankLayout.from_bytes(tag.layout).tp[0]

    def _do_send_reg_notif(self, req_id: str, reg_data: dict[str, Any]) -> None:
        if reg_data["remote_engine_id"] not in self._sources:
            reg_data = {name: value for name, value in reg_data.items() if name != _FIELD}
        super()._do_send_reg_notif(req_id, reg_data)

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        done, failed = super()._pop_done_transfers(transfers)
        if transfers is self._recving_transfers:
            for req_id in done:
                self._finish_written(req_id)
        return done, failed

    def _finish_written(self, req_id: str) -> None:
        wanted = self._wanted.pop(req_id, None)
        meta = self._recving_metadata.get(req_id)
        if meta is None or meta.remote is None:
            return
        source = self._sources.get(meta.remote.engine_id)
        if source is None:
            return
        finish = meta.region_blocks_to_zero = Finish()
        peer, theirs = source
        mine = self.description.layout
        if not peer.clear or wanted is None or mine is None:
            return
        # Which blocks the producer read does not matter to what it left unfilled here, only how many there are.
        read = [list(range(-(-wanted["tokens"] // max(1, size)))) for size in peer.theirs.blocks]
        plan = kvr.plan(mine, theirs, direction="read")
        built = self._paired(peer.mine, meta.local_block_ids, peer.theirs, read, wanted)
        if built is not None:
            tokens, here, there = built
            finish.clear_bytes += self._must_clear(peer, plan, kvr.Request(tokens=tokens, local=here, remote=there))

    @staticmethod
    def _paired(
        destination: Shape, target_ids: Any, source: Shape, source_ids: Any, wanted: dict[str, Any]
    ) -> tuple[tuple[int, int], list[kvr.Blocks], list[kvr.Blocks]] | None:
        firsts: list[int | None] = [
            None if windowed else wanted["first"] // max(1, size) * size
            for size, windowed in zip(destination.blocks, destination.windowed, strict=True)
        ]
        return build((destination, target_ids, firsts), (source, source_ids), wanted["tokens"])

    # Source: what it writes.

    def _do_start_push_kv(self, request_id: str, local_block_ids: Any, registration_data: dict[str, Any]) -> None:
        self.__dict__.setdefault("_asked", {})[request_id] = registration_data.get(_FIELD)
        super()._do_start_push_kv(request_id, local_block_ids, registration_data)

    def _xfer_blocks_for_req(self, req_id: str, meta: Any) -> None:
        peer = self.peers.get(meta.remote.engine_id)
        wanted = self.__dict__.setdefault("_asked", {}).pop(req_id, None)
        if peer is None:
            super()._xfer_blocks_for_req(req_id, meta)
            return
        handles: list[int] = []
        try:
            for rank in peer.edge_ranks:
                link = peer.links[rank]
                assert link.plan is not None
                request = self._write_request(peer, meta, wanted)
                if request is None:
                    continue
                # The destination divides this number by its TP size to know how many ranks write to it.
                writers = peer.route.writers[rank] * peer.size
                news = f"{meta.remote.request_id}:{writers}".encode()
                handles += self._start("WRITE", link, request, news)
        except Exception as problem:
            handles += problem.__dict__.get("posted", [])
            unposted = problem.__dict__.get("unposted")
            self._log_failure("transfer_setup_failed", req_id, error=problem, dst_engine_id=peer.engine_id)
            with self._sending_transfers_lock:
                self._send_failures.add(req_id)
            if not self._handle_failed_transfer(req_id, unposted) and unposted is not None:
                handles.append(unposted)
        # A rank that nobody needs has nothing to write and is done at once.
        with self._sending_transfers_lock:
            self._sending_transfers[req_id].extend(handles)

    def _write_request(self, peer: Peer, meta: Any, wanted: dict[str, Any] | None) -> kvr.Request | None:
        source, target = meta.local_block_ids, meta.remote.block_ids
        if wanted is not None:
            built = self._paired(peer.theirs, target, peer.mine, source, wanted)
        else:
            sizes = peer.mine.blocks, peer.theirs.blocks
            if sizes[0] != sizes[1]:
                raise kvr.RequestError(
                    f"blocks of {sizes[0]} and {sizes[1]} tokens, and the destination does not say which it wants"
                )
            built = build((peer.theirs, target, [None] * len(target)), (peer.mine, source), None)
        if built is None:
            return None
        tokens, there, here = built
        return kvr.Request(tokens=tokens, local=here, remote=there)
