//! In words, how the bytes of two formats differ.

use std::fmt;

use super::PageFormat;
use super::normal::{Component, Digit};
use crate::name::Name;

/// What kind of thing differs between two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Aspect {
    /// A component that one side lacks.
    Component,
    /// An element type or encoding.
    Type,
    /// How many indexes an axis has.
    Extent,
    /// Where an axis is cut into digits.
    Digit,
    /// The order of loops.
    Order,
    /// What lies between the pieces of a component: others beside it, or nothing.
    Slot,
    /// Where a component begins, bytes between its pieces, or the page's length.
    Padding,
}

impl Aspect {
    /// The aspect in one or two words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Component => "component",
            Self::Type => "element type",
            Self::Extent => "extent",
            Self::Digit => "digits",
            Self::Order => "order of axes",
            Self::Slot => "slots",
            Self::Padding => "padding",
        }
    }
}

/// One thing that two formats do not have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What kind of thing.
    pub aspect: Aspect,
    /// The component concerned; none for the page's length.
    pub component: Option<Name>,
    /// The first format's side of it.
    pub ours: String,
    /// The second format's side of it.
    pub theirs: String,
}

impl Difference {
    /// Whether elements would have to change, not only move: bytes cannot be rearranged to make up for it.
    pub const fn of_content(&self) -> bool {
        matches!(self.aspect, Aspect::Component | Aspect::Type)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.component {
            Some(component) => write!(f, "{} of {component}: ", self.aspect.name())?,
            None => write!(f, "{}: ", self.aspect.name())?,
        }
        write!(f, "{} against {}", self.ours, self.theirs)
    }
}

/// Everything that differs between the bytes of `ours` and `theirs`; nothing when they are equal.
///
/// A component is written as its loops in order of their strides, the part without gaps in brackets: `h n k[d]` steps over other
/// bytes at every `h` and `n`, `k[h n d]` does not.
pub(super) fn between(ours: &PageFormat, theirs: &PageFormat) -> Vec<Difference> {
    let mut found = Vec::new();
    let names = ours
        .components()
        .iter()
        .chain(theirs.components().iter().filter(|component| ours.component(component.name().as_str()).is_none()));
    for name in names.map(Component::name) {
        let mut differ = |aspect: Aspect, ours: String, theirs: String| {
            found.push(Difference { aspect, component: Some(name.clone()), ours, theirs });
        };
        let (here, there) = match (ours.component(name.as_str()), theirs.component(name.as_str())) {
            (Some(here), Some(there)) => (here, there),
            (here, _) => {
                let side = |has: bool| if has { "present".to_owned() } else { "absent".to_owned() };
                differ(Aspect::Component, side(here.is_some()), side(here.is_none()));
                continue;
            }
        };
        if here.dtype() != there.dtype() {
            differ(Aspect::Type, here.dtype().to_string(), there.dtype().to_string());
        }
        let extents = extents_that_differ(here, there);
        if !extents.is_empty() {
            let side = |which: fn(&(String, u64, u64)) -> u64| {
                let texts: Vec<_> = extents.iter().map(|one| format!("{}={}", one.0, which(one))).collect();
                texts.join(" ")
            };
            differ(Aspect::Extent, side(|one| one.1), side(|one| one.2));
        }
        if let Some(aspect) = arrangement(here, there, extents.is_empty()) {
            let (ours, theirs) = (skeleton(here), skeleton(there));
            if ours == theirs {
                differ(aspect, steps(here), steps(there));
            } else {
                differ(aspect, format!("`{ours}`"), format!("`{theirs}`"));
            }
        }
    }
    if ours.page_bytes() != theirs.page_bytes() {
        let bytes = |format: &PageFormat| format!("{} bytes a page", format.page_bytes());
        found.push(Difference { aspect: Aspect::Padding, component: None, ours: bytes(ours), theirs: bytes(theirs) });
    }
    found.sort_by_key(|one| one.aspect);
    found
}

