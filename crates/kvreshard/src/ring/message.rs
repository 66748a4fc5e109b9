//! What the two sides say to each other, and its bytes.
//!
//! A frame is [`PREFIX`], then a msgpack array of two: the major version, and the body
//! `[[receiver epoch, sender epoch], {message: fields}]`. A message is small and of bounded length; bytes from a peer are hostile
//! until they are a [`Frame`], and a frame is only believed as far as the machine that reads it can tell.

use std::io::Cursor;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::units::wide;

use super::chunks::Chunks;
use super::names::{Flow, RequestName, Role, Session, SlotUse, Ticket};
use super::report::Reason;

/// What every frame begins with, so that a host tells it from its own notices.
pub const PREFIX: &[u8] = b"kvreshard-ring\x00";

/// The major version that is written, and the newest that is read.
pub const VERSION: u64 = 1;

/// The longest frame.
pub const MAX_FRAME_BYTES: usize = 512;

/// A msgpack array of two: version and body.
const PAIR: u8 = 0x92;

/// One message. Every one may be lost, come late, twice or out of order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Receiver to sender: send this request.
    #[serde(rename = "want")]
    Want {
        /// The request's number from now on.
        ticket: Ticket,
        /// No ticket below this one is of use to the receiver any more.
        floor: Ticket,
        /// What both hosts call the request.
        request: WireRequest,
        /// Who issues the transfers.
        flow: Flow,
    },
    /// Receiver to sender: write a chunk into this slot of mine.
    #[serde(rename = "grant")]
    Grant {
        /// The slot.
        at: SlotUse,
        /// Room in it.
        bytes: u64,
    },
    /// Sender to receiver: the chunk lies in the slot that you granted (push), or in this slot of mine (pull).
    #[serde(rename = "shipped")]
    Shipped {
        /// The slot.
        at: SlotUse,
        /// The request.
        ticket: Ticket,
        /// Which chunk of the request.
        sequence: u32,
    },
    /// Receiver to sender: what you shipped there is in the pages, or its request is over and you know it.
    #[serde(rename = "consumed")]
    Consumed {
        /// The slot.
        at: SlotUse,
    },
    /// Sender to receiver: I do not write into the slot that you granted, now or later.
    #[serde(rename = "returned")]
    Returned {
        /// The slot.
        at: SlotUse,
    },
    /// Either way: the request is over without success. Answered once, so that whoever asks first can stop repeating it.
    #[serde(rename = "abort")]
    Abort {
        /// The request.
        ticket: Ticket,
        /// From a receiver as in `want`; from a sender the last that it heard.
        floor: Ticket,
        /// Who says so.
        from: Role,
        /// Whether this answers an abort.
        answer: bool,
        /// Why.
        reason: Reason,
    },
}

/// A request's name and size in a `want`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WireRequest {
    name: String,
    bytes: u64,
    chunk_bytes: u64,
}

impl WireRequest {
    /// The request as it crosses the wire.
    pub fn new(name: &RequestName, chunks: Chunks) -> Self {
        Self { name: name.as_str().to_owned(), bytes: chunks.bytes(), chunk_bytes: chunks.chunk_bytes() }
    }

    pub(super) fn read(&self) -> Result<(RequestName, Chunks)> {
        Ok((RequestName::new(&self.name)?, Chunks::new(self.bytes, self.chunk_bytes)?))
    }
}

impl Message {
    /// The side that it is for.
    pub const fn to(&self) -> Role {
        match self {
            Self::Want { .. } | Self::Grant { .. } | Self::Consumed { .. } => Role::Sender,
            Self::Shipped { .. } | Self::Returned { .. } => Role::Receiver,
            Self::Abort { from: Role::Receiver, .. } => Role::Sender,
            Self::Abort { from: Role::Sender, .. } => Role::Receiver,
        }
    }
}

/// A message under its session: what crosses the wire.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// The connection that it belongs to.
    pub session: Session,
    /// What is said.
    pub message: Message,
}

impl Frame {
    /// Whether `bytes` are meant to be a frame.
    pub fn is_frame(bytes: &[u8]) -> bool {
        bytes.starts_with(PREFIX)
    }

    /// The frame as bytes for the peer.
    ///
    /// # Errors
    /// [`Error::Wire`] when it cannot be written, [`Error::Limit`] when it is longer than a peer reads.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let failed =
            |error: rmp_serde::encode::Error| Error::Wire { at: "writing".to_owned(), problem: error.to_string() };
        let mut bytes = PREFIX.to_vec();
        bytes.push(PAIR);
        let mut writer = rmp_serde::Serializer::new(&mut bytes);
        VERSION.serialize(&mut writer).map_err(failed)?;
        self.serialize(&mut writer).map_err(failed)?;
        check_length(&bytes)?;
        Ok(bytes)
    }

    /// Reads bytes of [`to_bytes`](Self::to_bytes), from any build that speaks the same major version.
    ///
    /// # Errors
    /// [`Error::Wire`] saying where decoding stopped, [`Error::Version`] for a newer major version, [`Error::Limit`] for what is
    /// too long.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        check_length(bytes)?;
        let Some((&PAIR, rest)) = bytes.strip_prefix(PREFIX).and_then(<[u8]>::split_first) else {
            return Err(wrong(0, "not a frame of the ring protocol"));
        };
        let mut reader = rmp_serde::Deserializer::new(Cursor::new(rest));
        let version = u64::deserialize(&mut reader).map_err(|error| stopped(reader.position(), &error))?;
        if version > VERSION {
            return Err(Error::Version { found: version, supported: VERSION });
        }
        if version == 0 {
            return Err(wrong(reader.position(), "0 was never a version"));
        }
        let frame = Self::deserialize(&mut reader).map_err(|error| stopped(reader.position(), &error))?;
        if reader.position() < wide(rest.len()) {
            return Err(wrong(reader.position(), "bytes follow the frame"));
        }
        if let Message::Want { request, .. } = &frame.message {
            request.read()?;
        }
        Ok(frame)
    }
}

fn check_length(bytes: &[u8]) -> Result<()> {
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(Error::limit("bytes of a frame", wide(bytes.len()), wide(MAX_FRAME_BYTES)));
    }
    Ok(())
}

fn stopped(position: u64, error: &rmp_serde::decode::Error) -> Error {
    // The reader's own text, cut: it may quote the peer's bytes at length.
    let problem: String = error.to_string().chars().take(200).collect();
    wrong(position, &problem)
}

fn wrong(position: u64, problem: &str) -> Error {
    let header = wide(PREFIX.len()).saturating_add(1);
    Error::Wire { at: format!("ring frame, byte {}", position.saturating_add(header)), problem: problem.to_owned() }
}
