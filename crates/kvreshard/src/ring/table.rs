//! The table of the protocol: for every state who owns the slot, and which events are legal.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Where a state belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A slot of the receiver's ring: bytes land here and are scattered from here.
    Ring,
    /// A slot of the sender's staging ring: bytes are gathered here and leave from here.
    Staging,
    /// The sender's view of a slot that a receiver granted it.
    Credit,
}

/// What is done with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Nothing.
    Free,
    /// A peer may write, and nobody here knows when.
    Granted,
    /// A read that this side started fills it.
    Reading,
    /// Its bytes are going to the pages of a request.
    Scattering,
    /// Pages are being gathered into it.
    Gathering,
    /// A write that this side started empties it.
    Writing,
    /// A peer may read it, and nobody here knows when.
    Ready,
    /// The peer that may still write or read it is lost.
    Quarantined,
    /// A slot of the peer may be written, and nothing has begun.
    Held,
    /// A chunk is on its way into a slot of the peer.
    Used,
    /// The chunk is in the peer's slot, and the peer has not said that it is done with it.
    Shipped,
    /// The slot was given back unused.
    Returned,
}

/// Who alone may touch the bytes of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The side whose ring it is; nothing is under way.
    Ring,
    /// The peer that it was granted to.
    Writer,
    /// The peer that was told to read it.
    Reader,
    /// A peer that is lost: a stopped process, or its network card, may still be at it.
    Lost,
    /// A NIXL transfer that this side started.
    Transfer,
    /// A gather or a scatter of this side.
    Kernel,
    /// The sender that holds the grant.
    Sender,
    /// The receiver whose slot it is.
    Receiver,
}

/// What happens to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The receiver grants the slot; its generation grows.
    Grant,
    /// `shipped` for a chunk that is wanted.
    Shipped,
    /// `shipped` for a chunk that nobody waits for any more.
    ShippedLate,
    /// `returned`: the sender will not write, or is done without success.
    Returned,
    /// The receiver begins to read a chunk that is ready; the generation grows.
    Read,
    /// The read brought a chunk that is wanted.
    ReadEnded,
    /// The read failed, or brought what nobody waits for any more.
    ReadDropped,
    /// The scatter ended.
    Scattered,
    /// The sender begins to gather; the generation grows.
    Gather,
    /// The chunk is gathered and its write begins.
    Write,
    /// The chunk is gathered and announced: written into the peer's slot, or ready to be read.
    Ship,
    /// The gather ended, and nobody waits for the chunk any more.
    Dropped,
    /// The write is over, well or not: nothing moves any more.
    WriteEnded,
    /// The sender picks a chunk for a granted slot.
    Use,
    /// The chunk that was picked is not wanted any more, and nothing was written.
    Unused,
    /// `consumed`.
    Consumed,
    /// The peer is lost.
    Lost,
    /// The host knows that the lost peer cannot touch the slot any more.
    Gone,
    /// The ring is registered anew, in other memory. All sessions end before, so that what peers may touch is in quarantine.
    Registered,
}

/// One legal event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Row {
    /// Where the state belongs.
    pub place: Place,
    /// The state before.
    pub state: State,
    /// What happens.
    pub step: Step,
    /// The state after.
    pub next: State,
    /// What this side does about it.
    pub does: &'static str,
}

const fn ring(state: State, step: Step, next: State, does: &'static str) -> Row {
    Row { place: Place::Ring, state, step, next, does }
}

const fn staging(state: State, step: Step, next: State, does: &'static str) -> Row {
    Row { place: Place::Staging, state, step, next, does }
}

const fn credit(state: State, step: Step, next: State, does: &'static str) -> Row {
    Row { place: Place::Credit, state, step, next, does }
}

/// Every legal event of every state. What is not here is an error when the host does it, and ignored when a peer sends it.
pub const TABLE: &[Row] = &[
    ring(State::Free, Step::Grant, State::Granted, "sends `grant`"),
    ring(State::Free, Step::Read, State::Reading, "starts the read"),
    ring(State::Granted, Step::Shipped, State::Scattering, "starts the scatter"),
    ring(State::Granted, Step::ShippedLate, State::Free, "sends `consumed`"),
    ring(State::Granted, Step::Returned, State::Free, ""),
    ring(State::Granted, Step::Lost, State::Quarantined, "sends `grant` again now and then, to be answered"),
    ring(State::Reading, Step::ReadEnded, State::Scattering, "starts the scatter"),
    ring(State::Reading, Step::ReadDropped, State::Free, "sends `consumed`"),
    ring(State::Scattering, Step::Scattered, State::Free, "sends `consumed`"),
    ring(State::Quarantined, Step::ShippedLate, State::Free, "sends `consumed`"),
    ring(State::Quarantined, Step::Returned, State::Free, ""),
    ring(State::Quarantined, Step::Gone, State::Free, ""),
    ring(State::Quarantined, Step::Registered, State::Free, ""),
    staging(State::Free, Step::Gather, State::Gathering, "starts the gather"),
    staging(State::Gathering, Step::Write, State::Writing, "starts the write"),
    staging(State::Gathering, Step::Ship, State::Ready, "sends `shipped`"),
    staging(State::Gathering, Step::Dropped, State::Free, ""),
    staging(State::Writing, Step::WriteEnded, State::Free, "sends `shipped`, or `returned` if it failed"),
    staging(State::Ready, Step::Consumed, State::Free, ""),
    staging(State::Ready, Step::Lost, State::Quarantined, "sends `shipped` again now and then, to be answered"),
    staging(State::Quarantined, Step::Consumed, State::Free, ""),
    staging(State::Quarantined, Step::Gone, State::Free, ""),
    staging(State::Quarantined, Step::Registered, State::Free, ""),
    credit(State::Free, Step::Grant, State::Held, ""),
    credit(State::Held, Step::Use, State::Used, "starts the gather"),
    credit(State::Held, Step::Returned, State::Returned, "sends `returned`"),
    credit(State::Used, Step::Unused, State::Held, ""),
    credit(State::Used, Step::Returned, State::Returned, "sends `returned`"),
    credit(State::Used, Step::Ship, State::Shipped, "sends `shipped`, until it is answered"),
    credit(State::Shipped, Step::Consumed, State::Free, ""),
    credit(State::Shipped, Step::Grant, State::Held, "takes the newer generation for `consumed`"),
    credit(State::Returned, Step::Grant, State::Held, ""),
];

