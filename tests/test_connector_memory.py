"""What is registered, how a tensor becomes pages, and that nothing is left of either."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from tests.connector_rank import Spec, publish, request, running, wait

pytest.importorskip("nixl")

import nixl

from kvreshard.nixl import (
    Connector,
    NotPublished,
    NotRegistered,
    RegistrationError,
    Released,
    TensorMismatch,
    Unsupported,
)

PACKED = kvr.PageFormat("h n k[d] v[d]", h=4, n=16, d=8, dtype="bf16")
TOKENS_FIRST = kvr.PageFormat("n h k[d] v[d]", h=4, n=16, d=8, dtype="bf16")
SHUFFLED = kvr.PageFormat("k[h d/8 n d%8] v[h n/8 d n%8]", h=4, n=16, d=8, dtype="bf16")
LATENT = kvr.PageFormat("c[n r]", n=16, r=64, dtype="bf16")


def head_major(pages: int = 6, kind: str = "numpy") -> Any:
    """[page, head, token, K|V channels], dense."""
    if kind == "numpy":
        return np.zeros((pages, 4, 16, 16), np.float16)
    torch = pytest.importorskip("torch")
    return torch.zeros(pages, 4, 16, 16, dtype=torch.bfloat16)


def token_major(pages: int = 6, kind: str = "numpy") -> Any:
    """The same logical shape over token-major memory."""
    if kind == "numpy":
        return np.zeros((pages, 16, 4, 16), np.float16).transpose(0, 2, 1, 3)
    torch = pytest.importorskip("torch")
    return torch.zeros(pages, 16, 4, 16, dtype=torch.bfloat16).permute(0, 2, 1, 3)


kinds = pytest.mark.parametrize("kind", ["numpy", "torch"])


@pytest.fixture
def connector() -> Iterator[Connector]:
    with Connector() as connector:
        yield connector


@pytest.fixture
def agent() -> Any:
    """A host's agent."""
    return nixl.nixl_agent("host", nixl.nixl_agent_config(enable_prog_thread=False))


def prepares(agent: Any, region: kvr.Region) -> bool:
    """Whether NIXL still knows the region."""
    row = np.array([[region.base, 16, region.device, 16, 1]], np.uint64)
    try:
        agent.release_dlist_handle(agent.prep_xfer_dlist("NIXL_INIT_AGENT", row, mem_type=region.memory))
    except importlib.import_module("nixl._bindings").nixlNotFoundError:
        return False
    return True


@kinds
def test_strides_that_contradict_the_format_are_refused_with_all_four_facts(connector: Connector, kind: str) -> None:
    """The page has the right size, so nothing else would notice."""
    with pytest.raises(TensorMismatch) as caught:
        connector.add_layer("layers.3", token_major(kind=kind), PACKED, totals={"h": 4})
    error = caught.value
    assert isinstance(error, kvr.LayoutError)
    assert (error.layer, error.field, error.found, error.expected) == ("layers.3", "h", "32", "512 bytes")
    assert str(PACKED) in str(error)
    assert connector.regions == ()


@kinds
def test_strides_that_agree_are_accepted(connector: Connector, kind: str) -> None:
    connector.add_layer("a", head_major(kind=kind), PACKED, totals={"h": 4})
    connector.add_layer("b", token_major(kind=kind), TOKENS_FIRST, totals={"h": 4})
    layout = connector.publish(engine="e")
    assert [layer.segments[0].pages for layer in layout.layers] == [6, 6]
    assert [layer.segments[0].page_stride for layer in layout.layers] == [2048, 2048]


@kinds
def test_named_axes_are_checked_inside_brackets_too(connector: Connector, kind: str) -> None:
    """A head is n*d elements apart in the shuffled K, and 2*n*d in the packed view of the same bytes."""
    connector.add_layer("opaque", head_major(kind=kind), SHUFFLED, totals={"h": 4})
    with pytest.raises(TensorMismatch) as caught:
        connector.add_layer("named", head_major(kind=kind), SHUFFLED, totals={"h": 4}, axes=("h", None, None))
    assert (caught.value.field, caught.value.found, caught.value.expected) == ("h", "512", "256 bytes")
    with pytest.raises(TensorMismatch) as caught:
        connector.add_layer("named", head_major(kind=kind), PACKED, totals={"h": 4}, axes=("n", "h", None))
    assert (caught.value.field, caught.value.found, caught.value.expected) == ("n", "4", "16")
    with pytest.raises(TensorMismatch):
        connector.add_layer("named", head_major(kind=kind), PACKED, totals={"h": 4}, axes=("h", "n"))


