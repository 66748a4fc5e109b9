//! Page formats against a walk through the nest that shares nothing with the crate: it goes through a random nest element by
//! element, in memory order, and counts bytes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test says so by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};

use kvreshard::Error;
use kvreshard::format::{ElementType, PageFormat, Types};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Loop {
    /// Empty for a bare number.
    axis: &'static str,
    scale: u64,
    extent: u64,
    /// Extent of the whole axis.
    whole: u64,
}

#[derive(Clone, Debug)]
enum Item {
    Component { name: String, loops: Vec<Loop>, dtype: ElementType },
    Pad { loops: Vec<Loop> },
    Group { loops: Vec<Loop>, items: Vec<Item> },
}

/// Decisions drawn from a list of numbers, which shrinks well; 0 when it is used up.
struct Draw(std::vec::IntoIter<u16>);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.0.next().unwrap_or_default()) % limit
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

const AXES: [&str; 3] = ["n", "h", "d"];
const TYPES: [ElementType; 4] = [ElementType::U8, ElementType::Bf16, ElementType::F32, ElementType::F8E4m3fn];

/// Digits of every axis, lowest first.
fn draw_axes(draw: &mut Draw) -> Vec<Vec<Loop>> {
    AXES.iter()
        .map(|axis| {
            let radices: Vec<u64> = (0..=draw.below(2)).map(|_| [1, 2, 3, 4][draw.below(4)]).collect();
            let whole = radices.iter().product();
            let mut scale = 1;
            let digit = |extent| {
                let digit = Loop { axis, scale, extent, whole };
                scale *= extent;
                digit
            };
            radices.into_iter().map(digit).collect()
        })
        .collect()
}

struct Nest<'a> {
    draw: &'a mut Draw,
    components: usize,
}

impl Nest<'_> {
    fn number(&mut self) -> Loop {
        let extent = [1, 2, 4, 6][self.draw.below(4)];
        Loop { axis: "", scale: 1, extent, whole: extent }
    }

    /// A body whose items must use up `open` (digits of axes met outside), and may use axes of `fresh`.
    fn group(&mut self, open: &[Loop], fresh: &[Vec<Loop>], depth: usize) -> Item {
        let mut rest = open.to_vec();
        let mut untouched = Vec::new();
        for axis in fresh {
            if self.draw.below(2) == 0 { rest.extend(axis.clone()) } else { untouched.push(axis.clone()) }
        }
        self.draw.shuffle(&mut rest);
        let kept = rest.split_off(self.draw.below(rest.len() + 1));
        let mut loops = rest;
        if self.draw.below(4) == 0 {
            loops.push(self.number());
        }
        let mut items: Vec<_> = (0..self.draw.below(3)).map(|_| self.item(&kept, &untouched, depth)).collect();
        items.push(self.component(&kept, &untouched));
        self.draw.shuffle(&mut items);
        Item::Group { loops, items }
    }

    fn item(&mut self, open: &[Loop], fresh: &[Vec<Loop>], depth: usize) -> Item {
        match self.draw.below(4) {
            0 => {
                // Pads are free to use any digits at all.
                let mut loops: Vec<_> = fresh.concat().into_iter().take(self.draw.below(3)).collect();
                loops.push(self.number());
                Item::Pad { loops }
            }
            1 | 2 if depth > 0 => self.group(open, fresh, depth - 1),
            _ => self.component(open, fresh),
        }
    }

    fn component(&mut self, open: &[Loop], fresh: &[Vec<Loop>]) -> Item {
        let mut loops = open.to_vec();
        for axis in fresh {
            if self.draw.below(2) == 0 {
                loops.extend(axis.clone());
            }
        }
        if self.draw.below(4) == 0 {
            loops.push(self.number());
        }
        self.draw.shuffle(&mut loops);
        self.components += 1;
        let dtype = TYPES[self.draw.below(TYPES.len())];
        Item::Component { name: format!("c{}", self.components), loops, dtype }
    }
}

