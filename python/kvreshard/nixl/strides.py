"""Whether a tensor's strides say the same as the page format declared for it.

A format is a claim about bytes that no size can contradict: token-major pages declared head-major have the right length
and arrive scrambled. The tensor's strides are the one witness at hand, so they are heard before anything is registered.

    tensor [B, H, N, 2D], strides N*H*2D, 2D, H*2D, 1        declared "h n k[d] v[d]"
                                          ^ token-major                 ^ a head every N*2D

Axes are heard by name. `axes` names the tensor's axes after the first (the pages), `None` for one that the format does
not know, such as the packed `2D`. Without `axes`, those axes of the format are heard that run around all components
(`h` and `n` above), each at the tensor axis of its extent; what a bracket holds (`k[h d/8 n d%8]`) is an interior that
a tensor's shape does not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, combinations, permutations

import kvreshard as kvr

from .buffers import Buffer
from .errors import TensorMismatch

Axes = Sequence[str | None]


def check(layer: str, memory: Buffer, form: kvr.PageFormat, axes: Axes | None = None) -> None:
    """Raises `TensorMismatch` unless the pages of `memory` (its first axis counts them) can be pages of `form`."""
    if len(memory.shape) < 2:
        raise TensorMismatch(
            f"layer {layer}: a tensor of {len(memory.shape)} axes has no pages to look at: the first axis counts pages",
            layer=layer,
            field="shape",
            found=str(list(memory.shape)),
            expected="[pages, ...]",
        )
    _check_bytes(layer, memory, form)
    if axes is None:
        axes = _inferred(layer, memory, form)
    elif len(axes) != len(memory.page_shape):
        raise TensorMismatch(
            f"layer {layer}: axes names {len(axes)} axes, a page of the tensor has {len(memory.page_shape)}",
            layer=layer,
            field="axes",
            found=str(list(axes)),
            expected=f"{len(memory.page_shape)} names, None for an axis that the format does not know",
        )
    for wrong in _contradictions(layer, memory, form, axes):
        raise wrong


def _check_bytes(layer: str, memory: Buffer, form: kvr.PageFormat) -> None:
    """A page of the tensor must be as long as a page of the format, and without holes."""
    held = memory.item_bytes
    span = memory.item_bytes
    for size, stride in zip(memory.page_shape, memory.page_strides, strict=True):
        held *= size
        span += (size - 1) * stride
    if held != form.page_bytes:
        raise TensorMismatch(
            f"layer {layer}: a page of the tensor {list(memory.shape)} has {held} bytes, "
            f"a page of {form} has {form.page_bytes}",
            layer=layer,
            field="page bytes",
            found=str(held),
            expected=str(form.page_bytes),
            remedy="give the axis of pages first, and write bytes that the tensor lacks or adds as pad[...]",
        )
    if span != held or any(stride < 0 for stride in memory.page_strides):
        raise TensorMismatch(
            f"layer {layer}: a page of the tensor spans {span} bytes for {held} of content (strides in bytes "
            f"{list(memory.page_strides)}), and a page of {form} has no holes there",
            layer=layer,
            field="page",
            found=f"{span} bytes spanned",
            expected=f"{held} bytes in one piece",
            remedy="register each plane as a segment of its own, or give the memory as a kvreshard.Region",
        )


def _contradictions(layer: str, memory: Buffer, form: kvr.PageFormat, axes: Axes) -> Iterator[TensorMismatch]:
    for position, axis in enumerate(axes):
        if axis is None:
            continue
        size, stride = memory.page_shape[position], memory.page_strides[position]
        extent = form.extents.get(axis)
        if extent != size:
            yield TensorMismatch(
                f"layer {layer}: tensor axis {position + 1} is called {axis} and has {size} entries, "
                f"{form} has {extent}",
                layer=layer,
                field=axis,
                found=str(size),
                expected=str(extent),
            )
            continue
        for component in form.components:
            for index, implied in enumerate(_places(form, component, axis)):
                if implied != index * stride:
                    step = f"{implied} bytes to index {index}" if index > 1 else f"{implied} bytes"
                    yield TensorMismatch(
                        f"layer {layer}: axis {axis} has a stride of {stride} bytes in the tensor (shape "
                        f"{list(memory.shape)}, strides {list(memory.strides)} bytes), but component {component} of "
                        f"{form} implies {step}",
                        layer=layer,
                        field=axis,
                        found=str(stride),
                        expected=step,
                        remedy="declare the format that the cache is written in, or name the tensor's axes with axes=",
                    )
                    break


def _inferred(layer: str, memory: Buffer, form: kvr.PageFormat) -> Axes:
    """The tensor's axes by extent. Where extents leave a choice, one that fits the strides counts only if every choice
    does.
    """
    wanted = [(axis, form.extents[axis]) for axis in _surrounding(form)]
    wanted = [(axis, extent) for axis, extent in wanted if extent in memory.page_shape]
    inside = min((_places(form, form.components[0], axis)[1] for axis, _ in wanted), default=0)
    around = [place for place, stride in enumerate(memory.page_strides) if stride >= inside]
    # An axis of smaller stride lies inside all of these; should none fit without it, something is wrong anyway.
    named = _placements(memory, wanted, around) or _placements(memory, wanted, range(len(memory.page_shape)))
    fits = [next(_contradictions(layer, memory, form, names), None) is None for names in named]
    if any(fits) and not all(fits):
        raise TensorMismatch(
            f"layer {layer}: axes of equal size make the tensor {list(memory.shape)} (strides "
            f"{list(memory.strides)} bytes) fit {form} or not, depending on which is which: name them, such as "
            f"axes={list(named[fits.index(True)])}",
            layer=layer,
            field="axes",
            found=f"shape {list(memory.shape)}",
            expected="axes named",
            remedy="give axes=, a name for each tensor axis after the first, None for one the format does not know",
        )
    return named[0] if named else [None] * len(memory.page_shape)


def _placements(memory: Buffer, wanted: list[tuple[str, int]], places: Sequence[int]) -> list[Axes]:
    """Every way to find the `wanted` axes among `places` of the tensor by their extents."""
    named: list[Axes] = []
    for chosen in permutations(places, len(wanted)):
        if all(memory.page_shape[place] == extent for place, (_, extent) in zip(chosen, wanted, strict=True)):
            names: list[str | None] = [None] * len(memory.page_shape)
            for place, (axis, _) in zip(chosen, wanted, strict=True):
                names[place] = axis
            named.append(names)
    return named


def _surrounding(form: kvr.PageFormat) -> list[str]:
    """The axes that run around all components: the same stride in each, wide enough to hold every component's start."""
    found = []
    starts = [form.offset(component, **dict.fromkeys(_axes(form, component), 0)) for component in form.components]
    for axis, extent in form.extents.items():
        if any(axis not in _axes(form, component) for component in form.components):
            continue
        places = {_places(form, component, axis) for component in form.components}
        if len(places) != 1 or extent < 2:
            continue
        (steps,) = places
        plain = all(step == index * steps[1] for index, step in enumerate(steps))
        if plain and max(starts) - min(starts) < steps[1]:
            found.append(axis)
    return found