def test_axes_of_equal_size_must_be_named_when_it_matters(connector: Connector) -> None:
    square = kvr.PageFormat("h n k[d] v[d]", h=16, n=16, d=4, dtype="bf16")
    tensor = np.zeros((3, 16, 16, 8), np.float16)
    with pytest.raises(TensorMismatch) as caught:
        connector.add_layer("a", tensor, square, totals={"h": 16})
    assert caught.value.field == "axes"
    connector.add_layer("a", tensor, square, totals={"h": 16}, axes=("h", "n", None))
    with pytest.raises(TensorMismatch):
        connector.add_layer("b", tensor.transpose(0, 2, 1, 3), square, totals={"h": 16}, axes=("h", "n", None))
    with pytest.raises(TensorMismatch) as caught:
        connector.add_layer("b", np.zeros((3, 8, 16, 16), np.float16).transpose(0, 2, 3, 1), square, totals={"h": 16})
    assert caught.value.field in ("h", "n")


def test_a_page_of_another_length_or_with_holes_is_refused(connector: Connector) -> None:
    with pytest.raises(TensorMismatch) as caught:
        connector.add_layer("a", np.zeros((6, 4, 16, 8), np.float16), PACKED)
    assert (caught.value.field, caught.value.found, caught.value.expected) == ("page bytes", "1024", "2048")
    with pytest.raises(TensorMismatch) as caught:
        connector.add_layer("a", np.zeros((6, 4, 32, 16), np.float16)[:, :, ::2], PACKED)
    assert caught.value.field == "page"
    with pytest.raises(TensorMismatch):
        connector.add_layer("a", np.zeros(2048, np.uint8), PACKED)


@kinds
def test_views_of_one_storage_are_registered_once_and_share_its_region(connector: Connector, kind: str) -> None:
    """A block-major cache: the layers lie inside each block, so a page stride is a whole row."""
    if kind == "numpy":
        whole: Any = np.zeros((6, 3, 4, 16, 16), np.float16)
    else:
        torch = pytest.importorskip("torch")
        whole = torch.zeros(6, 3, 4, 16, 16, dtype=torch.bfloat16)
    for number in range(3):
        connector.add_layer(f"layers.{number}", whole[:, number], PACKED, totals={"h": 4})
    (region,) = connector.regions
    assert region.bytes == 6 * 3 * 2048
    layout = connector.publish(engine="e")
    assert layout.regions == [region]
    placed = [(layer.segments[0].offset, layer.segments[0].page_stride) for layer in layout.layers]
    assert placed == [(0, 6144), (2048, 6144), (4096, 6144)]


def test_segments_of_their_own(connector: Connector) -> None:
    """K and V planes of one allocation."""
    keys = kvr.PageFormat("k[h n d]", h=4, n=16, d=8, dtype="bf16")
    values = kvr.PageFormat("v[h n d]", h=4, n=16, d=8, dtype="bf16")
    cache = np.zeros((2, 6, 4, 16, 8), np.float16)
    parts = [connector.segment(cache[0], keys, layer="a"), connector.segment(cache[1], values, layer="a")]
    connector.add_layer("a", parts, totals={"h": 4})
    (layer,) = connector.publish(engine="e").layers
    assert [segment.offset for segment in layer.segments] == [0, 6144]
    assert len(connector.regions) == 1


def test_raw_memory_and_regions(connector: Connector) -> None:
    memory = np.zeros(100_000, np.uint8)
    address = memory.ctypes.data
    connector.add_layer("a", (address, 10_000, 0, "DRAM"), PACKED, totals={"h": 4})
    region = connector.register(kvr.Region(address + 20_000, 50_000))
    connector.add_layer("b", region, PACKED, totals={"h": 4}, pages=3, page_stride=4096, offset=64)
    layout = connector.publish(engine="e")
    segments = [layer.segments[0] for layer in layout.layers]
    assert [(s.pages, s.page_stride, s.offset) for s in segments] == [(4, 2048, 0), (3, 4096, 64)]
    inner = connector.register(kvr.Region(address + 21_000, 1_000))
    assert inner == region
    with pytest.raises(RegistrationError):
        connector.register(kvr.Region(address + 60_000, 20_000))
    with pytest.raises(Unsupported):
        connector.register("a string")


def test_a_replicated_layer_needs_no_totals(connector: Connector) -> None:
    connector.add_layer("mla", np.zeros((5, 16, 64), np.float16), LATENT)
    assert connector.publish(engine="e").layers[0].totals == {}


