"""Staging beside pages on a device: what is asked of torch, whose devices are host memory here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec")

import kvreshard as kvr
from kvreshard.kernels import Room
from kvreshard.nixl.errors import RegistrationError, Unsupported
from kvreshard.nixl.staging import ALIGN, MIN_TABLE, Area, Fence, Size, area, devices, home
from tests.told import told


class Tensor:
    """Bytes, on a device or pinned."""

    def __init__(self, data: np.ndarray, device: str | None, pinned: bool) -> None:
        self.data, self.device, self.pinned = data, device, pinned

    def data_ptr(self) -> int:
        return self.data.ctypes.data

    def numpy(self) -> np.ndarray:
        return self.data

    def view(self, rows: int, columns: int) -> list[Tensor]:
        return [Tensor(row, self.device, self.pinned) for row in self.data.reshape(rows, columns)]

    def __getitem__(self, at: slice) -> Tensor:
        return Tensor(self.data[at], self.device, self.pinned)


class Stream:
    """Work in its order, done or not."""

    def __init__(self, device: int, done: bool = False) -> None:
        self.device, self.done, self.waited = device, done, list[Any]()

    def query(self) -> bool:
        return self.done

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)

    def wait_stream(self, stream: Any) -> None:
        assert isinstance(stream, Stream)
        self.waited.append(stream)

    def record_event(self) -> Any:
        return Event(self)


class Event:
    """Where a stream was."""

    def __init__(self, stream: Stream | None = None) -> None:
        self.stream, self.records, self.over, self.waits = stream, 0, False, 0

    def record(self, stream: Stream) -> None:
        self.stream, self.records = stream, self.records + 1

    def query(self) -> bool:
        return self.over

    def synchronize(self) -> None:
        self.waits += 1


class OutOfMemoryError(RuntimeError):
    """As torch has it."""


class Torch:
    """As much of torch as staging uses."""

    uint8 = "uint8"

    def __init__(self) -> None:
        self.left = 1 << 30
        self.current: dict[int, Stream] = {}
        self.on = 0
        self.cuda = SimpleNamespace(
            device=self.made_current,
            Stream=Stream,
            Event=Event,
            OutOfMemoryError=OutOfMemoryError,
            current_stream=lambda device: self.current[device],
        )

    @contextlib.contextmanager
    def made_current(self, device: int) -> Iterator[None]:
        before, self.on = self.on, device
        yield
        self.on = before

    def empty(self, count: int, *, dtype: Any, device: str | None = None, pin_memory: bool = False) -> Tensor:
        assert dtype == "uint8"
        assert (device is None) == pin_memory
        if device is not None and count > self.left:
            raise OutOfMemoryError("out of memory")
        return Tensor(np.zeros(count, np.uint8), device, pin_memory)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    made = Torch()
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def made(size: Size, where: tuple[str, int] = ("VRAM", 2)) -> Area:
    def register(buffer: Any) -> kvr.Region:
        if isinstance(buffer, Tensor):
            return kvr.Region(buffer.data_ptr(), buffer.data.nbytes, 2, "VRAM")
        return kvr.Region(buffer.ctypes.data, buffer.nbytes)

    memory: Any = SimpleNamespace(register=register)
    return area(size, where, memory)


@pytest.mark.parametrize("slot", [ALIGN, 1 << 20, (1 << 20) + 64 * ALIGN])
def test_slots_and_their_tables_on_a_device(torch: Torch, slot: int) -> None:
    one = made(Size.of(3 * slot + 10, slot))
    assert one.home == ("VRAM", 2)
    assert (one.buffer.data.nbytes, one.buffer.device, one.address) == (3 * slot, "cuda:2", one.buffer.data_ptr())
    assert one.stream.device == 2
    assert one.tables is not None
    pinned, table = one.tables
    each = max(slot // 128 // ALIGN * ALIGN, MIN_TABLE)
    assert (pinned.data.nbytes, pinned.pinned, table.data.nbytes, table.device) == (3 * each, True, 3 * each, "cuda:2")
    for index in (2, 0, 1):
        address, view = one.slot(index)
        assert (address, view.data_ptr(), view.data.nbytes) == (one.address + index * slot, address, slot)
        room = one.room(index)
        assert isinstance(room, Room)
        rows = [room.host, room.device]
        assert [(row.data_ptr(), row.data.nbytes) for row in rows] == [
            (whole.data_ptr() + index * each, each) for whole in (pinned, table)
        ]
        assert one.room(index) is room


def test_slots_of_a_host_are_aligned_and_have_no_tables() -> None:
    for _ in range(8):
        one = made(Size.of(4096, 1024), ("DRAM", 0))
        assert (one.address % ALIGN, one.address, one.buffer.nbytes) == (0, one.buffer.ctypes.data, 4096)
        assert (one.stream, one.tables, one.room(0)) == (None, None, None)
        assert [one.slot(index)[0] - one.address for index in range(4)] == [0, 1024, 2048, 3072]


REMEDY = "give Connector(staging=) less, or none: requests then go directly"


def test_no_memory_for_staging(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.left = 100
    with pytest.raises(RegistrationError) as caught:
        made(Size.of(1024, 512))
    text = "there is no memory for staging: 1024 bytes of VRAM on device 2"
    assert told(caught.value) == (text, {"field": "staging", "found": 1024, "remedy": REMEDY})

    def none(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(np, "empty", none)
    with pytest.raises(RegistrationError) as host:
        made(Size.of(1024, 512), ("DRAM", 0))
    text = "there is no memory for staging: 1024 bytes of DRAM on device 0"
    assert told(host.value) == (text, {"field": "staging", "found": 1024, "remedy": REMEDY})


def test_a_device_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(Unsupported) as caught:
        made(Size.of(1024, 512))
    text = "staging of device memory needs torch imported in this process"
    assert told(caught.value) == (text, {"remedy": "import torch, or give no staging"})
    assert Fence.now({0}) is None


class Kernels:
    """Notes what it is given."""

    def __init__(self, torch: Torch | None = None) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.torch, self.on = torch, list[int]()

    def prepare(self, work: Any, *, stream: Any = None, room: Any = None) -> Any:
        self.given.append((work, stream, room))
        self._note()
        return "job"

    def _note(self) -> None:
        if self.torch is not None:
            self.on.append(self.torch.on)

    def run(self, job: Any, buffer: Any, *, gather: bool, stream: Any = None) -> None:
        self._note()
        self.given.append((job, buffer.data_ptr() if isinstance(buffer, Tensor) else buffer, gather, stream))


def test_kernels_on_a_device_run_behind_what_they_wait_for(torch: Torch) -> None:
    one, kernels = made(Size.of(1536, 512)), Kernels(torch)
    mover: Any = kernels
    before = Event()
    fence = one.move(mover, "chunk", 1, gather=True, after=Fence(before))  # type: ignore[arg-type]
    assert kernels.given == [
        ("chunk", one.stream, one.room(1)),
        ("job", one.slot(1)[0], True, one.stream),
    ]
    # With the slot's device as the current one, which it is not any more.
    assert (kernels.on, torch.on) == ([2, 2], 0)
    assert one.stream.waited == [before]
    assert (fence.event.stream, fence.event.records, fence.over, before.waits) == (one.stream, 1, False, 0)
    fence.event.over = True
    assert fence.over
    fence.wait()
    assert fence.event.waits == 1
    # One event a slot; what is over is not waited for.
    before.over = True
    again = one.move(mover, "next", 1, gather=False, after=Fence(before))  # type: ignore[arg-type]
    assert again.event is fence.event
    assert (again.event.records, one.stream.waited, kernels.given[-1][2]) == (2, [before], False)
    other = one.move(mover, "next", 2, gather=False)  # type: ignore[arg-type]
    assert other.event is not fence.event


def test_kernels_on_a_host_are_over_when_they_return() -> None:
    one, kernels = made(Size.of(1536, 512), ("DRAM", 0)), Kernels()
    mover: Any = kernels
    before = Event()
    fence = one.move(mover, "chunk", 1, gather=True, after=Fence(before))  # type: ignore[arg-type]
    assert (fence.over, before.waits) == (True, 1)
    fence.wait()
    assert kernels.given[0] == ("chunk", None, None)
    assert kernels.given[1][2:] == (True, None)


def test_a_fence_is_behind_all_streams_that_are_busy(torch: Torch) -> None:
    torch.current = {0: Stream(0, done=True), 1: Stream(1), 2: Stream(2), 3: Stream(3)}
    assert Fence.now(()) is None
    assert Fence.now((0,)) is None
    fence = Fence.now((0, 1))
    assert fence is not None
    assert fence.event.stream is torch.current[1]
    assert torch.current[1].waited == []
    fence = Fence.now((1, 2, 0, 3))
    assert fence is not None
    assert fence.event.stream is torch.current[1]
    assert torch.current[1].waited == [torch.current[2], torch.current[3]]


def layout(*homes: tuple[Any, int]) -> kvr.RankLayout:
    page = kvr.PageFormat("h n k[d]", h=2, n=4, d=8, dtype="bf16")
    layers = [
        kvr.Layer(
            f"layers.{number}", [kvr.Segment(kvr.Region((1 + number) << 20, 4096, device, memory), page, pages=4)]
        )
        for number, (memory, device) in enumerate(homes)
    ]
    layers = [kvr.Layer(layer.name, layer.segments, totals={"h": 2}) for layer in layers]
    return kvr.RankLayout(engine="e", layers=layers)


def test_where_pages_are() -> None:
    for homes, on, one in (
        ([("VRAM", 3)], {3}, ("VRAM", 3)),
        ([("VRAM", 3), ("VRAM", 3)], {3}, ("VRAM", 3)),
        ([("VRAM", 3), ("VRAM", 1)], {1, 3}, None),
        ([("DRAM", 0), ("VRAM", 1)], {1}, None),
        ([("DRAM", 0)], set(), ("DRAM", 0)),
    ):
        found = layout(*homes)
        assert devices(found) == on
        assert home(found) == one
