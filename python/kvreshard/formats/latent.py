"""Pages of latent rows (MLA) and of the indexers beside them; every rank holds the same bytes."""

from __future__ import annotations

from typing import Any

from kvreshard import preset
from kvreshard.formats.case import SIXTEEN_BIT, Case, Pages, Unknown, codes_of, element_of, whole


def mla(case: Case) -> Pages | Unknown:
    """F15: one latent row a token, the same on every rank."""
    if int(case.spec.num_heads) != 1:
        return Unknown(f"backend {case.backend}: {case.spec.num_heads} slots, and MLA rows have 1")
    if getattr(case.spec, "model_version", None) is not None:
        return deepseek(case)
    cache = getattr(case.spec, "cache_dtype_str", None) or case.settings.cache_dtype
    if case.content == 656 and cache == "fp8_ds_mla":
        encoding = case.settings.fp8
        if encoding is None:
            return Unknown(f"backend {case.backend}: which fp8 encoding its rows have is not known")
        return whole(preset("mla-fp8-ds", n=case.states, dtype=encoding), "mla-fp8-ds", shards=())
    if case.content == 352 and cache == "nvfp4_ds_mla":
        return whole(preset("mla-nvfp4-ds", n=case.states), "mla-nvfp4-ds", shards=())
    codes = codes_of(case)
    if isinstance(codes, Unknown):
        return codes
    if codes is not None:
        elements = case.head_size // 2 if codes == "i4x2" else case.head_size
        form = preset("mla-per-token-head", n=case.states, r=elements, dtype=codes)
        return whole(form, "mla-per-token-head", shards=())
    if case.content is not None:
        return Unknown(f"backend {case.backend}: rows of {case.content} bytes ({cache}) are not known")
    element = element_of(case)
    if isinstance(element, Unknown):
        return element
    form = preset("mla", n=case.states, r=case.head_size, dtype=element)
    return whole(form, "mla", shards=(), standard=element in SIXTEEN_BIT)


def deepseek(case: Case) -> Pages | Unknown:
    """F16: latent pages of DeepSeek-V4 and V4.1."""
    kernel = case.settings.kernel_states or case.states
    if case.content == 584 and getattr(case.spec, "alignment", None) == 576:
        codes = case.settings.fp8
        if codes is None:
            return Unknown(f"backend {case.backend}: which fp8 encoding its rows have is not known")
        form = preset("deepseek-v4", n=case.states, dtype=codes, kernel_n=kernel)
        return whole(form, "deepseek-v4", shards=())
    if case.content == 528:
        return whole(preset("deepseek-v4.1", n=case.states), "deepseek-v4.1", shards=())
    if case.content is not None:
        return Unknown(f"backend {case.backend}: latent rows of {case.content} bytes are not known")
    element = element_of(case)
    if isinstance(element, Unknown):
        return element
    return whole(preset("mla", n=case.states, r=case.head_size, dtype=element), "mla", shards=())


def indexer(case: Case) -> Pages | Unknown:
    """F17: rows of a DSA indexer with a scale a row behind them."""
    scales = case.settings.indexer_scales
    tiled = case.settings.indexer_tiled
    codes = case.settings.fp8
    width = case.content or case.head_size * element_bytes(case.spec.dtype)
    if scales is None or tiled is None or codes is None:
        return Unknown(f"backend {case.backend}: the encoding of its rows and scales is not known")
    sizes: dict[str, Any] = {"n": case.states, "d": width - 4, "dtype": codes}
    if tiled and case.states > 1:
        return whole(preset("dsa-indexer-rocm", **sizes), "dsa-indexer-rocm", shards=())
    kernel = case.settings.kernel_states or case.states
    return whole(preset("dsa-indexer", scales=scales, kernel_n=kernel, **sizes), "dsa-indexer", shards=())


def indexer_rows(case: Case) -> Pages | Unknown:
    element = element_of(case)
    if isinstance(element, Unknown):
        return element
    form = preset("indexer-rows", n=case.states, d=case.head_size, dtype=element)
    return whole(form, "indexer-rows", shards=())


def summaries(case: Case) -> Pages | Unknown:
    """Rows of fp8 that each sum up a closed region of tokens, whatever the cache's own dtype."""
    if case.settings.fp8 is None:
        return Unknown(f"backend {case.backend}: which fp8 encoding its rows have is not known")
    form = preset("indexer-rows", n=case.states, d=case.head_size, dtype=case.settings.fp8)
    return whole(form, "summary-rows", shards=())


def element_bytes(dtype: Any) -> int:
    return int(dtype.itemsize)