def test_a_tensor_knows_its_pages_better_than_the_caller(connector: Connector) -> None:
    with pytest.raises(kvr.LayoutError):
        connector.add_layer("a", head_major(), PACKED, totals={"h": 4}, pages=5)
    with pytest.raises(kvr.LayoutError):
        connector.add_layer("a", head_major(), PACKED, totals={"h": 4}, page_stride=4096)


def test_a_prepared_layout_must_be_registered_or_adopted(connector: Connector) -> None:
    memory = np.zeros(16 * 2048, np.uint8)
    region = kvr.Region(memory.ctypes.data, memory.nbytes)
    layer = kvr.Layer("a", [kvr.Segment(region, PACKED, pages=16)], totals={"h": 4})
    layout = kvr.RankLayout(engine="e", layers=[layer])
    with pytest.raises(NotPublished):
        connector.metadata()
    with pytest.raises(NotRegistered):
        connector.publish(layout)
    connector.register(memory)
    assert connector.publish(layout) == layout
    assert connector.layout == layout


def test_sleep_and_wake_is_a_new_generation(connector: Connector) -> None:
    connector.add_layer("a", head_major(), PACKED, totals={"h": 4})
    before = connector.publish(engine="e").generation
    connector.deregister()
    assert connector.regions == ()
    with pytest.raises(NotPublished):
        connector.metadata()
    connector.add_layer("a", head_major(), PACKED, totals={"h": 4})
    assert connector.publish(engine="e").generation > before


def test_close_leaves_nothing_with_a_hosts_agent(agent: Any) -> None:
    """Registrations and peers are gone, what the host registered itself is not, and its agent still works."""
    spec = Spec("host", engine="decode")
    mine = spec.arrays(1)
    hosts = np.zeros(4096, np.uint8)
    agent.register_memory([(hosts.ctypes.data, 4096, 0, "")], "DRAM")
    empty = len(agent.get_agent_metadata())
    with running(Spec("there")) as (there,):
        with Connector(agent=agent) as connector:
            adopted = connector.adopt(hosts)
            publish(connector, spec, mine)
            peer = connector.connect(there.call("metadata"))
            connector.read(peer, request((0, 21), [3, 9], [5, 1]), id="r")
            wait(connector, "Finished")
            regions = connector.regions
            assert all(prepares(agent, region) for region in regions)
            assert agent.check_remote_metadata("there")
        assert [prepares(agent, region) for region in regions] == [region == adopted for region in regions]
        assert not agent.check_remote_metadata("there")
        assert len(agent.get_agent_metadata()) == empty
        assert connector.close() == ()
        with Connector(agent=agent) as again:
            publish(again, spec, mine)
            peer = again.connect(there.call("metadata"))
            again.read(peer, request((0, 16), [3], [5]), id="r")
            wait(again, "Finished")


def test_a_hosts_peer_stays_the_hosts(agent: Any) -> None:
    from kvreshard.nixl import wire

    spec = Spec("host", engine="decode")
    with running(Spec("there")) as (there,):
        data = there.call("metadata")
        agent.add_remote_agent(wire.decode(data).nixl)
        with Connector(agent=agent) as connector:
            publish(connector, spec, spec.arrays(1))
            peer = connector.connect(data)
            connector.read(peer, request((0, 16), [3], [5]), id="r")
            wait(connector, "Finished")
        assert agent.check_remote_metadata("there")


def test_a_hosts_notices_are_left_to_the_host(agent: Any) -> None:
    """The host fetches them and passes them on; what is not ours comes back."""
    spec = Spec("host", engine="decode")

    class Lent:
        """The host's agent, as lent to the connector: counts how often that takes notices from it."""

        taken = 0

        def __getattr__(self, name: str) -> Any:
            self.taken += name in ("get_new_notifs", "update_notifs", "check_remote_xfer_done")
            return getattr(agent, name)

    lent: Any = Lent()
    with running(Spec("there")) as (there,), Connector(agent=lent) as connector:
        publish(connector, spec, spec.arrays(1))
        name = there.call("connect", connector.metadata(), {})
        connector.expect("r", readers=1)
        there.call("read", name, ((0, 16), [3], [5], 0, 0), "r")
        told: dict[str, list[bytes]] = {}
        while not (told := agent.get_new_notifs()):
            assert connector.poll(timeout=0.001) == []
        assert connector.feed({**told, "other": [b"a word of the host's"]}) == {"other": [b"a word of the host's"]}
        assert connector.poll() == [Released("r", ("there",))]
    assert lent.taken == 0
