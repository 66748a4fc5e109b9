"""First contact and digests through real NIXL between processes: honest sides pass, sides that lie are refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import kvreshard as kvr
from kvreshard.probe import ProbeError, WriterMismatch
from tests.connector_rank import Spec, publish, request, running, wait
from tests.marked import reader

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, FirstContact, Unsupported

HND, NHD = "h n k[d] v[d]", "n h k[d] v[d]"


@pytest.fixture
def here() -> Iterator[Connector]:
    with Connector("here") as connector:
        yield connector


def test_honest_sides_meet(here: Connector) -> None:
    """The peer holds 8 heads token-major in pages of 32; this rank the last 4 head-major in pages of 16."""
    spec = Spec("here", engine="decode", notation=HND, heads=4, tp=(1, 2))
    mine = spec.arrays(1)
    before = [array.copy() for array in mine]
    publish(here, spec, mine)
    with running(Spec("there", notation=NHD, tokens=32)) as (there,):
        assert there.call("mark", NHD, [7], 5) == 2
        looked: list[tuple[str, int]] = []
        read = reader(mine, spec, HND)

        def seen(layer: str, page: int) -> dict[str, np.ndarray]:
            looked.append((layer, page))
            return dict(read(layer, page))

        contact = FirstContact(request((0, 32), [15, 3], [7]), seen, seed=5)
        peer = here.connect(there.call("metadata"), first_contact=contact)
        assert looked == [(f"layers.{layer}", page) for layer in (0, 1) for page in (15, 3)]
        assert here.poll() == [], "its transfer is no request of the caller's"
        assert peer.connected
        for layer, array in enumerate(mine):
            kept = [page for page in range(spec.pages) if page not in (3, 15)]
            np.testing.assert_array_equal(array[kept], before[layer][kept])
        # Marks of another time do not pass.
        with pytest.raises(WriterMismatch):
            here.connect(there.call("metadata"), first_contact=FirstContact(contact.request, seen, seed=6))


@pytest.mark.parametrize("liar", ["writer", "reader"])
def test_a_side_that_lies_is_refused_before_any_request(here: Connector, liar: str) -> None:
    """Both declare head-major pages, and one side's kernels have them token-major."""
    spec = Spec("here", engine="decode", notation=HND)
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", notation=HND)) as (there,):
        there.call("mark", NHD if liar == "writer" else HND, [7], 5)
        metadata = there.call("metadata")
        read = reader(mine, spec, NHD if liar == "reader" else HND)
        contact = FirstContact(request((0, 16), [15], [7]), read, seed=5)
        with pytest.raises(WriterMismatch, match=r"layer layers\.0, page 15: component k, element .* is read"):
            here.connect(metadata, first_contact=contact)
        assert here.in_flight == ()
        assert here.poll() == []
        # Nothing is left of the peer: without the switch it is connected anew.
        peer = here.connect(metadata)
        here.read(peer, request((0, 16), [1], [2]), id="r", notify=False)
        wait(here, "Finished")


def test_first_contact_covers_something(here: Connector) -> None:
    spec = Spec("here", engine="decode", notation=HND)
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", notation=HND)) as (there,):
        contact = FirstContact(request((0, 16), [15], [7]), reader(mine, spec, HND))
        with pytest.raises(Unsupported, match="goes with direction 'read' and a reader"):
            here.connect(there.call("metadata"), direction="write", first_contact=contact)
        with pytest.raises(kvr.RequestError):
            here.connect(
                there.call("metadata"),
                first_contact=FirstContact(request((0, 16), [99], [7]), reader(mine, spec, HND)),
            )
        with pytest.raises((ProbeError, kvr.RequestError)):
            here.connect(
                there.call("metadata"), first_contact=FirstContact(request((0, 0), [], []), reader(mine, spec, HND))
            )


def test_digests_of_both_ends_meet_after_a_transfer(here: Connector) -> None:
    """Pages of other sizes, orders and shares; one page a layer, by elements of which both have their own."""
    spec = Spec("here", engine="decode", notation=HND, heads=4, tp=(1, 2))
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", notation=NHD, tokens=32)) as (there,):
        peer = here.connect(there.call("metadata"))
        name = there.call("connect", here.metadata(), {"direction": None}, during=here)
        before = here.digests(peer, [kvr.Blocks([4, 9])], (0, 32))
        theirs = there.call("digests", name, [5], (0, 32), during=here)
        assert sorted(theirs) == ["layers.0", "layers.1"]
        assert not set(theirs.values()) & set(before.values())
        here.read(peer, request((0, 32), [4, 9], [5]), id="r", notify=False)
        wait(here, "Finished")
        assert here.digests(peer, [kvr.Blocks([4, 9])], (0, 32)) == theirs
        # From token 16 on it is this side's second page, in the middle of the peer's.
        assert here.digests(peer, [kvr.Blocks([4, 9])], (16, 32)) == there.call(
            "digests", name, [5], (16, 32), during=here
        )
        # Two heads that change places have the same bytes in all.
        mine[1][4] = mine[1][4].reshape(spec.heads, -1)[[1, 0, 2, 3]].reshape(-1)
        found = here.digests(peer, [kvr.Blocks([4, 9])], (0, 32))
        assert found["layers.0"] == theirs["layers.0"]
        assert found["layers.1"] != theirs["layers.1"]
        with pytest.raises(ProbeError, match="in none of the 1 blocks"):
            here.digests(peer, [kvr.Blocks([4])], (16, 32))
