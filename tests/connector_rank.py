"""A rank in a process of its own, with a connector and real NIXL, driven through a pipe.

The process polls its connector between commands, as an engine would, so that it answers peers without NIXL's thread.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

Bytes = npt.NDArray[np.uint8]

TIMEOUT = 30.0


@dataclass(frozen=True)
class Spec:
    """What a rank holds: `layers` layers of `pages` pages of `notation`, one allocation a layer. `options` are its
    connector's. With `shared`, the path of a file, its memory is that file, which the parent can look into.
    """

    name: str
    engine: str = "prefill"
    notation: str = "h n k[d] v[d]"
    heads: int = 8
    total_heads: int = 8
    tokens: int = 16
    size: int = 32
    layers: int = 2
    pages: int = 16
    tp: tuple[int, int] = (0, 1)
    one_allocation: bool = False
    device: str = "cpu"
    shared: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def format(self) -> kvr.PageFormat:
        """The page format, 16-bit elements."""
        return kvr.PageFormat(self.notation, h=self.heads, n=self.tokens, d=self.size, dtype="bf16")

    def arrays(self, seed: int) -> list[Bytes]:
        """Pages of every layer, (pages, page bytes), filled from `seed`."""
        rng = np.random.default_rng(seed)
        shape = (self.layers, self.pages, self.format.page_bytes)
        whole = rng.integers(1, 256, shape, np.uint8)
        return list(whole) if self.one_allocation else [layer.copy() for layer in whole]

    def window(self) -> list[Bytes]:
        """Pages of every layer in the shared file, as they are now."""
        shape = (self.layers, self.pages, self.format.page_bytes)
        return list(np.memmap(self.shared, np.uint8, "r+", shape=shape))


def placed(spec: Spec, arrays: list[Bytes]) -> list[Any]:
    """The arrays as they are, in the shared file, or as tensors on the spec's device."""
    if spec.shared:
        np.concatenate(arrays).tofile(spec.shared)
        return list(spec.window())
    if spec.device == "cpu":
        return list(arrays)
    import torch

    return [torch.from_numpy(array).to(spec.device) for array in arrays]


def host(pages: Any) -> Bytes:
    """A copy in host memory."""
    copy: Bytes = np.array(pages if isinstance(pages, np.ndarray) else pages.cpu().numpy())
    return copy


def publish(connector: Any, spec: Spec, arrays: Sequence[Any]) -> kvr.RankLayout:
    """Registers arrays or tensors as the spec's layers and publishes them."""
    totals = {"h": spec.total_heads}
    for number, array in enumerate(arrays):
        connector.add_layer(f"layers.{number}", array, spec.format, totals=totals)
    layout: kvr.RankLayout = connector.publish(engine=spec.engine, tp=spec.tp)
    return layout


