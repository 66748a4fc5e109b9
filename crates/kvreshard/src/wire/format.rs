//! A page format in a message, and the lookup of everything that is written once and referred to.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::format::{ElementType, MAX_COMPONENTS, MAX_NOTATION_BYTES, PageFormat, Types};
use crate::layout::{Group, GroupKind, MAX_TOTALS, Position, Shares, TokensPerState};
use crate::name::Name;
use crate::shard::{ContextParallel, Place};
use crate::units::{Interval, wide};

use super::bounded::{Bytes, Map, Text};

/// The most different formats of one message.
pub const MAX_FORMATS: usize = 1_024;

/// A notation of [`MAX_NOTATION_BYTES`] has no room for more axes.
const MAX_AXES: usize = MAX_NOTATION_BYTES / 2;

/// How much of a fingerprint is sent: 16 bytes.
const FINGERPRINT_BYTES: usize = 16;

/// The longest word: a type, a memory kind, a group kind.
pub(super) const MAX_WORD: usize = 64;

pub(super) type Word = Text<MAX_WORD>;
pub(super) type WireTotals = Map<u64, MAX_TOTALS>;
pub(super) type WireShares = Map<(u64, u64), MAX_TOTALS>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireFormat {
    notation: Text<MAX_NOTATION_BYTES, true>,
    extents: Map<u64, MAX_AXES>,
    types: Map<Word, MAX_COMPONENTS>,
    /// First bytes of the fingerprint: a reader that understands the notation otherwise must not go on.
    fingerprint: Bytes<32>,
}

impl WireFormat {
    pub(super) fn of(format: &PageFormat) -> Self {
        let types = format.components().iter().map(|c| (c.name().to_string(), Text(c.dtype().name().to_owned())));
        Self {
            notation: Text(format.notation().to_owned()),
            extents: Map(format.extents().iter().map(|(axis, extent)| (axis.to_string(), *extent)).collect()),
            types: Map(types.collect()),
            fingerprint: Bytes(format.fingerprint().as_bytes().iter().copied().take(FINGERPRINT_BYTES).collect()),
        }
    }

    pub(super) fn read(&self) -> Result<PageFormat> {
        let mut types = Vec::with_capacity(self.types.0.len());
        for (component, dtype) in &self.types.0 {
            types.push((component.clone(), dtype.0.parse::<ElementType>()?));
        }
        let format = PageFormat::new(&self.notation.0, &self.extents.0, &Types::each(types))?;
        let Bytes(sent) = &self.fingerprint;
        if sent.len() < FINGERPRINT_BYTES || !format.fingerprint().as_bytes().starts_with(sent) {
            return Err(wrong("format", "the peer reads its notation otherwise: the fingerprints differ"));
        }
        Ok(format)
    }
}

/// Formats in the order of first use.
#[derive(Debug, Default)]
pub(super) struct Formats<'a>(Vec<&'a PageFormat>);

impl<'a> Formats<'a> {
    /// The index of `format`, as it is written: equal bytes in another notation are another entry.
    pub(super) fn index(&mut self, format: &'a PageFormat) -> u64 {
        let same = |known: &&PageFormat| {
            known.notation() == format.notation() && known.extents() == format.extents() && *known == format
        };
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            self.0.push(format);
            self.0.len().saturating_sub(1)
        });
        wide(at)
    }

    pub(super) fn write(self) -> Result<Vec<WireFormat>> {
        if self.0.len() > MAX_FORMATS {
            return Err(Error::limit("formats of a message", wide(self.0.len()), wide(MAX_FORMATS)));
        }
        Ok(self.0.into_iter().map(WireFormat::of).collect())
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireGroup {
    kind: Word,
    pages_per_block: u64,
    tokens_per_state: (u64, u64),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
}

impl WireGroup {
    pub(super) fn of(group: &Group) -> Self {
        let states = group.tokens_per_state();
        Self {
            kind: Text(group.kind().name().to_owned()),
            pages_per_block: group.pages_per_block(),
            tokens_per_state: (states.tokens(), states.states()),
            window: group.window(),
        }
    }

    pub(super) fn read(&self) -> Result<Group> {
        let states = TokensPerState::new(self.tokens_per_state.0, self.tokens_per_state.1)?;
        Group::new(self.kind.0.parse::<GroupKind>()?, self.pages_per_block, states, self.window)
    }
}

/// Where a rank stands: `{"tp": [rank, size], "pp": [rank, size], "cp": [rank, size, interleave]}`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WirePosition {
    tp: (u64, u64),
    pp: (u64, u64),
    cp: (u64, u64, u64),
}

impl WirePosition {
    pub(super) fn of(position: Position) -> Self {
        let place = |place: Place| (place.rank(), place.size());
        let cp = position.cp;
        Self {
            tp: place(position.tp),
            pp: place(position.pp),
            cp: (cp.place().rank(), cp.place().size(), cp.interleave()),
        }
    }

    pub(super) fn read(&self) -> Result<Position> {
        let (rank, size, interleave) = self.cp;
        Ok(Position {
            tp: Place::new(self.tp.0, self.tp.1)?,
            pp: Place::new(self.pp.0, self.pp.1)?,
            cp: ContextParallel::new(Place::new(rank, size)?, interleave)?,
        })
    }
}

pub(super) fn write_totals(totals: &[(Name, u64)]) -> WireTotals {
    Map(totals.iter().map(|(axis, total)| (axis.to_string(), *total)).collect())
}

pub(super) fn read_totals(totals: &WireTotals) -> Result<Vec<(Name, u64)>> {
    totals.0.iter().map(|(axis, total)| Ok((Name::new(axis)?, *total))).collect()
}

pub(super) fn write_shares(shares: &Shares) -> WireShares {
    Map(shares.iter().map(|(axis, share)| (axis.to_string(), (share.start(), share.end()))).collect())
}

pub(super) fn read_shares(shares: &WireShares) -> Result<Shares> {
    let mut held = Vec::with_capacity(shares.0.len());
    for (axis, (start, end)) in &shares.0 {
        let share = Interval::new(*start, *end).ok_or_else(|| wrong(axis, "share ends before it starts"))?;
        held.push((Name::new(axis)?, share));
    }
    Ok(Shares::new(held))
}

/// Element `at` of something that the message lists once.
pub(super) fn get<'a, T>(list: &'a [T], at: u64, what: &str, of: &str) -> Result<&'a T> {
    usize::try_from(at)
        .ok()
        .and_then(|at| list.get(at))
        .ok_or_else(|| wrong(of, &format!("names a {what} that is not in the message")))
}

pub(super) fn wrong(at: &str, problem: &str) -> Error {
    Error::Wire { at: at.chars().take(200).collect(), problem: problem.to_owned() }
}
