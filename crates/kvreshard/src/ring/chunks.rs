//! A request's bytes, cut into chunks of one size.

use crate::error::{Error, Result};
use crate::units::{div_ceil, mul, sub};

/// The most chunks a request may have.
pub const MAX_CHUNKS: u64 = 1 << 20;

/// How a request's packed bytes are cut: chunks of `chunk_bytes` each, the last one shorter where they do not divide.
/// Both sides derive it from the same plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunks {
    bytes: u64,
    chunk_bytes: u64,
    count: u32,
}

impl Chunks {
    /// `bytes` in chunks of `chunk_bytes`.
    ///
    /// # Errors
    /// [`Error::Limit`] when there is no byte, no room in a chunk, or more than [`MAX_CHUNKS`] chunks.
    pub fn new(bytes: u64, chunk_bytes: u64) -> Result<Self> {
        if bytes == 0 || chunk_bytes == 0 {
            return Err(Error::limit("bytes missing from a request or its chunks", 1, 0));
        }
        let count = div_ceil(bytes, chunk_bytes, "chunks of a request")?;
        let too_many = || Error::limit("chunks of a request", count, MAX_CHUNKS);
        let fits = if count > MAX_CHUNKS { None } else { u32::try_from(count).ok() };
        Ok(Self { bytes, chunk_bytes, count: fits.ok_or_else(too_many)? })
    }

    /// All bytes of the request.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Bytes of every chunk but the last.
    pub const fn chunk_bytes(self) -> u64 {
        self.chunk_bytes
    }

    /// How many chunks; at least one.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Where chunk `sequence` begins in the request's packed bytes, and how many bytes it has.
    ///
    /// # Errors
    /// [`Error::Limit`] when there is no such chunk.
    pub fn span(self, sequence: u32) -> Result<(u64, u64)> {
        if sequence >= self.count {
            return Err(Error::limit("index of a chunk", sequence.into(), self.count.saturating_sub(1).into()));
        }
        let start = mul(sequence.into(), self.chunk_bytes, "offset of a chunk")?;
        Ok((start, sub(self.bytes, start, "bytes of a chunk")?.min(self.chunk_bytes)))
    }
}
