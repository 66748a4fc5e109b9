//! The one error type of the crate. Every variant carries what a caller needs to act without reading the text.

use thiserror::Error as ThisError;

/// What every fallible function of the crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Which side of an edge an error speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The rank that plans and issues the transfer.
    Local,
    /// The peer.
    Remote,
}

impl Side {
    /// `local` or `remote`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Side {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "local" => Ok(Self::Local),
            "remote" => Ok(Self::Remote),
            other => Err(Error::layout(None, "side", other, "local or remote")),
        }
    }
}

/// Why a format, a layout, a pair or a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The notation does not parse.
    #[error("page format notation, character {at}: expected {expected}, found {found}")]
    Syntax {
        /// Byte offset in the notation.
        at: usize,
        /// What the grammar allows there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// The notation parses, but an axis, a loop, a component, a type or an extent does not fit.
    #[error("page format: {subject}: {problem}{}", at.map(|at| format!(" (character {at})")).unwrap_or_default())]
    Format {
        /// The axis, component, preset or type name in question.
        subject: String,
        /// What is wrong with it, and what would be right.
        problem: String,
        /// Byte offset in the notation, where the notation is at fault.
        at: Option<usize>,
    },
    /// An address, a product or a sum does not fit its integer.
    #[error("{term} does not fit 64 bits")]
    Overflow {
        /// The term, in words.
        term: String,
    },
    /// A stated bound was passed; bounds keep hostile or absurd input from taking time and memory.
    #[error("{what}: {found} is over the limit of {limit}")]
    Limit {
        /// What is counted.
        what: String,
        /// The count found.
        found: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A rank's own description contradicts itself.
    #[error("{}{field}: found {found}, expected {expected}", layer.as_ref().map(|l| format!("layer {l}: ")).unwrap_or_default())]
    Layout {
        /// The layer, where one is concerned.
        layer: Option<String>,
        /// The field or axis at fault.
        field: String,
        /// The value given.
        found: String,
        /// The value, or the rule, that would be right.
        expected: String,
    },
    /// Two sides do not fit together: bytes copied as they are would not mean the same.
    #[error(
        "{}{field} differs: local {local}, remote {remote}{}",
        layer.as_ref().map(|l| format!("layer {l}: ")).unwrap_or_default(),
        remedy.as_ref().map(|r| format!("; {r}")).unwrap_or_default()
    )]
    Incompatible {
        /// The layer, where one is concerned.
        layer: Option<String>,
        /// What differs.
        field: String,
        /// This side's value.
        local: String,
        /// The peer's value.
        remote: String,
        /// What to set or choose, where something helps.
        remedy: Option<String>,
    },
    /// The peer does not say how its pages are built, and nothing may be assumed.
    #[error(
        "{}local pages are `{local}`, the peer's page format is unknown: {problem}; {remedy}",
        layer.as_ref().map(|l| format!("layer {l}: ")).unwrap_or_default()
    )]
    Untagged {
        /// The layer, where one is concerned.
        layer: Option<String>,
        /// This side's notation.
        local: String,
        /// Why that matters here.
        problem: String,
        /// What to set or choose.
        remedy: String,
    },
    /// A layer is wanted that no rank of the other side holds.
    #[error("layer {layer}: no rank of the {side} side holds {missing}")]
    Missing {
        /// The layer that is wanted.
        layer: String,
        /// The side that should hold it.
        side: Side,
        /// The part that is missing: `the layer`, `h [4, 8)`, ...
        missing: String,
    },
    /// A request names blocks, tokens or groups that do not exist or do not suffice.
    #[error("request, {side} side{}: {field} {found}: {expected}", group.map(|g| format!(", group {g}")).unwrap_or_default())]
    Request {
        /// The side at fault.
        side: Side,
        /// The group, where one is concerned.
        group: Option<usize>,
        /// What is wrong: `block id`, `first token`, ...
        field: String,
        /// The value given.
        found: String,
        /// The rule, with its limit.
        expected: String,
    },
    /// A message from a peer does not decode.
    #[error("peer metadata, {at}: {problem}")]
    Wire {
        /// Where decoding stopped.
        at: String,
        /// What is wrong there.
        problem: String,
    },
    /// A peer speaks a newer major version.
    #[error(
        "peer metadata has version {found}, this build reads up to {supported}: upgrade this side, or have the peer send version {supported}"
    )]
    Version {
        /// The peer's version.
        found: u64,
        /// The newest that is understood.
        supported: u64,
    },
    /// A set of plans or descriptors does not do exactly what is needed.
    #[error("verification failed: {}{problem} at {side} address {address:#x}", layer.as_ref().map(|l| format!("layer {l}: ")).unwrap_or_default())]
    Unproven {
        /// The layer, where one is concerned.
        layer: Option<String>,
        /// `byte written twice`, `byte never written`, `outside every region`, ...
        problem: String,
        /// The side of the address.
        side: Side,
        /// The first address at fault.
        address: u64,
    },
    /// The host did what the packed protocol does not allow in its present state.
    #[error("ring protocol: {subject} {found}: {expected}")]
    Ring {
        /// The slot, peer, request or setting in question.
        subject: String,
        /// What it is, as a verb phrase: `is free, not reading`.
        found: String,
        /// The event that was refused, or what would be right.
        expected: String,
    },
}

/// Whether a person sees a character: no control character, and none that only changes how others are shown.
pub(crate) fn shows(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The first character of a text that a person does not see.
pub(crate) fn hidden(text: &str) -> Option<char> {
    // Names are plain ASCII almost always, and a message has one for each layer: without a branch this is a few vector operations.
    let plain = text.bytes().fold(true, |plain, byte| plain & matches!(byte, b' '..=b'~'));
    if plain { None } else { text.chars().find(|c| !shows(*c)) }
}

/// What a caller or a peer has written, safe to print: hidden characters are spelled out.
fn spelled(text: String) -> String {
    if hidden(&text).is_none() {
        return text;
    }
    text.chars().flat_map(|c| if shows(c) { vec![c] } else { c.escape_unicode().collect() }).collect()
}

impl Error {
    pub(crate) fn overflow(term: impl Into<String>) -> Self {
        Self::Overflow { term: term.into() }
    }

    pub(crate) fn format(subject: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Format { subject: spelled(subject.into()), problem: problem.into(), at: None }
    }

    pub(crate) fn limit(what: impl Into<String>, found: u64, limit: u64) -> Self {
        Self::Limit { what: what.into(), found, limit }
    }

    pub(crate) fn ring(subject: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Ring { subject: subject.into(), found: found.into(), expected: expected.into() }
    }

    pub(crate) fn layout(
        layer: Option<&str>,
        field: impl Into<String>,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Layout {
            layer: layer.map(str::to_owned),
            field: field.into(),
            found: spelled(found.to_string()),
            expected: expected.into(),
        }
    }
}
