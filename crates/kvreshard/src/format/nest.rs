//! A parsed notation, extents and types to offsets.
//!
//! Offsets follow from the nest alone: a loop's stride is the size of what it repeats, an item's base the sizes of the items
//! before it. So components cannot overlap, and components and pads fill the page without a hole.

use std::collections::BTreeMap;

use super::dtype::ElementType;
use super::grammar::{Cut, Event, Keep, Loop, Over, misfit};
use super::normal::{Component, Digit};
use super::types::Types;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::units::{add, div, mul, rem};

/// A loop with numbers in place of names: value `v` of it stands for `v * scale` steps of its axis.
///
/// The scale of a loop without a name depends on the loops inside it and is left at 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) axis: Name,
    pub(super) scale: u64,
    pub(super) extent: u64,
    pub(super) at: usize,
}

/// A component of the nest before its axes were checked; `path` is outermost first.
struct Placed {
    name: Name,
    dtype: ElementType,
    at: usize,
    base: u64,
    path: Vec<(Turn, u64)>,
}

/// A body that is not closed yet.
struct Body {
    turns: Vec<Turn>,
    placed: Vec<Placed>,
    bytes: u64,
}

const PAGE: &str = "the bytes of a page";

/// The components of a page, in order of appearance, and the page's bytes.
pub(super) fn place(events: &[Event], extents: &BTreeMap<Name, u64>, types: &Types) -> Result<(Vec<Component>, u64)> {
    let mut outer: Vec<Body> = Vec::new();
    let mut body = Body { turns: Vec::new(), placed: Vec::new(), bytes: 0 };
    for event in events {
        match event {
            Event::Open(loops) => {
                let inner = Body { turns: resolve_all(loops, extents)?, placed: Vec::new(), bytes: 0 };
                outer.push(std::mem::replace(&mut body, inner));
            }
            Event::Item { name, loops, at } => {
                let turns = resolve_all(loops, extents)?;
                let dtype = name.as_ref().map(|name| types.get(name, *at)).transpose()?;
                let element = dtype.map_or(1, ElementType::bytes);
                let placed = name.iter().zip(dtype).map(|(name, dtype)| Placed {
                    name: name.clone(),
                    dtype,
                    at: *at,
                    base: 0,
                    path: Vec::new(),
                });
                let item = Body { turns, placed: placed.collect(), bytes: element };
                body.append(item)?;
            }
            Event::Close => {
                if let Some(parent) = outer.pop() {
                    let closed = std::mem::replace(&mut body, parent);
                    body.append(closed)?;
                }
            }
        }
    }
    let components = body.placed.into_iter().map(|placed| placed.finish(extents)).collect::<Result<_>>()?;
    Ok((components, body.bytes))
}

impl Body {
    /// Puts `inner`, repeated by its loops, behind what is already in this body.
    fn append(&mut self, inner: Self) -> Result<()> {
        let mut stride = inner.bytes;
        let mut turns = Vec::with_capacity(inner.turns.len());
        for turn in inner.turns.into_iter().rev() {
            let step = stride;
            stride = mul(stride, turn.extent, PAGE)?;
            turns.push((turn, step));
        }
        turns.reverse();
        for mut placed in inner.placed {
            placed.base = add(placed.base, self.bytes, PAGE)?;
            placed.path.splice(0..0, turns.iter().cloned());
            self.placed.push(placed);
        }
        self.bytes = add(self.bytes, stride, PAGE)?;
        Ok(())
    }
}

