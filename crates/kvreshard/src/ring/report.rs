//! What the machines ask of their host, and what they report.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::chunks::Chunks;
use super::message::Frame;
use super::names::{Peer, RequestName, SlotUse, Ticket};

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// The host gave it up.
    Cancelled,
    /// The receiver's time for it is over.
    Deadline,
    /// The sender's lease on its pages is over.
    LeaseEnded,
    /// The peer is lost.
    PeerLost,
    /// A transfer failed.
    Transfer,
    /// A gather or a scatter failed.
    Kernel,
    /// The two sides do not mean the same bytes by it.
    Mismatch,
    /// A ring was registered anew.
    Registered,
}

/// Whether anything here may still touch the pages of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pages {
    /// A kernel is at them: they must not be used before [`Report::Freed`].
    Held,
    /// Nothing touches them any more.
    Free,
}

/// A request, on the side that reports it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey {
    /// The peer it is exchanged with.
    pub peer: Peer,
    /// Its number in the session; `None` on a sender where nobody has asked for it yet.
    pub ticket: Option<Ticket>,
    /// What both hosts call it.
    pub request: RequestName,
}

/// What became of a request. Each is reported once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Report {
    /// Receiver: all bytes are in the pages. Sender: they are in the receiver's, and its own pages are free.
    Finished(RequestKey),
    /// It failed.
    Failed {
        /// The request.
        key: RequestKey,
        /// Why.
        reason: Reason,
        /// Whether the peer gave it up, and not this side.
        by_peer: bool,
        /// Whether its pages may be used. A receiver's pages hold whatever arrived.
        pages: Pages,
    },
    /// The pages that [`Report::Failed`] said were held are free.
    Freed(RequestKey),
    /// Sender: a peer wants a request that was not offered. Not an end: it is served when it is offered.
    Asked {
        /// The request.
        key: RequestKey,
        /// Its size.
        chunks: Chunks,
    },
}

/// A chunk that a kernel moves between a slot and pages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// The request.
    pub key: RequestKey,
    /// The slot of this side.
    pub slot: u32,
    /// Which chunk of the request.
    pub sequence: u32,
    /// Where it begins in the request's packed bytes.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// A gather that is to be written: the peer's slot that it will go to, if nobody gives the chunk up before.
    pub remote: Option<SlotUse>,
}

/// A NIXL transfer of one slot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Move {
    /// The peer.
    pub peer: Peer,
    /// The slot of this side.
    pub slot: u32,
    /// The peer's slot.
    pub remote: SlotUse,
    /// How many bytes, from the start of both slots.
    pub bytes: u64,
}

/// What the host must do. Every one that starts something is answered by an event when it is over, well or not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Send a message. It may be lost.
    Send {
        /// To whom.
        peer: Peer,
        /// What.
        frame: Frame,
    },
    /// Receiver: read the peer's slot into this one.
    Read(Move),
    /// Sender: write this slot into the peer's.
    Write(Move),
    /// Sender: gather pages into the slot.
    Gather(Piece),
    /// Receiver: scatter the slot into pages.
    Scatter(Piece),
    /// Tell whoever waits for the request.
    Report(Report),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::LeaseEnded => "lease ended",
            Self::PeerLost => "peer lost",
            Self::Transfer => "transfer failed",
            Self::Kernel => "kernel failed",
            Self::Mismatch => "sizes differ",
            Self::Registered => "ring registered anew",
        })
    }
}
