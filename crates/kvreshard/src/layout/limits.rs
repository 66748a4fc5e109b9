//! Bounds on what one rank may describe. A peer's message is held to them while it is read; they are far above what engines have.

use crate::error::{Error, Result, hidden};
use crate::units::wide;

/// The most layers of a rank.
pub const MAX_LAYERS: usize = 16_384;
/// The most segments of a rank.
pub const MAX_SEGMENTS: usize = 131_072;
/// The most segments of one layer: one plane a head, K and V apart, and room.
pub const MAX_SEGMENTS_PER_LAYER: usize = 4_096;
/// The most components over all segments of a rank.
pub const MAX_PARTS: usize = 1_048_576;
/// The most regions of a rank.
pub const MAX_REGIONS: usize = 131_072;
/// The most groups of a rank.
pub const MAX_GROUPS: usize = 1_024;
/// The most sharded axes of a layer; Mamba-2 has four.
pub const MAX_TOTALS: usize = 8;
/// The longest layer name in bytes.
pub const MAX_LAYER_NAME_BYTES: usize = 1_024;
/// The longest engine id in bytes.
pub const MAX_ENGINE_BYTES: usize = 1_024;

/// [`Error::Limit`] when `found` is over `limit`.
pub(crate) fn within(what: &str, found: usize, limit: usize) -> Result<()> {
    if found > limit { Err(Error::limit(what, wide(found), wide(limit))) } else { Ok(()) }
}

/// [`Error::Layout`] when `text` has a character that a person does not see: it stands in errors and logs, which a peer could
/// otherwise forge lines of.
pub(crate) fn shown(what: &str, text: &str) -> Result<()> {
    match hidden(text) {
        Some(c) => Err(Error::layout(None, what, c.escape_unicode(), "characters that print")),
        None => Ok(()),
    }
}
