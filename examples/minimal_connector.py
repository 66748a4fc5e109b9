"""A KV connector on the planner alone: kvreshard says which bytes go where, NIXL moves them, this file does the rest.

    python examples/minimal_connector.py

runs it: a prefill process holds 8 heads in token-major pages of 16, this process wants the last 4 of them, shuffled as
AITER reads them, in pages of 32. It shows what a connector must do and in which order. `kvreshard.nixl` does the same
with deadlines, lost peers, threads, device memory and several sources a request.
"""

from __future__ import annotations

import ctypes
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
from nixl import nixl_agent, nixl_agent_config

import kvreshard as kvr


class MinimalConnector:
    """Registers host memory, tells peers how its pages are built, reads requests, hears when it was read from."""

    def __init__(self, name: str, layout: kvr.RankLayout) -> None:
        self.layout = layout
        self.agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=False))
        for region in layout.regions:
            self.agent.register_memory([(region.base, region.bytes, region.device, "")], region.memory)
        self.plans: dict[str, kvr.Plan] = {}
        self.prepared: dict[tuple[str, int], tuple[object, object]] = {}
        self.reads: dict[str, tuple[str, list[object], list[np.ndarray]]] = {}

    def metadata(self) -> bytes:
        """What `connect` wants: the layout, its length before it, and NIXL's own metadata."""
        layout = self.layout.to_bytes()
        return len(layout).to_bytes(4, "big") + layout + self.agent.get_agent_metadata()

    def connect(self, metadata: bytes) -> str:
        """Loads a peer and plans with it, so that a peer that does not fit is refused here and not with a request."""
        end = 4 + int.from_bytes(metadata[:4], "big")
        plan = kvr.plan(self.layout, kvr.RankLayout.from_bytes(metadata[4:end]))
        peer = self.agent.add_remote_agent(metadata[end:]).decode()
        self.plans[peer] = plan
        for part, (ours, theirs) in enumerate(plan.parts):
            local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", plan.local_rows(part=part), ours)
            remote = self.agent.prep_xfer_dlist(peer, plan.remote_rows(part=part), theirs)
            self.prepared[peer, part] = local, remote
        return peer

    def read(self, peer: str, request: kvr.Request, id: str) -> None:
        """Starts to read a request. Everything that can be refused is refused before the first byte moves."""
        plan, handles = self.plans[peer], []
        clear = [plan.zero(request, memory="DRAM")]
        for part, kinds in enumerate(plan.parts):
            exact = plan.lists(request, part=part)
            if not len(exact[0]):
                continue
            try:
                ids = plan.ids(request, part=part)
            except kvr.RequestError:  # The request begins inside a row; exact lists serve any interval.
                ids = None
            if ids is not None and len(ids[0]) <= len(exact[0]):
                local, remote = self.prepared[peer, part]
                handles.append(self.agent.make_prepped_xfer("READ", local, ids[0], remote, ids[1]))
            else:
                descriptors = [self.agent.get_xfer_descs(*side) for side in zip(exact, kinds, strict=True)]
                handles.append(self.agent.initialize_xfer("READ", *descriptors, peer))
        for handle in handles:
            self.agent.transfer(handle)
        self.reads[id] = peer, handles, clear

    def poll(self) -> tuple[list[str], list[str]]:
        """Requests that have arrived here, and those that a peer has read: only now may their pages be used again.

        A transfer that fails raises; its pages must not be used again before the peer is gone: NIXL stops nothing.
        """
        arrived = []
        for id, (peer, handles, clear) in list(self.reads.items()):
            while handles and self.agent.check_xfer_state(handles[0]) == "DONE":
                self.agent.release_xfer_handle(handles.pop(0))
            if handles:
                continue
            # The end may be rounded up to a row's end, so what no token covers is cleared after the transfer.
            for address, size, _ in np.concatenate(clear).tolist():
                ctypes.memset(address, 0, size)
            self.agent.send_notif(peer, id.encode())
            del self.reads[id]
            arrived.append(id)
        released = [id.decode() for ids in self.agent.get_new_notifs().values() for id in ids]
        return arrived, released


def rank(engine: str, memory: np.ndarray, page: kvr.PageFormat, tp: tuple[int, int]) -> kvr.RankLayout:
    """A rank with one layer of 8 heads in all, its pages one after the other."""
    pages = kvr.Segment(kvr.Region(memory.ctypes.data, memory.nbytes), page, pages=memory.nbytes // page.page_bytes)
    return kvr.RankLayout(engine=engine, tp=tp, layers=[kvr.Layer("layers.0", [pages], totals={"h": 8})])


def prefill(pipe: Connection) -> None:
    """Holds K = 1000 * token + head in channel 0 of every head, and polls until its pages have been read."""
    page = kvr.PageFormat("n h k[d] v[d]", h=8, n=16, d=64, dtype="i16")
    memory = np.zeros((8, 16, 8, 128), np.int16)
    blocks = [5, 1, 6]
    for token in range(40):
        memory[blocks[token // 16], token % 16, :, 0] = 1000 * (token % 30) + np.arange(8)
    connector = MinimalConnector("prefill", rank("prefill", memory, page, (0, 1)))
    pipe.send((connector.metadata(), blocks))
    while "request" not in connector.poll()[1]:
        pass
    pipe.send("released")


def main() -> None:
    """The decode rank."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=prefill, args=(theirs,))
    process.start()
    page = kvr.PageFormat("k[h d/8 n d%8] v[h n/8 d n%8]", h=4, n=32, d=64, dtype="i16")
    memory = np.full((4, page.page_bytes // 2), -1, np.int16)
    connector = MinimalConnector("decode", rank("decode", memory, page, (1, 2)))
    metadata, remote_blocks = ours.recv()
    peer, blocks = connector.connect(metadata), [3, 0]
    connector.read(peer, kvr.Request((0, 40), [kvr.Blocks(blocks)], [kvr.Blocks(remote_blocks)]), "request")
    while not connector.poll()[0]:
        pass
    for token in range(64):
        for head in range(4):
            found = memory[blocks[token // 32], page.offset("k", h=head, n=token % 32, d=0) // 2]
            assert found == (1000 * (token % 30) + 4 + head if token < 40 else 0), (token, head, found)
    assert ours.recv() == "released"
    process.join()
    print(f"40 tokens of 4 heads in {connector.plans[peer].runs_per_page} runs a page, every one in its place")


if __name__ == "__main__":
    main()
