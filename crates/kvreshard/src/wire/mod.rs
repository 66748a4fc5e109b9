//! A rank layout as bytes: msgpack, so that other implementations can read it with a common library.
//!
//! ```text
//! [ 1,                                   major version; a newer one is refused
//!   { "engine", "generation",            whose registration
//!     "place":     {"tp": [rank, size], "pp": [rank, size], "cp": [rank, size, interleave]},
//!     "regions":   [[base, bytes, device, "DRAM"], ..],
//!     "groups":    [{"kind", "pages_per_block", "tokens_per_state": [tokens, states], "window"}, ..],
//!     "formats":   [{"notation", "extents": {axis: extent}, "types": {component: type}, "fingerprint"}, ..],
//!     "kinds":     [{"group", "totals": {axis: total}, "segments": [[format, pages, page stride, {axis: [start, end]}], ..]}, ..],
//!     "templates": ["model.layers.#.attn", ..],
//!     "layers":    [[name, kind, [[region, offset], ..]], ..] } ]
//! ```
//!
//! Equal layers share a kind, so eighty of them cost little more than their addresses. A name is a text, or `[template, number, ..]`
//! with the numbers in the place of the `#`s. Unknown keys of a map are ignored.
//!
//! [`RegionTags`] is the part of it without addresses, for a host whose own metadata has them.
//!
//! Bytes from a peer are hostile until they are a [`RankLayout`]: the length is bounded first, nothing is allocated by a claimed
//! length, lists stop being read at the bounds of [`crate::layout`], and every field goes through the same constructors as a layout
//! made here.

pub(crate) mod bounded;
mod format;
mod message;
mod names;
mod tags;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::layout::RankLayout;
use crate::units::wide;

use message::Body;

/// The major version that is written, and the newest that is read.
pub const VERSION: u64 = 1;

/// The longest message that is read: 8 MiB, room for every segment of the largest layout in a region of its own.
pub const MAX_MESSAGE_BYTES: usize = 1 << 23;

/// How deep a message may nest, unknown fields included.
pub const MAX_MESSAGE_NESTING: usize = 32;

pub use format::MAX_FORMATS;
pub use tags::{HostRegion, RegionTag, RegionTags};

/// A msgpack array of two: version and body.
const PAIR: u8 = 0x92;

impl RankLayout {
    /// The layout as a message for peers.
    ///
    /// # Errors
    /// [`Error::Wire`] when it cannot be written, [`Error::Limit`] when the message is longer than a peer reads.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        write(&Body::of(self)?)
    }

    /// Reads a message of [`to_bytes`](Self::to_bytes), from any build that speaks the same major version.
    ///
    /// # Errors
    /// [`Error::Wire`] saying where decoding stopped, [`Error::Version`] for a newer major version, [`Error::Limit`] for what is too
    /// large, and whatever [`RankLayout::new`] refuses.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        read::<Body>(bytes)?.into_layout()
    }
}

/// Version and `body` as one message.
fn write(body: &impl Serialize) -> Result<Vec<u8>> {
    let failed = |error: rmp_serde::encode::Error| Error::Wire { at: "writing".to_owned(), problem: error.to_string() };
    let mut bytes = vec![PAIR];
    let mut writer = rmp_serde::Serializer::new(&mut bytes).with_struct_map();
    VERSION.serialize(&mut writer).map_err(failed)?;
    body.serialize(&mut writer).map_err(failed)?;
    check_length(&bytes)?;
    Ok(bytes)
}

/// The body of one message, its version checked before anything else is looked at.
fn read<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T> {
    check_length(bytes)?;
    let Some((&PAIR, rest)) = bytes.split_first() else {
        let problem = "not a layout message: it begins with an array of a version and a map".to_owned();
        return Err(Error::Wire { at: "byte 0".to_owned(), problem });
    };
    // A plain slice is several times faster to read than a cursor; where it stands is told by what is left of it.
    let mut reader = rmp_serde::Deserializer::new(rest);
    reader.set_max_depth(MAX_MESSAGE_NESTING);
    let position = |left: &[u8]| wide(rest.len().saturating_sub(left.len()));
    let version = u64::deserialize(&mut reader).map_err(|error| stopped(position(reader.get_ref()), &error))?;
    if version > VERSION {
        return Err(Error::Version { found: version, supported: VERSION });
    }
    if version == 0 {
        return Err(Error::Wire { at: "version".to_owned(), problem: "0 was never a version".to_owned() });
    }
    let body = T::deserialize(&mut reader).map_err(|error| stopped(position(reader.get_ref()), &error))?;
    if !reader.get_ref().is_empty() {
        let problem = "bytes follow the message".to_owned();
        return Err(Error::Wire { at: at_byte(position(reader.get_ref())), problem });
    }
    Ok(body)
}

fn check_length(bytes: &[u8]) -> Result<()> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(Error::limit("bytes of a layout message", wide(bytes.len()), wide(MAX_MESSAGE_BYTES)));
    }
    Ok(())
}

/// Positions count from the start of the message, of which the reader has not seen the first byte.
fn at_byte(position: u64) -> String {
    format!("byte {}", position.saturating_add(1))
}

fn stopped(position: u64, error: &rmp_serde::decode::Error) -> Error {
    // The reader's own text, cut: it may quote the peer's bytes at length.
    let problem: String = error.to_string().chars().take(200).collect();
    Error::Wire { at: at_byte(position), problem }
}