fn draw_nest(draw: &mut Draw) -> Item {
    let axes = draw_axes(draw);
    Nest { draw, components: 0 }.group(&[], &axes, 2)
}

/// How a nest is written: plainly, or with everything that makes no difference.
struct Writer<'a> {
    verbose: Option<&'a mut Draw>,
}

impl Writer<'_> {
    fn says(&mut self) -> bool {
        self.verbose.as_mut().is_some_and(|draw| draw.below(3) == 0)
    }

    fn space(&mut self) -> &'static str {
        if self.says() { " \t\n" } else { " " }
    }

    fn one(&mut self, digit: &Loop) -> String {
        let Loop { axis, scale, extent, whole } = digit;
        match (self.says(), axis.is_empty()) {
            (_, true) => extent.to_string(),
            (true, _) => format!("{axis} %{}/ {scale}", scale * extent),
            (false, _) if *scale == 1 && extent == whole => (*axis).to_owned(),
            (false, _) => format!("{axis}/{scale}%{extent}"),
        }
    }

    fn loops(&mut self, loops: &[Loop]) -> String {
        let mut written = String::new();
        for digit in loops {
            let halves = digit.extent % 2 == 0 && self.says();
            let parts = if halves {
                let upper = Loop { scale: digit.scale * 2, extent: digit.extent / 2, ..digit.clone() };
                vec![upper, Loop { extent: 2, ..digit.clone() }]
            } else {
                vec![digit.clone()]
            };
            for part in parts {
                if self.says() {
                    written += "1 ";
                }
                written += &self.one(&part);
                written += self.space();
            }
        }
        written
    }

    fn item(&mut self, item: &Item) -> String {
        let text = match item {
            Item::Component { name, loops, .. } => format!("{name}[{}]", self.loops(loops)),
            Item::Pad { loops } => format!("pad[{}]", self.loops(loops)),
            Item::Group { .. } => format!("({})", self.body(item)),
        };
        if self.says() { format!("({text})") } else { text }
    }

    fn body(&mut self, group: &Item) -> String {
        let Item::Group { loops, items } = group else { panic!("not a group") };
        let mut written = self.loops(loops);
        for item in items {
            written += &self.item(item);
            written += self.space();
        }
        if self.says() { format!("(1 ({written}))") } else { written }
    }
}

fn loops_of(item: &Item) -> Vec<Loop> {
    match item {
        Item::Component { loops, .. } | Item::Pad { loops } => loops.clone(),
        Item::Group { loops, items } => loops.iter().cloned().chain(items.iter().flat_map(loops_of)).collect(),
    }
}

fn types_of(item: &Item) -> Vec<(String, ElementType)> {
    match item {
        Item::Component { name, dtype, .. } => vec![(name.clone(), *dtype)],
        Item::Pad { .. } => Vec::new(),
        Item::Group { items, .. } => items.iter().flat_map(types_of).collect(),
    }
}

fn make(nest: &Item, notation: &str) -> PageFormat {
    read(nest, notation).unwrap_or_else(|e| panic!("{notation}: {e}"))
}

fn read(nest: &Item, notation: &str) -> Result<PageFormat, Error> {
    let axes = loops_of(nest).into_iter().filter(|digit| !digit.axis.is_empty());
    let extents = axes.map(|digit| (digit.axis.to_owned(), digit.whole)).collect();
    PageFormat::new(notation, &extents, &Types::each(types_of(nest)))
}

/// The nest written with everything that makes no difference; plainly where that has more loops than a notation may.
fn make_verbose(nest: &Item, style: Vec<u16>) -> PageFormat {
    let notation = Writer { verbose: Some(&mut Draw(style.into_iter())) }.body(nest);
    match read(nest, &notation) {
        Err(Error::Limit { .. }) => make(nest, &Writer { verbose: None }.body(nest)),
        read => read.unwrap_or_else(|e| panic!("{notation}: {e}")),
    }
}

type Index = BTreeMap<&'static str, u64>;

/// Every element of the page, by component and index, with its first byte.
#[derive(Default)]
struct Walk {
    elements: BTreeMap<(String, Index), u64>,
    bytes: u64,
}

