//! What the two sides of the protocol call things.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::units::wide;

/// The most bytes a request's name may have.
pub const MAX_REQUEST_BYTES: usize = 256;

/// A peer, as the host numbers it; a number stays with a peer for as long as the machine lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u32);

/// One connection of two registrations: the epoch of each side when they met. Everything said under one session means nothing
/// under another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Session {
    /// The receiver's epoch.
    pub receiver: u64,
    /// The sender's epoch.
    pub sender: u64,
}

/// A slot, and which use of it: a generation is used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotUse {
    /// Index of the slot in its ring.
    pub slot: u32,
    /// Which use of the slot; it grows, and is never taken back.
    pub generation: u64,
}

/// A request's number in its session, given by the receiver in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// One side of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The side whose pages are filled.
    Receiver,
    /// The side whose pages are read.
    Sender,
}

/// Who issues the NIXL transfers of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Flow {
    /// The sender writes into slots that the receiver granted.
    Push,
    /// The receiver reads slots that the sender announced.
    Pull,
}

/// What both hosts call a request: a text of 1 to [`MAX_REQUEST_BYTES`] bytes. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestName(Arc<str>);

impl RequestName {
    /// `text` as a name.
    ///
    /// # Errors
    /// [`Error::Limit`] when it is too long, [`Error::Ring`] when it is empty.
    pub fn new(text: &str) -> Result<Self> {
        if text.len() > MAX_REQUEST_BYTES {
            return Err(Error::limit("bytes of a request's name", wide(text.len()), wide(MAX_REQUEST_BYTES)));
        }
        if text.is_empty() {
            return Err(Error::ring("request", "has an empty name", "name it as its peer does"));
        }
        Ok(Self(Arc::from(text)))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Receiver => "receiver",
            Self::Sender => "sender",
        })
    }
}
