"""Pages of one recurrent state."""

from __future__ import annotations

from typing import Any

from kvreshard import preset
from kvreshard.formats.case import TORCH_TYPES, Case, Pages, Unknown, whole


def state(case: Case) -> Pages | Unknown:
    """F18: one recurrent state a page, its parts back to back."""
    kind = str(getattr(case.spec.mamba_type, "name", case.spec.mamba_type))
    channels = case.settings.conv_channels
    names = [TORCH_TYPES.get(str(dtype).removeprefix("torch."), "") for dtype in case.spec.dtypes]
    if case.spec.tp_replicated:
        return Unknown(f"state {kind}: held whole by every rank")
    if not all(names):
        return Unknown(f"state {kind}: element types {case.spec.dtypes} are not known")
    shapes = [tuple(int(extent) for extent in shape) for shape in case.spec.shapes]
    page: dict[str, Any] = {"page_bytes": int(case.spec.page_size_bytes)}
    if kind in ("LINEAR", "LINEAR_ATTN", "BAILING_LINEAR") and len(shapes) == 1 and len(shapes[0]) == 3:
        h, dk, dv = shapes[0]
        form = preset("linear-attention", h=h, dk=dk, dv=dv, state_dtype=names[0], **page)
        return whole(form, "linear-attention")
    if channels is None or case.settings.conv_first is None:
        return Unknown(f"state {kind}: how its convolution is split is not known")
    order = "ds" if case.settings.conv_first else "sd"
    rows = shapes[0][1] if case.settings.conv_first else shapes[0][0]
    if sum(channels) * rows != shapes[0][0] * shapes[0][1]:
        return Unknown(f"state {kind}: convolution parts of {channels} channels are not the {shapes[0]} of the spec")
    common = {"t": rows, "dtype": names[0], "order": order, **page}
    if kind == "MAMBA1" and len(channels) == 1 and len(shapes) == 2:
        return whole(
            preset("mamba1", cx=channels[0], s=shapes[1][1], state_dtype=names[1], **common), "mamba1", shards=("cx",)
        )
    if len(channels) != 3 or len(shapes) != 2 or len(shapes[1]) != 3:
        return Unknown(f"state {kind}: a convolution in {len(channels)} parts with states {shapes[1:]} is not known")
    h, p, s = shapes[1]
    first, second, third = channels
    if kind == "MAMBA2":
        form = preset("mamba2", cx=first, cb=second, cc=third, h=h, p=p, s=s, state_dtype=names[1], **common)
        return whole(form, "mamba2", shards=("cx", "cb", "cc", "h"))
    if kind == "GDN_ATTN":
        form = preset("gdn", cq=first, ck=second, cv=third, h=h, dv=p, dk=s, state_dtype=names[1], **common)
        return whole(form, "gdn", shards=("cq", "ck", "cv", "h"))
    return Unknown(f"state {kind} is not known")
