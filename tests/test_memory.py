"""What a connector registers, looks up and clears, on an agent of this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec")

import kvreshard as kvr
from kvreshard.kernels.memory import Span
from kvreshard.nixl import clearing
from kvreshard.nixl.agent import Agent
from kvreshard.nixl.errors import AgentError, NotRegistered, RegistrationError, TensorMismatch, Unsupported
from kvreshard.nixl.memory import Memory
from tests.fabric import Fabric, Fake
from tests.told import told

PAGE = kvr.PageFormat("h n k[d] v[d]", h=4, n=16, d=8, dtype="bf16")
BYTES = PAGE.page_bytes


@pytest.fixture
def agent() -> Fake:
    return Fake("here", Fabric())


@pytest.fixture
def memory(agent: Fake) -> Memory:
    return Memory(Agent(agent, owned=True))


def region(base: int, size: int, device: int = 0, kind: Any = "DRAM") -> kvr.Region:
    return kvr.Region(base, size, device, kind)


def test_each_allocation_is_registered_once(memory: Memory, agent: Fake) -> None:
    array = np.zeros(4096, np.uint8)
    whole = memory.register(array)
    assert (whole.base, whole.bytes, whole.device, whole.memory) == (array.ctypes.data, 4096, 0, "DRAM")
    assert memory.register(array[100:200]) is whole
    assert memory.register((whole.base + 1000, 3096, 0, "DRAM")) is whole
    assert memory.register(region(whole.base, 4096)) is whole
    assert agent.regions == [(whole.base, 4096, 0, "DRAM")]
    assert memory.owners == (array,)
    # The same addresses of another kind or device are other memory.
    other = memory.register((whole.base, 4096, 1, "VRAM"))
    third = memory.register((whole.base, 4096, 2, "VRAM"))
    assert list(memory.regions) == [whole, other, third]
    assert (other.device, other.memory, len(agent.regions)) == (1, "VRAM", 3)
    # Memory that touches is not one.
    beside = memory.register(region(1 << 50, 100)), memory.register(region((1 << 50) + 100, 100))
    before = memory.register(region((1 << 50) - 100, 100))
    assert memory.regions[3:] == (*beside, before)


@pytest.mark.parametrize(("base", "size"), [(0x900, 0x101), (0x1FFF, 2), (0x900, 0x2000)])
def test_memory_across_the_end_of_a_registration_is_refused(memory: Memory, agent: Fake, base: int, size: int) -> None:
    held = memory.register(region(0xA00, 0x1600))
    wanted = region(base, size)
    with pytest.raises(RegistrationError) as caught:
        memory.register(wanted)
    assert told(caught.value) == (
        f"{wanted} overlaps {held}, which is registered, without lying inside it",
        {"field": "region", "found": str(wanted), "expected": f"memory inside or apart from {held}"},
    )
    assert agent.regions == [(0xA00, 0x1600, 0, "DRAM")]


def test_memory_that_was_adopted_stays_its_owners(memory: Memory, agent: Fake) -> None:
    array = np.zeros(64, np.uint8)
    adopted = memory.adopt(array)
    assert memory.adopt(array[8:]) is adopted
    assert memory.register(array) is adopted
    assert (agent.regions, memory.regions, memory.owners) == ([], (adopted,), (array,))
    memory.deregister()
    assert memory.regions == ()


def test_a_registration_is_dropped_alone(memory: Memory, agent: Fake) -> None:
    first, second = memory.register(region(0x1000, 16)), memory.register(region(0x2000, 16))
    adopted = memory.adopt(region(0x3000, 16))
    memory.check(np.array([[0x1000, 16, 0]], np.uint64), "DRAM")
    memory.drop(first)
    memory.drop(adopted)
    assert memory.regions == (second,)
    assert agent.regions == [(0x2000, 16, 0, "DRAM")]
    with pytest.raises(NotRegistered):
        memory.check(np.array([[0x1000, 16, 0]], np.uint64), "DRAM")


def test_all_is_deregistered_whatever_fails(memory: Memory, agent: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    for base in (0x1000, 0x2000, 0x3000):
        memory.register(region(base, 16))
    memory.adopt(region(0x4000, 16))
    undone: list[int] = []

    def deregister(found: Any) -> None:
        undone.append(found[0])
        if found[0] != 0x1000:
            raise RuntimeError(f"not {found[0]:#x}")

    monkeypatch.setattr(agent, "deregister_memory", deregister)
    with pytest.raises(AgentError, match="not 0x3000"):
        memory.deregister()
    assert undone == [0x3000, 0x2000, 0x1000]
    assert memory.regions == ()
    memory.deregister()


def segment(memory: Memory, value: Any, **options: Any) -> kvr.Segment:
    given: dict[str, Any] = {"axes": None, "pages": None, "page_stride": None, "offset": 0, "holds": None, **options}
    return memory.segment(value, PAGE, layer="layers.3", **given)


def test_pages_of_raw_memory_are_counted_by_what_fits(memory: Memory) -> None:
    whole = memory.register(region(1 << 20, 10 * BYTES))
    for value, options, pages, stride, offset in (
        (whole, {}, 10, BYTES, 0),
        (whole, {"offset": 1}, 9, BYTES, 1),
        (whole, {"page_stride": 2 * BYTES}, 5, 2 * BYTES, 0),
        (whole, {"page_stride": 2 * BYTES, "offset": BYTES}, 5, 2 * BYTES, BYTES),
        (whole, {"page_stride": 2 * BYTES, "offset": BYTES + 1}, 4, 2 * BYTES, BYTES + 1),
        (whole, {"pages": 3}, 3, BYTES, 0),
        ((whole.base + 64, 3 * BYTES, 0, "DRAM"), {}, 3, BYTES, 64),
        ((whole.base + 64, 3 * BYTES, 0, "DRAM"), {"offset": 32}, 2, BYTES, 96),
        ((whole.base + 64, BYTES - 1, 0, "DRAM"), {}, 0, BYTES, 64),
    ):
        if pages == 0:
            with pytest.raises(kvr.Error):
                segment(memory, value, **options)
            continue
        made = segment(memory, value, **options)
        assert (made.pages, made.page_stride, made.offset, made.region) == (pages, stride, offset, whole)
    assert segment(memory, whole, holds={"h": (4, 8)}).holds == {"h": (4, 8)}


def test_a_tensor_says_its_pages_itself(memory: Memory) -> None:
    array = np.zeros((6, 3, 4, 16, 16), np.uint16)
    for number in (0, 2):
        made = segment(memory, array[:, number], holds={"h": (0, 4)})
        assert (made.pages, made.page_stride, made.offset) == (6, 3 * BYTES, number * BYTES)
        assert made.holds == {"h": (0, 4)}
    assert segment(memory, array[:, 1], offset=8).offset == BYTES + 8
    assert segment(memory, array[:, 1], pages=6, page_stride=3 * BYTES).pages == 6
    assert segment(memory, array[:2, 1]).page_stride == 3 * BYTES
    # One page has no stride.
    assert segment(memory, array[:1, 1]).page_stride == BYTES
    for field, given, actual in (("pages", 5, 6), ("page_stride", BYTES, 3 * BYTES)):
        with pytest.raises(kvr.LayoutError) as caught:
            segment(memory, array[:, 1], **{field: given})
        assert str(caught.value) == f"layer layers.3: {field} {given} was given, but the tensor has {actual}"
    with pytest.raises(TensorMismatch, match=r"layer layers\.3: axes names 1 axes"):
        segment(memory, array[:, 1], axes=("h",))
    assert len(memory.regions) == 1


def layout(*regions: kvr.Region) -> kvr.RankLayout:
    layers = [
        kvr.Layer(f"layers.{number}", [kvr.Segment(one, PAGE, pages=1)], totals={"h": 4})
        for number, one in enumerate(regions)
    ]
    return kvr.RankLayout(engine="e", layers=layers)


def test_kernels_are_given_the_allocations(memory: Memory) -> None:
    array = np.zeros(4 * BYTES, np.uint8)
    whole = memory.register(array)
    there = memory.register(region(1 << 40, BYTES, 3, "VRAM"))
    inside = region(whole.base + BYTES, BYTES)
    assert memory.spans(layout(inside, there)) == [
        Span(whole.base, 4 * BYTES, None, array),
        Span(1 << 40, BYTES, 3, None),
    ]
    assert [span.owner is array for span in memory.spans(layout(inside, there))] == [True, False]
    memory.require(layout(inside, there))
    strange = region(1 << 50, BYTES)
    text = f"{strange} is part of the layout, but was never registered"
    with pytest.raises(NotRegistered) as caught:
        memory.spans(layout(inside, strange))
    assert told(caught.value) == (text, {"field": "region"})
    with pytest.raises(NotRegistered) as caught:
        memory.require(layout(inside, strange))
    remedy = "register() it, or adopt() it where the agent's owner has registered it"
    assert told(caught.value) == (text, {"field": "region", "found": str(strange), "remedy": remedy})


def test_rows_must_lie_inside_a_region(memory: Memory) -> None:
    for base, device, kind in ((0x2000, 0, "DRAM"), (0x1000, 0, "DRAM"), (0x1000, 1, "VRAM"), (0x4000, 0, "DRAM")):
        memory.register(region(base, 0x100, device, kind))

    def check(*rows: tuple[int, int, int], kind: str = "DRAM") -> None:
        memory.check(np.array(rows, np.uint64).reshape(-1, 3), kind)

    check()
    check((0x1000, 0x100, 0), (0x20FF, 1, 0), (0x4000, 1, 0), (0x2000, 0x100, 0))
    check((0x1000, 0x100, 1), kind="VRAM")
    for bad in ((0xFFF, 2, 0), (0x10FF, 2, 0), (0x1100, 1, 0), (0x1000, 0x1100, 0), (0x9000, 1, 0), (0, 1, 0)):
        with pytest.raises(NotRegistered) as caught:
            check((0x1000, 1, 0), bad, (0xB000, 7, 0))
        assert told(caught.value) == (f"{bad[1]} bytes at {bad[0]:#x} lie outside every region", {"field": "address"})
    for device, kind in ((1, "DRAM"), (0, "VRAM"), (2, "VRAM")):
        with pytest.raises(NotRegistered) as caught:
            check((0x1000, 1, device), kind=kind)
        assert told(caught.value) == (f"no {kind} of device {device} is registered", {})
    # What is registered later counts.
    memory.register(region(0x9000, 1))
    check((0x9000, 1, 0))


# Clearing


def test_bytes_of_the_host_are_cleared_and_no_others(memory: Memory) -> None:
    array = np.full(64, 7, np.uint8)
    base = memory.register(array).base
    clearing.clear(np.array([[base + 3, 4, 0], [base + 60, 4, 0]], np.uint64), "DRAM", memory)
    assert np.flatnonzero(array == 0).tolist() == [3, 4, 5, 6, 60, 61, 62, 63]
    with pytest.raises(NotRegistered):
        clearing.clear(np.array([[base + 10, 4, 0], [base + 62, 4, 0]], np.uint64), "DRAM", memory)
    assert array[10] == 7
    clearing.clear(np.zeros((0, 3), np.uint64), "VRAM", memory)


class Torch:
    """As much of torch as clearing uses; its devices are host memory."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.cuda = SimpleNamespace(Stream=self._stream, stream=self._using)

    def _stream(self, device: int) -> Any:
        return SimpleNamespace(device=device, synchronize=lambda: self.done.append(("synchronize", device)))

    @contextmanager
    def _using(self, stream: Any) -> Iterator[None]:
        self.done.append(("begin", stream.device))
        yield
        self.done.append(("end", stream.device))

    def as_tensor(self, value: Any, device: str) -> Any:
        told = value.__cuda_array_interface__
        assert (told["typestr"], told["version"], told["data"][1]) == ("|u1", 3, False)
        where = (told["data"][0], *told["shape"], device)
        return SimpleNamespace(zero_=lambda: self.done.append(where))