impl Walk {
    fn of(nest: &Item) -> Self {
        let mut walk = Self::default();
        walk.visit(nest, &[], &Index::new(), &Index::new());
        walk
    }

    /// Runs through `outer` loops already opened and then `item`; `radix` is the product of the bare numbers so far.
    fn visit(&mut self, item: &Item, pending: &[Loop], index: &Index, sizes: &Index) {
        if let Some((digit, rest)) = pending.split_first() {
            for value in 0..digit.extent {
                let mut index = index.clone();
                let mut sizes = sizes.clone();
                let entry = index.entry(digit.axis).or_default();
                if digit.axis.is_empty() {
                    *entry = *entry * digit.extent + value;
                    *sizes.entry("").or_insert(1) *= digit.extent;
                } else {
                    *entry += value * digit.scale;
                    sizes.insert(digit.axis, digit.whole);
                }
                self.inside(item, rest, &index, &sizes);
            }
        } else {
            self.inside(item, &[], index, sizes);
        }
    }

    fn inside(&mut self, item: &Item, pending: &[Loop], index: &Index, sizes: &Index) {
        if !pending.is_empty() {
            return self.visit(item, pending, index, sizes);
        }
        match item {
            // A leaf without loops of its own is one element.
            Item::Component { name, loops, dtype } if loops.is_empty() => {
                let mut index = index.clone();
                index.retain(|axis, _| !(axis.is_empty() && sizes[""] == 1));
                let before = self.elements.insert((name.clone(), index), self.bytes);
                assert_eq!(before, None, "an element is met twice");
                self.bytes += dtype.bytes();
            }
            Item::Pad { loops } if loops.is_empty() => self.bytes += 1,
            Item::Group { loops, items } if loops.is_empty() => {
                for item in items {
                    self.visit(item, &[], index, sizes);
                }
            }
            Item::Component { name, loops, dtype } => {
                let bare = Item::Component { name: name.clone(), loops: Vec::new(), dtype: *dtype };
                self.visit(&bare, loops, index, sizes);
            }
            Item::Pad { loops } => self.visit(&Item::Pad { loops: Vec::new() }, loops, index, sizes),
            Item::Group { loops, items } => {
                let bare = Item::Group { loops: Vec::new(), items: items.clone() };
                self.visit(&bare, loops, index, sizes);
            }
        }
    }

    /// The address map without axes of extent 1.
    fn map(&self, nest: &Item) -> BTreeMap<(String, Index), u64> {
        let single: BTreeSet<_> = loops_of(nest)
            .into_iter()
            .filter(|digit| digit.whole == 1 && !digit.axis.is_empty())
            .map(|d| d.axis)
            .collect();
        let reduced =
            |index: &Index| index.iter().filter(|(axis, _)| !single.contains(*axis)).map(|(a, i)| (*a, *i)).collect();
        self.elements.iter().map(|((name, index), at)| ((name.clone(), reduced(index)), *at)).collect()
    }
}

/// The extents that a canonical text still names.
fn canonical_again(format: &PageFormat) -> PageFormat {
    let used = |axis: &str| {
        let parts = format.canonical().split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        parts.into_iter().any(|part| part == axis)
    };
    let named = format.extents().iter().filter(|(axis, _)| used(axis.as_str()));
    let extents = named.map(|(axis, extent)| (axis.to_string(), *extent)).collect();
    PageFormat::new(format.canonical(), &extents, &format.types()).unwrap()
}

