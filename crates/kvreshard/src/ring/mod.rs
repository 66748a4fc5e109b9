//! The packed protocol: what is gathered into slots at the sender, moved in one run each, and scattered at the receiver.
//!
//! ```text
//!        receiver                               sender
//!           | -------------- want ----------------> |
//!    push:  | -------------- grant ---------------> |  gather into a staging slot,
//!           | <============= NIXL write =========== |  write it into the slot granted
//!           | <------------- shipped -------------- |
//!  scatter  | -------------- consumed ------------> |
//!
//!    pull:  | <------------- shipped -------------- |  gathered into a staging slot
//!           | ============== NIXL read ===========> |
//!  scatter  | -------------- consumed ------------> |  which is free now
//! ```
//!
//! [`Receiver`] and [`Sender`] are state machines without socket, clock or memory: events in, [`Action`]s out. [`table`] says for
//! every state of a slot who owns it and which events are legal. They count on nothing that a network does not give: messages may
//! be lost, late, doubled and out of order, a peer may die at any time, and a peer that was thought dead may live.
//!
//! What holds, and is checked by a model checker in the tests:
//! - A slot is never written or read while someone else owns it. A slot that a lost peer may still touch is in quarantine until
//!   that peer answers, the host knows that it is gone, or the ring is registered anew.
//! - A sender finishes when all bytes are in the receiver's pages, unless the receiver has taken it for lost.
//! - Every request ends, finished or failed, as long as someone ends its lease or its deadline.
//! - Two sides that hear each other never wait for each other for ever, and when all requests are over all slots come back.
//! - Every admitted peer has its minimum of slots; none is admitted beyond the ring. Peers take turns, and so do the requests of a
//!   peer, slot by slot.
//! - Memory is bounded by the configuration: slots, open requests of a peer, chunks of a request.

pub mod chunks;
pub mod message;
pub mod names;
pub mod receiver;
pub mod report;
pub mod sender;
mod session;
pub mod slots;
pub mod table;
mod turn;

pub use chunks::Chunks;
pub use message::{Frame, Message};
pub use names::{Flow, Peer, RequestName, Role, Session, SlotUse, Ticket};
pub use receiver::{Progress, Receiver, ReceiverEvent};
pub use report::{Action, Move, Pages, Piece, Reason, Report, RequestKey};
pub use sender::{Sender, SenderEvent};
pub use slots::Config;
pub use table::{Owner, Place, Rules, State, Step};
