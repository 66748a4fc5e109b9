//! The canonical text of a format.
//!
//! Formats with the same bytes have the same canonical text: loops of extent 1 are dropped, neighbouring digits of an axis are one
//! loop, a body with one item is part of it, neighbouring pads are one pad of so many bytes.

use std::collections::BTreeMap;

use super::grammar::{Event, PAD};
use super::nest::{Turn, resolve_all};
use crate::error::Result;
use crate::name::Name;
use crate::units::{add, mul};

/// A piece of canonical notation: loops around something.
struct Piece {
    turns: Vec<Turn>,
    inner: Inner,
}

enum Inner {
    Component(Name),
    /// So many bytes that nobody reads.
    Pad(u64),
    /// At least two items, or none yet.
    Body(Vec<Piece>),
}

/// The canonical text; `events` have been placed without error.
pub(super) fn canonical(events: &[Event], extents: &BTreeMap<Name, u64>) -> Result<String> {
    let mut outer: Vec<Piece> = Vec::new();
    let mut body = Piece { turns: Vec::new(), inner: Inner::Body(Vec::new()) };
    for event in events {
        match event {
            Event::Open(loops) => {
                let inner = Piece { turns: resolve_all(loops, extents)?, inner: Inner::Body(Vec::new()) };
                outer.push(std::mem::replace(&mut body, inner));
            }
            Event::Item { name, loops, .. } => {
                let inner = name.clone().map_or(Inner::Pad(1), Inner::Component);
                body.append(Piece { turns: resolve_all(loops, extents)?, inner }.fold()?)?;
            }
            Event::Close => {
                if let Some(parent) = outer.pop() {
                    let closed = std::mem::replace(&mut body, parent);
                    body.append(closed.fold()?)?;
                }
            }
        }
    }
    Ok(body.fold()?.print(extents))
}

impl Piece {
    /// Adds an item: its own items when nothing repeats them, and a pad to the pad before it.
    fn append(&mut self, item: Self) -> Result<()> {
        let Inner::Body(items) = &mut self.inner else { return Ok(()) };
        let added = match item {
            Self { turns, inner: Inner::Body(nested) } if turns.is_empty() => nested,
            other => vec![other],
        };
        for piece in added {
            match (items.last_mut().map(|last| &mut last.inner), &piece.inner) {
                (Some(Inner::Pad(before)), Inner::Pad(more)) => *before = add(*before, *more, "the bytes of a pad")?,
                _ => items.push(piece),
            }
        }
        Ok(())
    }

    /// Drops and joins loops; a single item takes the loops around it, a pad becomes its bytes.
    fn fold(self) -> Result<Self> {
        let Self { mut turns, mut inner } = self;
        match inner {
            Inner::Body(mut items) if items.len() == 1 => {
                let single = items.pop();
                inner = Inner::Body(items);
                if let Some(single) = single {
                    turns.extend(single.turns);
                    inner = single.inner;
                }
            }
            other => inner = other,
        }
        let mut folded: Vec<Turn> = Vec::with_capacity(turns.len());
        for turn in turns.into_iter().filter(|turn| turn.extent != 1) {
            match folded.last_mut() {
                Some(upper) if upper.axis == turn.axis && turn.continued_by(upper) => {
                    upper.scale = turn.scale;
                    upper.extent = mul(upper.extent, turn.extent, "the extent of an axis")?;
                }
                _ => folded.push(turn),
            }
        }
        if let Inner::Pad(bytes) = &mut inner {
            for turn in folded.drain(..) {
                *bytes = mul(*bytes, turn.extent, "the bytes of a pad")?;
            }
        }
        Ok(Self { turns: folded, inner })
    }

    /// The text of a whole page. Pieces nest no deeper than the grammar allows, yet are walked with a stack of what is still to be
    /// written.
    fn print(self, extents: &BTreeMap<Name, u64>) -> String {
        enum Todo {
            Piece(Piece),
            Text(&'static str),
        }
        let mut text = String::new();
        let mut todo = vec![Todo::Piece(self)];
        let mut outermost = true;
        while let Some(next) = todo.pop() {
            let Piece { turns, inner } = match next {
                Todo::Piece(piece) => piece,
                Todo::Text(end) => {
                    text.push_str(end);
                    continue;
                }
            };
            let whole = |turn: &Turn| turn.print(extents.get(&turn.axis).copied().unwrap_or(1));
            let loops: Vec<_> = turns.iter().map(whole).collect();
            let loops = loops.join(" ");
            if !text.is_empty() && !text.ends_with(['(', ' ']) {
                text.push(' ');
            }
            match inner {
                Inner::Component(name) => text.push_str(&format!("{name}[{loops}]")),
                Inner::Pad(bytes) => text.push_str(&format!("{PAD}[{bytes}]")),
                Inner::Body(items) => {
                    if !outermost {
                        text.push('(');
                        todo.push(Todo::Text(")"));
                    }
                    text.push_str(&loops);
                    todo.extend(items.into_iter().rev().map(Todo::Piece));
                }
            }
            outermost = false;
        }
        text
    }
}

impl Turn {
    /// Whether `upper` is the next digit of the same axis. Loops without a name are digits of one axis by their order alone.
    fn continued_by(&self, upper: &Self) -> bool {
        self.axis.is_anonymous() || self.scale.checked_mul(self.extent) == Some(upper.scale)
    }
}