def _places(form: kvr.PageFormat, component: str, axis: str) -> tuple[int, ...]:
    """Bytes from index 0 of `axis` to each of its indices, the other axes at 0; one entry when the component lacks the
    axis.
    """
    return _all_places(form.notation, tuple(form.extents.items()), tuple(form.types.items()), component, axis)


@lru_cache(maxsize=4096)
def _all_places(
    notation: str, extents: tuple[tuple[str, int], ...], types: tuple[tuple[str, str], ...], component: str, axis: str
) -> tuple[int, ...]:
    # Keyed by what was written: formats that differ by an axis of extent 1 are equal.
    form = kvr.PageFormat(notation, extents=dict(extents), types=dict(types))
    axes = _axes(form, component)
    if axis not in axes:
        return (0,)
    index = dict.fromkeys(axes, 0)
    first = form.offset(component, **index)
    return tuple(form.offset(component, **{**index, axis: at}) - first for at in range(form.extents[axis]))


def _axes(form: kvr.PageFormat, component: str) -> tuple[str, ...]:
    return _all_axes(form.notation, tuple(form.extents.items()), tuple(form.types.items()), component)


@lru_cache(maxsize=1024)
def _all_axes(
    notation: str, extents: tuple[tuple[str, int], ...], types: tuple[tuple[str, str], ...], component: str
) -> tuple[str, ...]:
    """The axes on a component's path: the one set that `offset` takes."""
    form = kvr.PageFormat(notation, extents=dict(extents), types=dict(types))
    names = ("", *form.extents)
    for chosen in chain.from_iterable(combinations(names, count) for count in range(len(names), -1, -1)):
        try:
            form.offset(component, **dict.fromkeys(chosen, 0))
        except kvr.FormatError:
            continue
        return chosen
    raise AssertionError(f"component {component} of {form} has no element")
