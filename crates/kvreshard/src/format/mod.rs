//! Page formats: which byte of a page is which element.
//!
//! A page format is text, read once and then exact. Loops are written outermost first; a component lists its own inner loops in
//! brackets; offsets follow from the nest:
//!
//! ```text
//! h n k[d] v[d]        h=2 n=2 d=3, one byte an element
//!
//! byte   0        3        6        9        12                24
//!        | k 000  | v 000  | k 010  | v 010  | the same of h=1 |      k hnd
//! ```
//!
//! `a/8` and `a%8` are the upper and the lower digit of axis `a`, a bare number is a loop without a name, parentheses group, and
//! `pad[..]` is bytes that nobody reads.
//!
//! Two formats are equal when their bytes mean the same: same components, element types, address maps and page bytes, however they
//! are written. [`presets`] has the formats known from engines by name.

mod difference;
mod dtype;
mod grammar;
mod nest;
mod normal;
mod presets;
mod print;
mod types;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub use difference::{Aspect, Difference};
pub use dtype::ElementType;
pub use grammar::{MAX_COMPONENTS, MAX_LOOPS, MAX_NESTING, MAX_NOTATION_BYTES};
pub use normal::{Component, Digit, Fingerprint, MAX_OFFSETS};
pub use presets::{Kind, Parameter, Preset, Value, find_preset, preset, presets};
pub use types::Types;

use crate::error::{Error, Result};
use crate::name::Name;
use grammar::{Event, Over, misfit};

/// A page format: a notation with its extents and element types. Immutable, valid when made, cheap to clone.
///
/// Equality, hash and [`fingerprint`](Self::fingerprint) go by the bytes, not by the text. An axis of extent 1 leaves no trace in
/// them, so `h n k[d]` with one head equals `n k[d]`; [`Component::extent`] still tells them apart.
#[derive(Clone)]
pub struct PageFormat(Arc<Built>);

struct Built {
    notation: String,
    canonical: String,
    extents: BTreeMap<Name, u64>,
    components: Vec<Component>,
    page_bytes: u64,
    fingerprint: Fingerprint,
}

impl PageFormat {
    /// Reads `notation` with the extent of each of its axes and the type of each of its components.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use kvreshard::format::{ElementType, PageFormat, Types};
    ///
    /// let extents = BTreeMap::from([("h", 8), ("n", 16), ("d", 128)].map(|(axis, extent)| (axis.to_owned(), extent)));
    /// let format = PageFormat::new("k[h d/8 n d%8] v[h n/8 d n%8]", &extents, &Types::all(ElementType::Bf16))?;
    /// assert_eq!(format.page_bytes(), 65536);
    /// assert_eq!(format.offset("k", &[("h", 3), ("n", 5), ("d", 70)])?, 14428);
    /// # Ok::<(), kvreshard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Syntax`] when the text does not parse. [`Error::Format`], with the position where the text is at fault, when an
    /// extent is missing, zero or of no axis, a divisor does not divide, an axis is not covered exactly once, a component is written
    /// twice, has no type or is not in the text, or there is none. [`Error::Limit`] and [`Error::Overflow`] for what is too large.
    pub fn new(notation: &str, extents: &BTreeMap<String, u64>, types: &Types) -> Result<Self> {
        let events = grammar::parse(notation)?;
        let extents = match_extents(&events, extents)?;
        let names = events.iter().filter_map(|event| match event {
            Event::Item { name, .. } => name.as_ref(),
            Event::Open(_) | Event::Close => None,
        });
        if names.clone().next().is_none() {
            return Err(Error::format("notation", "has no component besides pad"));
        }
        types.check_names(names)?;
        let (components, page_bytes) = nest::place(&events, &extents, types)?;
        Ok(Self(Arc::new(Built {
            notation: grammar::normalise_space(notation)?,
            canonical: print::canonical(&events, &extents)?,
            fingerprint: Fingerprint::of(page_bytes, &components),
            extents,
            components,
            page_bytes,
        })))
    }

    /// The notation as written, with normalised white space.
    pub fn notation(&self) -> &str {
        &self.0.notation
    }

    /// The notation without what makes no difference at these extents: loops of extent 1, digits cut for nothing, parentheses
    /// around one item, pads in several pieces. Formats with the same bytes have the same canonical text.
    pub fn canonical(&self) -> &str {
        &self.0.canonical
    }

    /// The extent of every axis that the notation names.
    pub fn extents(&self) -> &BTreeMap<Name, u64> {
        &self.0.extents
    }

    /// Bytes of one page, pads included.
    pub fn page_bytes(&self) -> u64 {
        self.0.page_bytes
    }

    /// The components in order of their first appearance; pads are not among them.
    pub fn components(&self) -> &[Component] {
        &self.0.components
    }

    /// The component called `name`.
    pub fn component(&self, name: &str) -> Option<&Component> {
        self.0.components.iter().find(|component| component.name() == name)
    }