def _serve(pipe: Connection, spec: Spec, seed: int) -> None:
    os.environ.update(spec.environment)
    from kvreshard.nixl import Connector, leases, notices
    from tests import marked

    connector = Connector(spec.name, **spec.options)
    raw: deque[bytes] = deque(maxlen=100)
    hear = connector._hear

    def listen(sender: str, message: bytes) -> bool:
        raw.append(message)
        return hear(sender, message)

    connector._hear = listen  # type: ignore[method-assign]
    arrays = placed(spec, spec.arrays(seed))
    publish(connector, spec, arrays)
    events: list[Any] = []
    reasons: list[str] = []
    peers: dict[str, Any] = {}

    def connect(data: bytes, options: dict[str, Any]) -> str:
        peer = connector.connect(data, **options)
        peers[peer.name] = peer
        return peer.name

    kept: list[Any] = []

    def republish(seed: int, keep: bool = False) -> bytes:
        """Other memory; `keep` leaves the old mapped. Without a seed: the same memory again, registered anew."""
        connector.deregister()
        if keep:
            kept.extend(arrays)
        if seed:
            arrays[:] = placed(spec, spec.arrays(seed))
        publish(connector, spec, arrays)
        return connector.metadata()

    def trap(size: int) -> int:
        """Registers memory that is then taken away; its address."""
        memory = mmap.mmap(-1, size)
        at = np.frombuffer(memory, np.uint8).ctypes.data
        connector.register((at, size, 0, "DRAM"))
        memory.close()
        return at

    commands: dict[str, Callable[..., Any]] = {
        "metadata": connector.metadata,
        "connect": connect,
        "republish": republish,
        "pages": lambda: [host(array) for array in arrays],
        "expect": lambda id, options: connector.expect(id, **options),
        "read": lambda peer, request, id, options={}: connector.read(
            peers[peer], to_request(request), id=id, **options
        ),
        "read_all": lambda sources, id, options: connector.read_all(
            [(peers[peer], to_request(request)) for peer, request in sources], id=id, **options
        ),
        "write": lambda peer, request, id, options={}: connector.write(
            peers[peer], to_request(request), id=id, **options
        ),
        "raw": lambda: list(raw),
        "reasons": lambda: reasons,
        "lease": lambda seconds: setattr(leases, "LEASE", seconds),
        "remember": lambda ids: setattr(notices, "MAX_EARLY", ids),
        "sleep": time.sleep,
        "trap": trap,
        "deregister": connector.deregister,
        "close": connector.close,
        "cancel": connector.cancel,
        "gone": connector.gone,
        "notify": lambda peer, id: connector.notify(peers[peer], id),
        "mark": lambda notation, blocks, seed: connector.mark(
            [kvr.Blocks(blocks)], marked.writer(arrays, spec, notation), seed=seed
        ),
        "expect_contacts": lambda notation, blocks: connector.expect_contacts(
            None if blocks is None else [kvr.Blocks(blocks)], marked.reader(arrays, spec, notation)
        ),
        "digests": lambda peer, blocks, tokens: connector.digests(peers[peer], [kvr.Blocks(blocks)], tokens),
    }
    while True:
        events += connector.poll()
        if not pipe.poll(0.0005):
            continue
        name, arguments = pipe.recv()
        if name == "quit":
            connector.close()
            pipe.send((True, None))
            return
        try:
            if name == "events":
                pipe.send((True, [(type(event).__name__, getattr(event, "id", "")) for event in events]))
                reasons += [repr(event.reason) for event in events if hasattr(event, "reason")]
                events.clear()
            else:
                pipe.send((True, commands[name](*arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


Plain = tuple[tuple[int, int], list[int], list[int], int, int]
"""A request of one group a side: tokens, local ids, remote ids, first token of either list."""


def to_request(plain: Plain) -> kvr.Request:
    """The request of kvreshard."""
    tokens, local, remote, first_local, first_remote = plain
    return kvr.Request(tokens, [kvr.Blocks(local, first_local)], [kvr.Blocks(remote, first_remote)])


def request(
    tokens: tuple[int, int], local: list[int], remote: list[int], first_local: int = 0, first_remote: int = 0
) -> kvr.Request:
    """A request of one group a side."""
    return to_request((tokens, local, remote, first_local, first_remote))


class Rank:
    """The parent's hold on a rank process."""

    def __init__(self, spec: Spec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, spec, seed), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, name: str, *arguments: Any, during: Any = None) -> Any:
        """Runs a command there; polls the connector `during` meanwhile, since the other side may need its progress."""
        self._pipe.send((name, arguments))
        waited = 0.0
        while not self._pipe.poll(0.001):
            waited += 0.001
            assert waited < TIMEOUT, f"rank {self.spec.name} does not answer"
            if during is not None:
                during.poll()
        good, result = self._pipe.recv()
        assert good, result
        return result

    def signal(self, number: int) -> None:
        """Sends a signal to the process."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Kills the process and waits until it is gone."""
        self.signal(signal.SIGKILL)
        self.process.join(TIMEOUT)

    def end(self) -> None:
        """Stops the process, in whatever state it is."""
        if self.process.is_alive():
            self.signal(signal.SIGCONT)
            self.kill()


@contextmanager
def running(*specs: Spec) -> Iterator[list[Rank]]:
    """Rank processes, seeded 100, 101, ...; gone afterwards."""
    ranks = [Rank(spec, 100 + number) for number, spec in enumerate(specs)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def wait(connector: Any, *wanted: str, timeout: float = TIMEOUT) -> list[Any]:
    """Polls until an event of each of the `wanted` classes was seen; returns all events."""
    seen: list[Any] = []
    ends = time.monotonic() + timeout
    while not set(wanted) <= {type(event).__name__ for event in seen}:
        assert time.monotonic() < ends, f"waited for {wanted}, saw {seen}"
        seen += connector.poll(timeout=0.05)
    return seen


def await_events(
    rank: Rank, connector: Any, *wanted: tuple[str, str], timeout: float = TIMEOUT
) -> list[tuple[str, str]]:
    """Asks a rank for its events until all the `wanted` were seen, polling the connector meanwhile."""
    seen: list[tuple[str, str]] = []
    ends = time.monotonic() + timeout
    while not set(wanted) <= set(seen):
        assert time.monotonic() < ends, f"waited for {wanted}, saw {seen}"
        seen += rank.call("events", during=connector)
        connector.poll(timeout=0.002)
    return seen