fn draws() -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::vec(any::<u16>(), 0..160)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn offsets_are_those_of_a_walk(choices in draws()) {
        let nest = draw_nest(&mut Draw(choices.into_iter()));
        let format = make(&nest, &Writer { verbose: None }.body(&nest));
        let walk = Walk::of(&nest);
        prop_assert_eq!(format.page_bytes(), walk.bytes);
        let mut seen = BTreeMap::<&str, u64>::new();
        for ((name, index), at) in &walk.elements {
            let index: Vec<_> = index.iter().map(|(axis, value)| (*axis, *value)).collect();
            prop_assert_eq!(format.offset(name, &index).unwrap(), *at, "{} {:?}", format, index);
            *seen.entry(name).or_default() += 1;
        }
        prop_assert_eq!(seen.len(), format.components().len());
        for component in format.components() {
            let elements: u64 = component.digits().iter().map(|digit| digit.extent).product();
            prop_assert_eq!(seen[component.name().as_str()], elements);
        }
    }

    #[test]
    fn text_that_makes_no_difference_makes_none(choices in draws(), style in draws()) {
        let nest = draw_nest(&mut Draw(choices.into_iter()));
        let plain = make(&nest, &Writer { verbose: None }.body(&nest));
        let verbose = make_verbose(&nest, style);
        prop_assert_eq!(&plain, &verbose);
        prop_assert_eq!(plain.fingerprint(), verbose.fingerprint());
        prop_assert_eq!(plain.canonical(), verbose.canonical());
    }

    #[test]
    fn text_parses_back(choices in draws(), style in draws()) {
        let nest = draw_nest(&mut Draw(choices.into_iter()));
        let format = make_verbose(&nest, style);
        let again = make(&nest, format.notation());
        prop_assert_eq!(again.notation(), format.notation());
        prop_assert_eq!(&again, &format);
        let canonical = canonical_again(&format);
        prop_assert_eq!(canonical.canonical(), format.canonical());
        prop_assert_eq!(canonical.notation(), format.canonical());
        prop_assert_eq!(canonical.fingerprint(), format.fingerprint());
        prop_assert_eq!(&canonical, &format);
    }

    #[test]
    fn equal_means_the_same_bytes(choices in draws(), change in draws()) {
        let nest = draw_nest(&mut Draw(choices.into_iter()));
        let mut other = nest.clone();
        disturb(&mut other, &mut Draw(change.into_iter()));
        let [a, b] = [&nest, &other].map(|nest| make(nest, &Writer { verbose: None }.body(nest)));
        let [x, y] = [&nest, &other].map(|nest| (Walk::of(nest).map(nest), Walk::of(nest).bytes, types_of(nest).into_iter().collect::<BTreeSet<_>>()));
        prop_assert_eq!(a == b, x == y, "{} and {}", a, b);
        prop_assert_eq!(a.fingerprint() == b.fingerprint(), x == y);
        prop_assert_eq!(a.canonical() == b.canonical() && a.types() == b.types(), x == y, "{} and {}", a, b);
    }

    #[test]
    fn no_text_panics(text in "[abk1280\\[\\]()/% pad]{0,60}", any in any::<String>()) {
        let extents = [("a", 4), ("b", 6), ("k", 1), ("p", 8), ("d", 128)].map(|(axis, extent)| (axis.to_owned(), extent));
        for text in [&text, &any] {
            // Extents must match exactly, so first ask for none, then for what a text may use.
            for given in [BTreeMap::new(), extents.clone().into()] {
                match PageFormat::new(text, &given, &Types::all(ElementType::U8)) {
                    Err(Error::Syntax { at, .. } | Error::Format { at: Some(at), .. }) => {
                        prop_assert!(text.is_char_boundary(at), "{at} in {text:?}");
                    }
                    Err(_) => {}
                    Ok(format) => prop_assert!(format.page_bytes() > 0),
                }
            }
        }
    }
}

/// Swaps neighbouring loops or items somewhere; often without effect on the bytes.
fn disturb(item: &mut Item, draw: &mut Draw) {
    match item {
        Item::Component { loops, .. } | Item::Pad { loops } => {
            if loops.len() > 1 && draw.below(2) == 0 {
                let at = draw.below(loops.len() - 1);
                loops.swap(at, at + 1);
            }
        }
        Item::Group { items, .. } => {
            if items.len() > 1 && draw.below(4) == 0 {
                let at = draw.below(items.len() - 1);
                items.swap(at, at + 1);
            }
            let at = draw.below(items.len());
            disturb(&mut items[at], draw);
        }
    }
}