def test_device_memory_is_cleared_on_a_stream_a_device(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    for device in (0, 1):
        memory.register(region(0x1000, 0x100, device, "VRAM"))
    rows = np.array([[0x1010, 16, 1], [0x1000, 8, 0], [0x1040, 4, 1]], np.uint64)
    clearing.clear(rows, "VRAM", memory)
    assert torch.done == [
        ("begin", 0),
        (0x1000, 8, "cuda:0"),
        ("end", 0),
        ("synchronize", 0),
        ("begin", 1),
        (0x1010, 16, "cuda:1"),
        (0x1040, 4, "cuda:1"),
        ("end", 1),
        ("synchronize", 1),
    ]


def test_device_memory_is_not_cleared_without_torch(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    memory.register(region(0x1000, 0x100, 0, "VRAM"))
    clearing.require("DRAM")
    text = "the request leaves device memory to be cleared, which needs torch imported in this process"
    remedy = "import torch, or pass zero=False and clear the rows of plan.zero(request) yourself"
    with pytest.raises(Unsupported) as caught:
        clearing.require("VRAM")
    assert told(caught.value) == (text, {"remedy": remedy})
    with pytest.raises(Unsupported, match="device memory to be cleared"):
        clearing.clear(np.array([[0x1000, 1, 0]], np.uint64), "VRAM", memory)