/// Axes with another extent; an axis of one index may as well be absent.
fn extents_that_differ(here: &Component, there: &Component) -> Vec<(String, u64, u64)> {
    let mut names: Vec<&Name> = here.axes().chain(there.axes()).map(|(axis, _)| axis).collect();
    names.sort_unstable();
    names.dedup();
    let extent = |component: &Component, axis: &Name| component.extent(axis.as_str()).unwrap_or(1);
    let shown = |axis: &Name| if axis.is_anonymous() { "(no name)".to_owned() } else { axis.to_string() };
    let compared = names.into_iter().map(|axis| (shown(axis), extent(here, axis), extent(there, axis)));
    compared.filter(|(_, ours, theirs)| ours != theirs).collect()
}

/// What sets two components apart that hold the same elements.
fn arrangement(here: &Component, there: &Component, same_extents: bool) -> Option<Aspect> {
    if here.base() == there.base() && here.digits() == there.digits() {
        return None;
    }
    let (ours, theirs) = (outermost_first(here), outermost_first(there));
    let order = |digits: &[&Digit]| digits.iter().map(|d| (d.axis.clone(), d.scale)).collect::<Vec<_>>();
    let mut cuts = (order(&ours), order(&theirs));
    if cuts.0 != cuts.1 {
        cuts.0.sort_unstable();
        cuts.1.sort_unstable();
        return Some(if cuts.0 == cuts.1 { Aspect::Order } else { Aspect::Digit });
    }
    // With other extents every stride differs: that is the extents' difference, already named.
    (same_extents || skeleton(here) != skeleton(there))
        .then(|| if skeleton(here) == skeleton(there) { Aspect::Padding } else { Aspect::Slot })
}

/// The loops of a component by stride, largest first.
fn outermost_first(component: &Component) -> Vec<&Digit> {
    let mut digits: Vec<&Digit> = component.digits().iter().collect();
    digits.sort_by(|a, b| b.stride.cmp(&a.stride).then_with(|| (&a.axis, b.scale).cmp(&(&b.axis, a.scale))));
    digits
}

/// The component's loops as notation, the gapless part in brackets.
fn skeleton(component: &Component) -> String {
    let digits = outermost_first(component);
    let mut block = component.dtype().bytes();
    let mut inner = Vec::new();
    let mut left = digits.as_slice();
    while let Some((last, rest)) = left.split_last() {
        if last.stride != block {
            break;
        }
        block = block.saturating_mul(last.extent);
        inner.push(written(component, last));
        left = rest;
    }
    inner.reverse();
    let outer: Vec<String> = left.iter().map(|digit| written(component, digit)).collect();
    let separator = if outer.is_empty() { "" } else { " " };
    format!("{}{separator}{}[{}]", outer.join(" "), component.name(), inner.join(" "))
}

/// One digit as the grammar writes it.
fn written(component: &Component, digit: &Digit) -> String {
    let whole = component.extent(digit.axis.as_str()).unwrap_or(1);
    let reach = digit.scale.saturating_mul(digit.extent);
    match (digit.axis.is_anonymous(), digit.scale == 1, reach == whole) {
        (true, ..) => digit.extent.to_string(),
        (_, true, true) => digit.axis.to_string(),
        (_, true, false) => format!("{}%{}", digit.axis, digit.extent),
        (_, false, true) => format!("{}/{}", digit.axis, digit.scale),
        (_, false, false) => format!("{}%{reach}/{}", digit.axis, digit.scale),
    }
}

/// Base and strides, for components whose loops read the same.
fn steps(component: &Component) -> String {
    let steps: Vec<String> =
        outermost_first(component).iter().map(|digit| format!("{} by {}", digit.axis, digit.stride)).collect();
    let steps = if steps.is_empty() { String::new() } else { format!(", {}", steps.join(", ")) };
    format!("from byte {}{steps}", component.base())
}
