"""Requests through real NIXL between processes: every byte of both sides is checked, also outside the request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

import kvreshard as kvr
from tests.connector_rank import Bytes, Spec, await_events, publish, request, running, wait

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, Finished, NotConnected, Released, TransferError

Elements = npt.NDArray[np.uint16]


def elements(pages: Bytes, spec: Spec) -> Elements:
    """Packed head-major pages as [page, head, token, K|V and channel]."""
    return pages.view(np.uint16).reshape(spec.pages, spec.heads, spec.tokens, 2 * spec.size)


@pytest.fixture
def here() -> Iterator[Connector]:
    with Connector("here") as connector:
        yield connector


def same_shape(name: str) -> Spec:
    return Spec(name, engine="decode")


def test_read_moves_the_pages_and_nothing_else(here: Connector) -> None:
    spec = same_shape("here")
    mine = spec.arrays(1)
    before = [array.copy() for array in mine]
    publish(here, spec, mine)
    with running(Spec("there")) as (there,):
        peer = here.connect(there.call("metadata"))
        there.call("expect", "r", {"readers": 1})
        here.read(peer, request((0, 48), [3, 9, 4], [5, 1, 2]), id="r")
        (finished,) = [event for event in wait(here, "Finished") if isinstance(event, Finished)]
        assert finished.id == "r"
        assert finished.direction == "read"
        assert finished.bytes == spec.layers * 3 * spec.format.page_bytes
        await_events(there, here, ("Released", "r"))
        for layer, source in enumerate(there.call("pages", during=here)):
            expected = before[layer]
            expected[[3, 9, 4]] = source[[5, 1, 2]]
            np.testing.assert_array_equal(mine[layer], expected)
        assert here.in_flight == ()


def test_write_moves_the_pages_and_the_target_hears_of_it(here: Connector) -> None:
    spec = same_shape("here")
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there")) as (there,):
        expected = there.call("pages")
        peer = here.connect(there.call("metadata"), direction="write")
        there.call("expect", "w", {"writers": 1})
        here.write(peer, request((0, 48), [3, 9, 4], [5, 1, 2]), id="w")
        assert [type(event) for event in wait(here, "Finished")] == [Finished]
        await_events(there, here, ("Arrived", "w"))
        for layer, target in enumerate(there.call("pages", during=here)):
            expected[layer][[5, 1, 2]] = mine[layer][[3, 9, 4]]
            np.testing.assert_array_equal(target, expected[layer])


def test_both_ranks_read_from_each_other(here: Connector) -> None:
    spec = same_shape("here")
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there")) as (there,):
        theirs = there.call("pages")
        peer = here.connect(there.call("metadata"))
        name = there.call("connect", here.metadata(), {}, during=here)
        here.expect("back", readers=1)
        here.read(peer, request((0, 16), [0], [0]), id="forth")
        there.call("read", name, ((0, 16), [1], [1], 0, 0), "back", during=here)
        seen = wait(here, "Finished", "Released")
        assert Released("back", ("there",)) in seen
        np.testing.assert_array_equal(mine[0][0], theirs[0][0])
        np.testing.assert_array_equal(there.call("pages", during=here)[1][1], mine[1][1])


def test_other_format_and_fewer_heads(here: Connector) -> None:
    """Prefill holds 8 heads token-major, this decode rank the last 4 of them head-major."""
    spec = Spec("here", engine="decode", heads=4, tp=(1, 2))
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", notation="n h k[d] v[d]")) as (there,):
        peer = here.connect(there.call("metadata"))
        here.read(peer, request((0, 32), [7, 2], [0, 15]), id="r")
        wait(here, "Finished")
        for layer, source in enumerate(there.call("pages", during=here)):
            token_major = source.view(np.uint16).reshape(16, 16, 8, 64)
            wanted = token_major[[0, 15], :, 4:8].transpose(0, 2, 1, 3)
            np.testing.assert_array_equal(elements(mine[layer], spec)[[7, 2]], wanted)


def test_a_request_from_two_sources_is_finished_when_both_are(here: Connector) -> None:
    spec = Spec("here", engine="decode")
    mine = spec.arrays(1)
    publish(here, spec, mine)
    specs = [Spec(f"there-{rank}", heads=4, tp=(rank, 2)) for rank in (0, 1)]
    with running(*specs) as ranks:
        peers = [here.connect(rank.call("metadata", during=here)) for rank in ranks]
        for rank in ranks:
            rank.call("expect", "r", {"readers": 1}, during=here)
        here.read_all([(peer, request((0, 32), [1, 2], [3, 4])) for peer in peers], id="r")
        (finished,) = [event for event in wait(here, "Finished") if isinstance(event, Finished)]
        assert [one.peer for one in finished.transfers] == ["there-0", "there-1"]
        for number, rank in enumerate(ranks):
            await_events(rank, here, ("Released", "r"))
            for layer, source in enumerate(rank.call("pages", during=here)):
                wanted = elements(source, rank.spec)[[3, 4]]
                got = elements(mine[layer], spec)[[1, 2], 4 * number : 4 * number + 4]
                np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("direction", ["read", "write"])
def test_the_rest_of_the_last_page_is_cleared(here: Connector, direction: str) -> None:
    """The source has bytes there too, and a row rounded up lands them: they must be gone all the same."""
    spec = same_shape("here")
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there")) as (there,):
        theirs = there.call("pages")
        peer = here.connect(there.call("metadata"), direction="read" if direction == "read" else "write")
        wanted = request((0, 21), [3, 9], [5, 1])
        (here.read if direction == "read" else here.write)(peer, wanted, id="r")
        wait(here, "Finished")
        after = there.call("pages", during=here)
        for layer in range(spec.layers):
            source, target = (theirs, mine) if direction == "read" else (mine, after)
            pages = ([5, 1], [3, 9]) if direction == "read" else ([3, 9], [5, 1])
            sent = elements(source[layer], spec)[pages[0]].copy()
            sent[1, :, 5:] = 0
            np.testing.assert_array_equal(elements(target[layer], spec)[pages[1]], sent)


def test_without_zero_the_rest_is_left_alone(here: Connector) -> None:
    """Token-major pages, so that the exact list ends with the last token."""
    spec = Spec("here", engine="decode", notation="n h k[d] v[d]")
    mine = spec.arrays(1)
    before = [array.copy() for array in mine]
    publish(here, spec, mine)
    with running(Spec("there", notation="n h k[d] v[d]")) as (there,):
        peer = here.connect(there.call("metadata"))
        here.read(peer, request((3, 8), [3], [5]), id="r", zero=False)
        wait(here, "Finished")
        source = there.call("pages", during=here)
        token = spec.format.page_bytes // 16
        for layer in range(spec.layers):
            expected = before[layer]
            expected[3, 3 * token : 8 * token] = source[layer][5, 3 * token : 8 * token]
            np.testing.assert_array_equal(mine[layer], expected)


def test_whichever_posts_less_is_used(here: Connector) -> None:
    """Two layers that touch on both sides: exact lists join across layers, prepared ids by page."""
    spec = Spec("here", engine="decode", one_allocation=True)
    mine = spec.arrays(1)
    publish(here, spec, mine)
    with running(Spec("there", one_allocation=True)) as (there,):
        peer = here.connect(there.call("metadata"))
        plan = peer.plan("read")
        last_and_first = request((0, 32), [15, 0], [15, 0])
        run = request((0, 64), [4, 5, 6, 7], [8, 9, 10, 11])
        for id, wanted in (("touching", last_and_first), ("run", run)):
            exact = len(plan.lists(wanted)[0])
            prepared = plan.posted(wanted)
            here.read(peer, wanted, id=id)
            (finished,) = [event for event in wait(here, "Finished") if isinstance(event, Finished)]
            (one,) = finished.transfers
            assert one.posted == min(exact, prepared)
            assert one.prepared == (prepared <= exact)
            assert one.bytes == int(plan.lists(wanted)[0][:, 1].sum())
            assert one.seconds > 0
        exact = len(plan.lists(last_and_first)[0])
        assert (exact, plan.posted(last_and_first)) == (3, 4)


def test_nothing_to_move_is_finished_and_told(here: Connector) -> None:
    spec = same_shape("here")
    publish(here, spec, spec.arrays(1))
    with running(Spec("there")) as (there,):
        peer = here.connect(there.call("metadata"))
        there.call("expect", "none", {"readers": 1})
        here.read(peer, request((0, 0), [], []), id="none")
        (finished,) = wait(here, "Finished")
        assert finished.bytes == 0
        await_events(there, here, ("Released", "none"))


def test_pages_are_released_by_the_last_reader_only(here: Connector) -> None:
    """One reader of two moves bytes, the other only notifies."""
    spec = same_shape("here")
    publish(here, spec, spec.arrays(1))
    with running(Spec("there")) as (there,), Connector("other") as other:
        publish(other, spec, spec.arrays(2))
        data = there.call("metadata")
        there.call("expect", "r", {"readers": 2})
        peer = here.connect(data, senders=2)
        for _ in range(2):  # A retry counts once.
            here.read(peer, request((0, 16), [0], [0]), id="r")
            wait(here, "Finished")
        assert there.call("events", during=here) == []
        quiet = other.connect(data, direction=None, senders=2)
        other.notify(quiet, "r")
        await_events(there, other, ("Released", "r"))


def test_notice_before_expect_counts(here: Connector) -> None:
    spec = same_shape("here")
    publish(here, spec, spec.arrays(1))
    with running(Spec("there")) as (there,):
        peer = here.connect(there.call("metadata"))
        here.read(peer, request((0, 16), [0], [0]), id="early")
        wait(here, "Finished")
        here.read(peer, request((0, 16), [0], [0]), id="own", notify=b"the host's own words")
        wait(here, "Finished")
        there.call("expect", "early", {}, during=here)
        await_events(there, here, ("Released", "early"))


def test_refusals_move_nothing_and_leave_nothing(here: Connector) -> None:
    spec = same_shape("here")
    mine = spec.arrays(1)
    before = [array.copy() for array in mine]
    publish(here, spec, mine)
    with running(Spec("there")) as (there,):
        peer = here.connect(there.call("metadata"))
        with pytest.raises(kvr.RequestError):
            here.read(peer, request((0, 16), [16], [0]), id="r")
        with pytest.raises(TransferError):
            here.read_all([(peer, request((0, 16), [0], [0])), (peer, request((0, 16), [1], [1]))], id="r")
        with pytest.raises(TransferError):
            here.read(peer, request((0, 16), [0], [0]), id="")
        assert here.in_flight == ()
        here.disconnect(peer)
        with pytest.raises(NotConnected) as caught:
            here.read(peer, request((0, 16), [0], [0]), id="r")
        assert (caught.value.peer, caught.value.request) == ("there", "r")
        assert here.poll() == []
        for array, untouched in zip(mine, before, strict=True):
            np.testing.assert_array_equal(array, untouched)


def test_incompatible_peer_is_refused_and_not_added(here: Connector) -> None:
    spec = Spec("here", engine="decode", size=16)
    publish(here, spec, spec.arrays(1))
    with running(Spec("there")) as (there,):
        with pytest.raises(kvr.IncompatibleLayout) as caught:
            here.connect(there.call("metadata"))
        assert caught.value.layer == "layers.0"


def test_connecting_again_gives_the_same_peer(here: Connector) -> None:
    spec = same_shape("here")
    publish(here, spec, spec.arrays(1))
    with running(Spec("there")) as (there,):
        data = there.call("metadata")
        assert here.connect(data) is here.connect(data, direction="write")


def test_ranks_by_route(here: Connector) -> None:
    """Two decode ranks pull from one prefill rank: the route says who reads what, and how many notices end it."""
    spec = Spec("here", engine="decode", heads=4, tp=(0, 2))
    mine = spec.arrays(1)
    decode = kvr.Engine.uniform(publish(here, spec, mine))
    with running(Spec("there")) as (there,):
        data = there.call("metadata")
        prefill = kvr.Engine([here.connect(data, direction=None).layout])
        route = kvr.route(local=decode, remote=prefill, direction="read")
        (edge,) = route.edges_of(local=0)
        assert route.readers == [2]
        peer = here.connect(data, edge=edge, senders=route.readers[0])
        here.read(peer, request((0, 16), [0], [0]), id="r")
        wait(here, "Finished")
        source = there.call("pages", during=here)[0]
        np.testing.assert_array_equal(elements(mine[0], spec)[0], elements(source, there.spec)[0, :4])
        there.call("expect", "r", {}, during=here)
        assert there.call("events", during=here) == []
