"""What an error tells: errors are data, so tests hold all of it."""

from __future__ import annotations


def told(error: BaseException | None) -> tuple[str, dict[str, object]]:
    """The text of an error, and those of its attributes that say something."""
    assert error is not None
    return str(error), {name: value for name, value in vars(error).items() if value is not None}