impl Placed {
    /// Gives loops without a name their scales, checks that every axis is covered, and brings the component to normal form.
    fn finish(mut self, extents: &BTreeMap<Name, u64>) -> Result<Component> {
        let mut count = 1;
        for (turn, _) in self.path.iter_mut().rev().filter(|(turn, _)| turn.axis.is_anonymous()) {
            turn.scale = count;
            count = mul(count, turn.extent, "the product of the loops without a name")?;
        }
        let mut axes = BTreeMap::new();
        for (turn, _) in &self.path {
            let extent = if turn.axis.is_anonymous() { Some(&count) } else { extents.get(&turn.axis) };
            axes.extend(extent.map(|extent| (turn.axis.clone(), *extent)));
        }
        // A bare 1 says nothing that leaving it out does not.
        axes.retain(|axis, extent| !(axis.is_anonymous() && *extent == 1));
        for (axis, extent) in &axes {
            self.check_cover(axis, *extent)?;
        }
        let digits = self.path.into_iter().map(|(turn, stride)| Digit {
            axis: turn.axis,
            scale: turn.scale,
            extent: turn.extent,
            stride,
        });
        Component::new(self.name, self.dtype, self.base, digits.collect(), axes)
    }

    /// Refuses an axis whose digits do not run through `0..extent` exactly once: elements would be missing or be stored twice.
    fn check_cover(&self, axis: &Name, extent: u64) -> Result<()> {
        let mut turns: Vec<_> = self.path.iter().map(|(turn, _)| turn).filter(|turn| turn.axis == *axis).collect();
        turns.sort_by_key(|turn| turn.scale);
        let mut covered = 1;
        for turn in turns.iter().filter(|turn| turn.extent != 1) {
            if turn.scale != covered {
                return Err(self.uncovered(axis, extent, &turns, turn.at));
            }
            covered = mul(covered, turn.extent, "the extent of an axis")?;
        }
        if covered == extent { Ok(()) } else { Err(self.uncovered(axis, extent, &turns, self.at)) }
    }

    fn uncovered(&self, axis: &Name, extent: u64, turns: &[&Turn], at: usize) -> Error {
        let written: Vec<_> = turns.iter().map(|turn| turn.print(extent)).collect();
        let problem = format!(
            "the loops around and in component {} must run through 0..{extent} exactly once, but they are {}",
            self.name,
            written.join(" and ")
        );
        misfit(axis, problem, at)
    }
}

impl Turn {
    /// The loop in the fewest characters, given the extent of its whole axis.
    pub(super) fn print(&self, whole: u64) -> String {
        let Self { axis, scale, extent, .. } = self;
        let reach = scale.saturating_mul(*extent);
        match (axis.is_anonymous(), *scale == 1, reach == whole) {
            (true, ..) => extent.to_string(),
            (_, true, true) => axis.to_string(),
            (_, true, false) => format!("{axis}%{extent}"),
            (_, false, true) => format!("{axis}/{scale}"),
            (_, false, false) => format!("{axis}%{reach}/{scale}"),
        }
    }
}

/// Loops with their numbers, outermost first.
pub(super) fn resolve_all(loops: &[Loop], extents: &BTreeMap<Name, u64>) -> Result<Vec<Turn>> {
    loops.iter().map(|written| resolve(written, extents)).collect()
}

fn resolve(written: &Loop, extents: &BTreeMap<Name, u64>) -> Result<Turn> {
    let at = written.at;
    match &written.over {
        Over::Count(extent) => Ok(Turn { axis: Name::ANONYMOUS, scale: 1, extent: *extent, at }),
        Over::Axis(axis, cuts) => {
            let Some(whole) = extents.get(axis) else {
                return Err(misfit(axis, "the notation uses this axis, but no extent is given for it", at));
            };
            let mut turn = Turn { axis: axis.clone(), scale: 1, extent: *whole, at };
            for cut in cuts {
                turn.cut(*cut, *whole)?;
            }
            Ok(turn)
        }
    }
}

impl Turn {
    fn cut(&mut self, cut: Cut, whole: u64) -> Result<()> {
        const TERM: &str = "a divisor of an axis";
        if rem(self.extent, cut.by, TERM)? != 0 {
            let problem = format!("{} does not divide {}, the extent of {}", cut.by, self.extent, self.print(whole));
            return Err(misfit(&self.axis, problem, cut.at));
        }
        match cut.keep {
            Keep::Upper => {
                self.scale = mul(self.scale, cut.by, TERM)?;
                self.extent = div(self.extent, cut.by, TERM)?;
            }
            Keep::Lower => self.extent = cut.by,
        }
        Ok(())
    }
}