/// Who owns a slot in `state`, or `None` where the state does not occur.
pub const fn owner(place: Place, state: State) -> Option<Owner> {
    match (place, state) {
        (Place::Ring | Place::Staging, State::Free) => Some(Owner::Ring),
        (Place::Ring, State::Granted) => Some(Owner::Writer),
        (Place::Ring, State::Reading) | (Place::Staging, State::Writing) => Some(Owner::Transfer),
        (Place::Ring, State::Scattering) | (Place::Staging, State::Gathering) => Some(Owner::Kernel),
        (Place::Staging, State::Ready) => Some(Owner::Reader),
        (Place::Ring | Place::Staging, State::Quarantined) => Some(Owner::Lost),
        (Place::Credit, State::Held | State::Used) => Some(Owner::Sender),
        (Place::Credit, State::Free | State::Shipped | State::Returned) => Some(Owner::Receiver),
        _ => None,
    }
}

/// The rows that a machine goes by: [`TABLE`], or what a test made of it to see its checker find the fault.
#[derive(Clone, PartialEq, Eq)]
pub struct Rules(Cow<'static, [Row]>);

impl Default for Rules {
    fn default() -> Self {
        Self(Cow::Borrowed(TABLE))
    }
}

/// The rules do not change while a machine runs, so they do not tell its states apart.
impl Hash for Rules {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rules({} rows)", self.0.len())
    }
}

impl Rules {
    /// Other rules, for tests: nothing is proven of them.
    #[doc(hidden)]
    pub fn injected(rows: Vec<Row>) -> Self {
        Self(Cow::Owned(rows))
    }

    /// The state after `step`, or `None` where it is not legal.
    pub fn next(&self, place: Place, state: State, step: Step) -> Option<State> {
        self.0.iter().find(|row| row.place == place && row.state == state && row.step == step).map(|row| row.next)
    }
}

/// The table as Markdown, one table a place.
pub fn markdown() -> String {
    let mut text = String::new();
    for place in [Place::Ring, Place::Staging, Place::Credit] {
        text.push_str(&format!("### {place}\n\n| state | owner | event | this side | next |\n|---|---|---|---|---|\n"));
        let mut before = None;
        for row in TABLE.iter().filter(|row| row.place == place) {
            // A state is named once, above all its events.
            let (state, owner) = if before == Some(row.state) {
                (String::new(), String::new())
            } else {
                let owner = owner(place, row.state).map(|owner| owner.to_string());
                (row.state.to_string(), owner.unwrap_or_default())
            };
            before = Some(row.state);
            text.push_str(&format!("| {state} | {owner} | {} | {} | {} |\n", row.step, row.does, row.next));
        }
        text.push('\n');
    }
    text
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "A slot of the receiver's ring",
            Self::Staging => "A slot of the sender's staging ring",
            Self::Credit => "The sender's view of a slot granted to it",
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "free",
            Self::Granted => "granted",
            Self::Reading => "reading",
            Self::Scattering => "scattering",
            Self::Gathering => "gathering",
            Self::Writing => "writing",
            Self::Ready => "ready",
            Self::Quarantined => "quarantined",
            Self::Held => "held",
            Self::Used => "used",
            Self::Shipped => "shipped",
            Self::Returned => "returned",
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "the ring",
            Self::Writer => "the peer that writes",
            Self::Reader => "the peer that reads",
            Self::Lost => "the lost peer",
            Self::Transfer => "the transfer",
            Self::Kernel => "the kernel",
            Self::Sender => "this sender",
            Self::Receiver => "the receiver",
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grant => "a grant",
            Self::Shipped => "`shipped`",
            Self::ShippedLate => "`shipped`, for nobody",
            Self::Returned => "returned",
            Self::Read => "a chunk is ready to be read",
            Self::ReadEnded => "read",
            Self::ReadDropped => "read failed, or for nobody",
            Self::Scattered => "scattered",
            Self::Gather => "a chunk's turn",
            Self::Write => "gathered to be written",
            Self::Ship => "gathered to be read, or written",
            Self::Dropped => "gathered, for nobody",
            Self::WriteEnded => "write ended",
            Self::Use => "a chunk's turn",
            Self::Unused => "chunk given up before it was written",
            Self::Consumed => "`consumed`",
            Self::Lost => "peer lost",
            Self::Gone => "host knows that the peer is gone",
            Self::Registered => "ring registered anew",
        })
    }
}
