"""Errors of the native module: one class each, and every part of the sentence an attribute."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import kvreshard as kvr
from tests.bindings.given import TOKENS, narrower, only_edge, other_layer, page, rank, request

ATTRIBUTES = {"layer", "field", "local", "remote", "found", "expected", "remedy", "at", "side", "limit", "group"}


ERRORS: list[tuple[Callable[[], object], type[kvr.Error], dict[str, Any]]] = [
    (lambda: kvr.PageFormat("k[h", h=1, dtype="u8"), kvr.FormatError, {"at": 3, "found": "the end"}),
    (lambda: kvr.PageFormat("k[h]", dtype="u8"), kvr.FormatError, {"field": "h", "at": 2}),
    (lambda: kvr.PageFormat("k[h]", h=2, dtype="fp8"), kvr.FormatError, {"field": 'type "fp8"', "at": None}),
    (lambda: page().offset("q"), kvr.FormatError, {"field": "q"}),
    (lambda: kvr.preset("nonsense"), kvr.FormatError, {"field": 'preset "nonsense"'}),
    (lambda: kvr.PageFormat("x" * 5000), kvr.LimitExceeded, {"found": 5000, "limit": 4096}),
    (lambda: kvr.PageFormat("k[a b]", a=2**40, b=2**40, dtype="u8"), kvr.ArithmeticOverflow, {}),
    (lambda: kvr.Region(2**64 - 1, 2), kvr.ArithmeticOverflow, {"field": "region base + region bytes"}),
    (lambda: kvr.Region(0, 0), kvr.LayoutError, {"layer": None, "field": "region bytes", "found": "0"}),
    (lambda: kvr.Layer("a", []), kvr.LayoutError, {"layer": "a", "field": "segments"}),
    (lambda: kvr.plan(rank(), narrower()), kvr.IncompatibleLayout, {"layer": "layers.0"}),
    (
        lambda: kvr.route(local=kvr.Engine([rank()]), remote=kvr.Engine([other_layer()])),
        kvr.MissingLayer,
        {"layer": "layers.0", "side": "remote", "field": "the layer"},
    ),
    (
        lambda: kvr.plan(rank(), rank(side="remote")).ids(request(TOKENS, [32], [0])),
        kvr.RequestError,
        {"side": "local", "group": 0, "field": "block id", "found": "32"},
    ),
    (lambda: kvr.Request((2, 1), [], []), kvr.RequestError, {"field": "tokens", "side": None}),
    (lambda: kvr.RankLayout.from_bytes(b"nonsense"), kvr.WireError, {}),
    (
        lambda: kvr.plan(rank(), rank(), edge=only_edge(), direction="write"),
        kvr.LayoutError,
        {"field": "direction", "found": "write"},
    ),
]


@pytest.mark.parametrize(("fail", "kind", "expected"), ERRORS)
def test_errors_carry_their_parts(fail: Callable[[], object], kind: type[kvr.Error], expected: dict[str, Any]) -> None:
    with pytest.raises(kvr.Error) as caught:
        fail()
    error = caught.value
    assert type(error) is kind
    assert {name: getattr(error, name) for name in expected} == expected
    assert all(hasattr(error, name) for name in ATTRIBUTES)
    for name in ("layer", "field", "found", "local", "remote"):
        # The sentence names every part that a program can read.
        assert str(getattr(error, name) or "") in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


def test_incompatible_sides_show_both_values_and_the_layer() -> None:
    with pytest.raises(kvr.IncompatibleLayout) as caught:
        kvr.plan(rank(), narrower())
    assert caught.value.local is not None
    assert caught.value.remote is not None
    assert "64" in caught.value.local
    assert "32" in caught.value.remote


def test_every_exception_is_an_error_with_defaults() -> None:
    kinds = [value for value in vars(kvr).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(kinds) == 10
    for kind in kinds:
        assert issubclass(kind, kvr.Error)
        assert kind.__module__ == "kvreshard"
        assert kind.__doc__
        fresh = kind("text")
        assert {getattr(fresh, name) for name in ATTRIBUTES} == {None}


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda: kvr.PageFormat(3), TypeError),  # type: ignore[arg-type]
        (lambda: kvr.PageFormat("k[h]", h="2", dtype="u8"), TypeError),  # type: ignore[arg-type]
        (lambda: kvr.PageFormat("k[h]", extents={"h": 2}, h=2, dtype="u8"), TypeError),
        (lambda: kvr.PageFormat("k[h]", h=-1, dtype="u8"), OverflowError),
        (lambda: kvr.PageFormat("k[h]", h=2**64, dtype="u8"), OverflowError),
        (lambda: kvr.Group(tokens_per_state=0.5), TypeError),  # type: ignore[arg-type]
        (lambda: kvr.RankLayout.from_bytes("text"), TypeError),  # type: ignore[arg-type]
        (lambda: setattr(page(), "page_bytes", 3), AttributeError),
        (lambda: kvr.plan(rank(), page()), TypeError),  # type: ignore[arg-type]
    ],
)
def test_wrong_python_types_are_python_errors(wrong: Callable[[], object], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        wrong()