    /// Byte offset in the page of one element. `index` gives every axis of the component once, in any order.
    ///
    /// # Errors
    /// [`Error::Format`] naming the component that does not exist, or the axis that is missing, unknown, given twice or out of range.
    pub fn offset(&self, component: &str, index: &[(&str, u64)]) -> Result<u64> {
        match self.component(component) {
            Some(component) => component.offset(index),
            None => {
                let known: Vec<_> = self.components().iter().map(|known| known.name().as_str()).collect();
                Err(Error::format(component, format!("no such component; there are {}", known.join(", "))))
            }
        }
    }

    /// Whether every byte of a page means the same in both: what `==` asks.
    pub fn same_bytes_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.page_bytes() == other.page_bytes()
                && self.components().len() == other.components().len()
                && self
                    .components()
                    .iter()
                    .all(|ours| other.component(ours.name().as_str()).is_some_and(|theirs| ours.same_bytes_as(theirs))))
    }

    /// Everything that differs between the bytes of this format and `other`, content first; nothing when they are equal.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use kvreshard::format::{ElementType, PageFormat, Types};
    /// # let extents = BTreeMap::from([("h", 8), ("n", 16), ("d", 128)].map(|(axis, extent)| (axis.to_owned(), extent)));
    /// let packed = PageFormat::new("h n k[d] v[d]", &extents, &Types::all(ElementType::Bf16))?;
    /// let slots = PageFormat::new("k[h d/8 n d%8] v[h n d]", &extents, &Types::all(ElementType::Bf16))?;
    /// let texts: Vec<String> = packed.difference(&slots).iter().map(ToString::to_string).collect();
    /// assert_eq!(texts, [
    ///     "digits of k: `h n k[d]` against `k[h d/8 n d%8]`",
    ///     "slots of v: `h n v[d]` against `v[h n d]`",
    /// ]);
    /// # Ok::<(), kvreshard::Error>(())
    /// ```
    pub fn difference(&self, other: &Self) -> Vec<Difference> {
        difference::between(self, other)
    }

    /// The hash of the normal form.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.0.fingerprint
    }

    /// The element type of each component.
    pub fn types(&self) -> Types {
        Types::each(self.components().iter().map(|component| (component.name().as_str(), component.dtype())))
    }

    /// The same nest and types with other extents, such as another rank's number of heads; extents not in `changed` stay.
    ///
    /// # Errors
    /// As [`PageFormat::new`].
    pub fn with_extents(&self, changed: &BTreeMap<String, u64>) -> Result<Self> {
        let mut extents: BTreeMap<_, _> =
            self.extents().iter().map(|(axis, extent)| (axis.to_string(), *extent)).collect();
        extents.extend(changed.iter().map(|(axis, extent)| (axis.clone(), *extent)));
        Self::new(self.notation(), &extents, &self.types())
    }
}

/// The extents given, matched with the axes that the notation uses.
fn match_extents(events: &[Event], given: &BTreeMap<String, u64>) -> Result<BTreeMap<Name, u64>> {
    let mut extents = BTreeMap::new();
    let loops = events.iter().flat_map(|event| match event {
        Event::Open(loops) | Event::Item { loops, .. } => loops.as_slice(),
        Event::Close => &[],
    });
    for written in loops {
        let Over::Axis(axis, _) = &written.over else { continue };
        match given.get(axis.as_str()) {
            Some(0) => return Err(misfit(axis, "extent 0: an axis has at least 1 index", written.at)),
            Some(extent) => extents.insert(axis.clone(), *extent),
            None => {
                let problem = "the notation uses this axis, but no extent is given for it";
                return Err(misfit(axis, problem, written.at));
            }
        };
    }
    match given.keys().find(|axis| !extents.contains_key(axis.as_str())) {
        None => Ok(extents),
        Some(unused) => {
            let known: Vec<_> = extents.keys().map(Name::as_str).collect();
            let problem = format!("an extent is given for it, but the axes of the notation are {}", known.join(", "));
            Err(Error::format(unused, problem))
        }
    }
}

impl PartialEq for PageFormat {
    fn eq(&self, other: &Self) -> bool {
        self.same_bytes_as(other)
    }
}

impl Eq for PageFormat {}

impl Hash for PageFormat {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fingerprint().hash(state);
    }
}

impl fmt::Display for PageFormat {
    /// The notation, its extents, its types and the page bytes: `n h k[d] v[d] (d=128 h=8 n=16; k v bf16; 65536 bytes)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.notation())?;
        for (index, (axis, extent)) in self.extents().iter().enumerate() {
            write!(f, "{}{axis}={extent}", if index == 0 { "" } else { " " })?;
        }
        let mut separator = if self.extents().is_empty() { "" } else { "; " };
        for alike in self.components().chunk_by(|a, b| a.dtype() == b.dtype()) {
            write!(f, "{separator}")?;
            for component in alike {
                write!(f, "{} ", component.name())?;
            }
            write!(f, "{}", alike.first().map_or("", |component| component.dtype().name()))?;
            separator = ", ";
        }
        write!(f, "; {} bytes)", self.page_bytes())
    }
}

impl fmt::Debug for PageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageFormat({self})")
    }
}
