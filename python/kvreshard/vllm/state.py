"""Attributes of workers that no constructor makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class FirstUse(Generic[T]):
    """An attribute that is made when first asked for, once, whichever thread asks first.

    vLLM builds workers without running their constructors in places, so there is no earlier moment.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        state: dict[str, Any] = instance.__dict__
        try:
            found: T = state[self._name]
        except KeyError:
            found = state.setdefault(self._name, self._make())
        return found

    def __set__(self, instance: Any, value: T) -> None:
        instance.__dict__[self._name] = value
