"""The push worker: writes a request's blocks into a peer's pages, by plan, and what the peer tells it for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker

import kvreshard as kvr
from kvreshard.vllm.landing import exact
from kvreshard.vllm.peers import Direction, Judged, Peer, pair_of
from kvreshard.vllm.requests import Shape, build
from kvreshard.vllm.shaping import Job, Shaping, Shapings
from kvreshard.vllm.state import FirstUse
from kvreshard.vllm.worker import Finish, PlannedWorker, Posting

# The registration's field for the tokens that the destination wants and has. Only peers with a tag are sent it.
_FIELD = "kvreshard"

# In the place of a request's id in the writer's queue: a staging buffer has become free.
_GO_ON = ""


def state_wanted(scheduler: Any, request: Any, num_external_tokens: int) -> None:
    """Adds to a request's new registration the tokens wanted, of which the first ones are there already.

    vLLM's registration has block ids alone, which the source can only count from their end.
    """
    registration = scheduler._push_pending_registrations.get(request.request_id)
    if registration is not None and _FIELD not in registration:
        end = scheduler._get_remote_prefill_token_count(len(request.prompt_token_ids or []))
        registration[_FIELD] = {"tokens": end, "first": max(0, end - num_external_tokens)}


@dataclass(frozen=True)
class Source:
    """A rank that pushes to this one.

    Attributes:
        peer: Its engine.
        plan: What it could write here, seen as a read: what of a request's pages it cannot fill.
    """

    peer: Peer
    plan: kvr.Plan


# `transfer_topo` is a variable of vLLM's worker, and a property of ours.
class PlannedPushWorker(PlannedWorker, NixlPushConnectorWorker):  # pyright: ignore[reportIncompatibleVariableOverride]
    """vLLM's push worker with planned writes."""

    _DIRECTION: ClassVar[Direction] = "write"

    # Destination: by request, the tokens that its registration asks for.
    _wanted = FirstUse(dict[str, dict[str, Any]])

    # Destination: of each engine that pushes to this one, and each of its pipeline stages, by its layers, one rank.
    _sources = FirstUse(dict[str, dict[frozenset[str], Source]])

    # Source: by request, what its registration asks for.
    _asked = FirstUse(dict[str, Any])

    # Source: what is told when all of a request's several transfers are done, and what is left of requests whose pages
    # are shaped; both under the lock of the transfers being sent.
    _late_news = FirstUse(dict[str, list[tuple[str, bytes]]])
    _jobs = FirstUse(dict[str, Job])

    # Destination: what it asked for.

    def start_load_kv(self, metadata: Any) -> None:
        """Keeps what each registration asks for, to know what the writes will leave unfilled."""
        for req_id, registration in metadata.push_registrations.items():
            wanted = registration.get(_FIELD)
            if wanted is not None:
                self._wanted[req_id] = wanted
        super().start_load_kv(metadata)

    def _forget(self, engine_id: str) -> None:
        self._sources.pop(engine_id, None)
        super()._forget(engine_id)

    def _nixl_handshake(self, *args: Any, **kwargs: Any) -> tuple[dict[tuple[int, int], str], float]:
        # A consumer never reads or writes a producer's memory; also its heartbeats only bring news.
        if self.kv_transfer_config.kv_role == "kv_consumer":
            args, kwargs = args[:6], {**kwargs, "notif_agents_only": True}
        return super()._nixl_handshake(*args, **kwargs)

    def _expect(self, judged: Judged | None) -> None:
        """Keeps what a producer's rank will write, after checking that it fits."""
        if judged is None or not judged.peer.tagged:
            return
        pair_of(judged.peer, judged.mine, judged.theirs, "read")
        layers = frozenset(layer.name for layer in judged.theirs.layers)
        plan = kvr.plan(judged.mine, judged.theirs, direction="read")
        self._sources.setdefault(judged.peer.engine_id, {})[layers] = Source(judged.peer, plan)

    def _do_send_reg_notif(self, req_id: str, reg_data: dict[str, Any]) -> None:
        if reg_data["remote_engine_id"] not in self._sources:
            reg_data = {name: value for name, value in reg_data.items() if name != _FIELD}
        super()._do_send_reg_notif(req_id, reg_data)

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        done, failed = super()._pop_done_transfers(transfers)
        if transfers is self._recving_transfers:
            for req_id in done:
                self._finish_written(req_id)
        else:
            if self._jobs:
                self._parts_written(transfers, done, failed)
            for req_id in done:
                self._tell_late(req_id, failed=req_id in failed or req_id in self._send_failures)
        return done, failed

    def _tell_late(self, req_id: str, *, failed: bool) -> None:
        for agent, news in self._late_news.pop(req_id, []):
            if failed:
                continue
            try:
                self.nixl_wrapper.send_notif(agent, notif_msg=news)
            except Exception as problem:
                self._log_failure("notification_failed", req_id, error=problem)
                self.xfer_stats.record_failed_notification()

    def _finish_written(self, req_id: str) -> None:
        wanted = self._wanted.pop(req_id, None)
        meta = self._recving_metadata.get(req_id)
        if meta is None or meta.remote is None:
            return
        stages = self._sources.get(meta.remote.engine_id)
        if stages is None:
            return
        finish = meta.region_blocks_to_zero = Finish()
        for source in list(stages.values()):
            peer, plan = source.peer, source.plan
            if plan.pages_alike or wanted is None:
                continue
            # Which blocks the producer read does not matter to what it left unfilled here, only how many there are.
            read = [list(range(-(-wanted["tokens"] // max(1, size)))) for size in peer.theirs.blocks]
            built = self._paired(peer.mine, meta.local_block_ids, peer.theirs, read, wanted)
            if built is not None:
                tokens, here, there = built
                pairing = plan.pair(kvr.Request(tokens=tokens, local=here, remote=there))
                finish.clear_bytes += self._must_clear(plan, pairing)

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
        if request_id == _GO_ON:
            self._write_parts()
            return
        self._asked[request_id] = registration_data.get(_FIELD)
        super()._do_start_push_kv(request_id, local_block_ids, registration_data)

    def _xfer_blocks_for_req(self, req_id: str, meta: Any) -> None:
        peer = self.peers.get(meta.remote.engine_id)
        wanted = self._asked.pop(req_id, None)
        if peer is None:
            super()._xfer_blocks_for_req(req_id, meta)
            return
        posting = Posting()
        late: list[tuple[str, bytes]] = []
        job = Job()
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
                pairing = link.plan.pair(request)
                if isinstance(link.staged, Shaping) and pairing.fits_rows:
                    job.waiting += link.staged.parts(request, link.agent, news)
                    continue
                self._start("WRITE", link, pairing, news, posting)
                if len(link.plan.parts) > 1:
                    late.append((link.agent, news))
        except Exception as problem:
            unposted = posting.unposted
            job.waiting.clear()
            self._log_failure("transfer_setup_failed", req_id, error=problem, dst_engine_id=peer.engine_id)
            with self._sending_transfers_lock:
                self._send_failures.add(req_id)
            if not self._handle_failed_transfer(req_id, unposted) and unposted is not None:
                posting.posted.append(unposted)
        # A rank that nobody needs has nothing to write and is done at once.
        with self._sending_transfers_lock:
            self._sending_transfers[req_id].extend(posting.posted)
            if late:
                self._late_news[req_id] = late
            if job.waiting:
                self._jobs[req_id] = job
        if job.waiting:
            self._write_parts(req_id)

    # Shaping: parts are rebuilt as staging buffers become free, and written from there.

    def _rearranging(self) -> Shapings:
        return Shapings(self.options.buffer_bytes)

    def _write_parts(self, new: str | None = None) -> None:
        """Shapes and writes waiting parts, of the oldest request first, while there are free buffers."""
        with self._sending_transfers_lock:
            jobs = dict(self._jobs)
        for req_id, job in jobs.items():
            if req_id != new and req_id not in self._reqs_to_send and req_id not in self._reqs_to_process:
                # Its lease has ended, and its pages may be in other hands: what was not gathered must not be.
                job.waiting.clear()
            while (part := job.next()) is not None:
                buffer = self.staging.take()
                if buffer is None:
                    return
                with self._sending_transfers_lock:
                    job.busy = True
                    job.waiting.remove(part)
                handle, written = None, False
                try:
                    part.shaping.shape(part, buffer, self._buffers.values(), self.staging.scratch)
                    lists, memory = part.shaping.lists(part, buffer), part.shaping.memory(buffer)
                    part.buffer = buffer
                    handle = exact(self.nixl_wrapper, "WRITE", lists, memory, part.agent, part.news)
                    self.nixl_wrapper.transfer(handle)
                    written = True
                except Exception as problem:
                    self._log_failure("transfer_setup_failed", req_id, error=problem)
                with self._sending_transfers_lock:
                    job.busy = False
                    if written and handle is not None:
                        job.writing[handle] = part
                        self._sending_transfers[req_id].append(handle)
                        continue
                    job.waiting.clear()
                    self._send_failures.add(req_id)
                    if not self._handle_failed_transfer(req_id, handle) and handle is not None:
                        self._sending_transfers[req_id].append(handle)
                buffer.lost = handle is not None
                self.staging.give(buffer)

    def _parts_written(self, transfers: dict[str, list[int]], done: set[str], failed: set[str]) -> None:
        """Frees the buffers of parts that are written; a request is done when its last part is."""
        more = False
        for req_id, job in list(self._jobs.items()):
            bad = req_id in failed or req_id in self._send_failures
            if bad:
                job.waiting.clear()
            for handle in [handle for handle in job.writing if handle not in transfers.get(req_id, [])]:
                buffer = job.writing.pop(handle).buffer
                assert buffer is not None
                # NIXL may still read the memory of a transfer that failed.
                buffer.lost = bad
                self.staging.give(buffer)
            if job.over:
                del self._jobs[req_id]
            else:
                transfers.setdefault(req_id, [])
                done.discard(req_id)
                more = more or bool(job.waiting)
        if not self._jobs:
            self._replace_lost()
        if more:
            self._deferred_push_inbox.put((_GO_ON, [], {}))
            self._push_writer_wake.set()

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
