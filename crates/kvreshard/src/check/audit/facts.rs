//! What an operator knows of an engine and its handshake does not say.

use crate::shard::Place;

/// What an operator knows of an engine. What is not known is left out; the audit then says where it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The attention backend of every layer, by the name that it reports; empty when only the first is known, from the handshake.
    pub backends: Vec<String>,
    /// Whether `VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT` is set and AITER in use.
    pub shuffle: Option<bool>,
    /// The device: `sm80`, `sm90`, `sm100`, `sm120`, `gfx942`, `gfx950`, `cpu`, ...
    pub platform: Option<String>,
    /// What CPU_ATTN packs for: `amx`, `vec`, `neon`, ...
    pub isa: Option<String>,
    /// The cache's element type, as vLLM names it: `auto`, `fp8`, `nvfp4`, `turboquant_k8v4`, `int8_per_token_head`, ...
    pub cache_dtype: String,
    /// KV heads of the model.
    pub heads: Option<u64>,
    /// The rank's tensor-parallel place.
    pub tp: Place,
    /// Whether ROCM_ATTN runs with the fused norm, rope and cache pass.
    pub fused_cache_pass: Option<bool>,
    /// Whether the model has a sparse indexer (DSA).
    pub sparse_indexer: bool,
    /// Groups of a Mamba-2 model.
    pub mamba_groups: Option<u64>,
    /// Rows of the convolution's state: the kernel less one, and the speculative tokens.
    pub conv_rows: Option<u64>,
    /// `--cp-kv-cache-interleave-size`.
    pub cp_interleave: Option<u64>,
    /// Whether peers with another hash are refused (`enforce_handshake_compat`).
    pub hash_enforced: bool,
    /// Whether the engine pushes.
    pub push: bool,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            backends: Vec::new(),
            shuffle: None,
            platform: None,
            isa: None,
            cache_dtype: "auto".to_owned(),
            heads: None,
            tp: Place::ALONE,
            fused_cache_pass: None,
            sparse_indexer: false,
            mamba_groups: None,
            conv_rows: None,
            cp_interleave: None,
            hash_enforced: true,
            push: false,
        }
    }
}

impl Facts {
    /// KV heads that this rank holds.
    pub(super) fn heads_held(&self) -> Option<u64> {
        self.tp.share(self.heads?).ok().map(crate::units::Interval::len)
    }

    pub(super) fn is_fp8(&self) -> bool {
        matches!(self.cache_dtype.as_str(), "fp8" | "fp8_e4m3")
    }

    /// Whether the device's fp8 is e4m3fnuz.
    pub(super) fn has_fnuz(&self) -> Option<bool> {
        self.platform.as_ref().map(|name| name.starts_with("gfx94"))
    }

    /// Whether the device has e4m3fn: keys are coded as e4m3b15 below SM 8.9.
    pub(super) fn has_native_fp8(&self) -> Option<bool> {
        let name = self.platform.as_deref()?;
        let version = name.strip_prefix("sm").and_then(|number| number.parse::<u64>().ok());
        Some(version.is_none_or(|version| version >= 89))
    }
}
