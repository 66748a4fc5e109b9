//! What a backend's name leaves open about the inside of its pages.

use super::facts::Facts;

/// How pages are built, as far as stock peers confuse them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Interior {
    Packed,
    TwoSlotTokens,
    Shuffle,
    RocmAttn,
    RocmAttnFused,
    Page16,
    CpuVec,
    CpuAmx,
    CpuOther,
    Nvfp4Linear,
    Nvfp4Swizzled,
    Nvfp4Msa,
    TokenHeadScales,
    TurboStructures,
    TurboArrays,
    UltraQuant,
    Octave,
    Rows,
    Latent,
    Indexer,
    State,
    Unknown,
}

impl Interior {
    /// What pages of `backend` may be, given what is known; one entry where it is certain.
    pub(super) fn of(backend: &str, facts: &Facts) -> Vec<Self> {
        let platform = facts.platform.as_deref();
        let amd = platform.map(|name| name.starts_with("gfx"));
        let nvfp4 = facts.cache_dtype == "nvfp4";
        let either = |known: Option<bool>, yes: Self, no: Self| match known {
            Some(true) => vec![yes],
            Some(false) => vec![no],
            None => vec![no, yes],
        };
        // Only AMD devices shuffle, and only where the variable is set.
        let shuffled = match (amd, facts.shuffle) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (_, Some(true)) => Some(true),
            _ => None,
        };
        match backend {
            "FLASH_ATTN" => either(shuffled, Self::Shuffle, Self::Packed),
            "MINIMAX_M3_SPARSE" if nvfp4 => vec![Self::Nvfp4Msa],
            "MINIMAX_M3_SPARSE" => either(shuffled, Self::Page16, Self::Packed),
            "FLASHINFER" if nvfp4 => {
                either(platform.map(|name| name.starts_with("sm10")), Self::Nvfp4Swizzled, Self::Nvfp4Linear)
            }
            "TRITON_ATTN" if facts.cache_dtype.contains("per_token_head") => vec![Self::TokenHeadScales],
            "B12X" | "ROCM_SEGMENTED_ATTN" => vec![Self::TwoSlotTokens],
            "ROCM_ATTN" => either(facts.fused_cache_pass, Self::RocmAttnFused, Self::RocmAttn),
            "CPU_ATTN" => match facts.isa.as_deref() {
                Some("amx") => vec![Self::CpuAmx],
                Some("bfmmla") => vec![Self::CpuOther],
                Some(_) => vec![Self::CpuVec],
                None => vec![Self::CpuVec, Self::CpuAmx],
            },
            "TURBOQUANT" => either(platform.map(|name| name == "gfx950"), Self::TurboArrays, Self::TurboStructures),
            "ULTRAQUANT" => vec![Self::UltraQuant],
            "ROCM_OCTAVE" => vec![Self::Octave],
            name if name.contains("INDEXER") => vec![Self::Indexer],
            name if name.contains("DSV4") || name == "DEEPSEEK_SPARSE_SWA" => vec![Self::Latent],
            name if name.contains("MLA") => vec![Self::Rows],
            name if name.contains("MAMBA") || name.contains("GDN") || name.contains("SHORT_CONV") => vec![Self::State],
            "TRITON_ATTN"
            | "FLASHINFER"
            | "FLASH_ATTN_DIFFKV"
            | "TRITON_ATTN_DIFFKV"
            | "FLEX_ATTENTION"
            | "HPC_ATTN"
            | "ROCM_AITER_UNIFIED_ATTN"
            | "INKLING_SCONV_SWA" => vec![Self::Packed],
            _ => vec![Self::Unknown],
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Packed => "packed",
            Self::TwoSlotTokens => "two slots, token-major",
            Self::Shuffle => "AITER shuffle",
            Self::RocmAttn => "ROCM_ATTN",
            Self::RocmAttnFused => "ROCM_ATTN with V shuffled",
            Self::Page16 => "page-16",
            Self::CpuVec => "CPU vec",
            Self::CpuAmx => "CPU AMX",
            Self::CpuOther => "CPU, packed by its library",
            Self::Nvfp4Linear => "NVFP4, linear V scales",
            Self::Nvfp4Swizzled => "NVFP4, swizzled V scales",
            Self::Nvfp4Msa => "NVFP4 MSA",
            Self::TokenHeadScales => "scales beside each token and head",
            Self::TurboStructures => "TurboQuant, arrays of structures",
            Self::TurboArrays => "TurboQuant, structures of arrays",
            Self::UltraQuant => "UltraQuant",
            Self::Octave => "ROCM_OCTAVE",
            Self::Rows => "MLA rows",
            Self::Latent => "latent pages with scales at their tail",
            Self::Indexer => "indexer pages with scales at their tail",
            Self::State => "states",
            Self::Unknown => "unknown",
        }
    }

    pub(super) const fn is_cpu(self) -> bool {
        matches!(self, Self::CpuVec | Self::CpuAmx | Self::CpuOther)
    }

    /// Whether a page is a slot of all K, then one of all V.
    pub(super) const fn is_two_slot(self) -> bool {
        matches!(self, Self::TwoSlotTokens | Self::Shuffle | Self::RocmAttn | Self::RocmAttnFused | Self::Page16)
    }

    /// Whether tokens are woven into the page so that pages of another length are no simple cut of it.
    pub(super) const fn is_woven(self) -> bool {
        matches!(
            self,
            Self::Shuffle
                | Self::RocmAttn
                | Self::RocmAttnFused
                | Self::CpuVec
                | Self::CpuAmx
                | Self::CpuOther
                | Self::Nvfp4Linear
                | Self::Nvfp4Swizzled
                | Self::Latent
                | Self::Indexer
        )
    }
}
