//! One NIXL registration.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::units::add;

/// The kind of memory behind a region, by NIXL's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Host memory.
    Dram,
    /// Device memory.
    Vram,
}

impl MemoryKind {
    /// NIXL's name, `DRAM` or `VRAM`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dram => "DRAM",
            Self::Vram => "VRAM",
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MemoryKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "DRAM" => Ok(Self::Dram),
            "VRAM" => Ok(Self::Vram),
            other => Err(Error::layout(None, "memory kind", other, "DRAM or VRAM")),
        }
    }
}

/// One NIXL registration: `bytes` bytes from address `base` on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    base: u64,
    bytes: u64,
    device: u32,
    memory: MemoryKind,
}

impl Region {
    /// A region of at least one byte whose end fits 64 bits.
    ///
    /// # Errors
    /// [`Error::Layout`] when it is empty, [`Error::Overflow`] when its end wraps: NIXL accepts such a span and then moves
    /// bytes elsewhere.
    pub fn new(base: u64, bytes: u64, device: u32, memory: MemoryKind) -> Result<Self> {
        if bytes == 0 {
            return Err(Error::layout(None, "region bytes", 0, "at least 1"));
        }
        add(base, bytes, "region base + region bytes")?;
        Ok(Self { base, bytes, device, memory })
    }

    /// The first address.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// The length in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// NIXL's device id: 0 for host memory, the CUDA ordinal for device memory.
    pub const fn device(&self) -> u32 {
        self.device
    }

    /// Host or device memory.
    pub const fn memory(&self) -> MemoryKind {
        self.memory
    }
}
