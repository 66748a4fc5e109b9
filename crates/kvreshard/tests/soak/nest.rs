//! Random page formats from the notation's whole grammar, and a walk through their loops that finds every element: it
//! goes in the order of memory and counts bytes, and knows of no stride.

use std::collections::BTreeMap;

use super::draw::Draw;

/// The axes there are; `h` and `g` are sharded. Behind them in an index comes the turn of the nameless loops.
pub const AXES: [&str; 5] = ["n", "h", "g", "d", "w"];
pub const STATE: usize = 0;
pub const SHARDED: [usize; 2] = [1, 2];
pub const NAMELESS: usize = 5;
pub const TYPES: [(&str, u64); 6] = [("u8", 1), ("bf16", 2), ("f32", 4), ("f8e4m3fn", 1), ("i16", 2), ("f64", 8)];

pub type Extents = [u64; 5];
pub type Index = [u64; 6];

/// What a component holds, whatever the page: axes and turns of nameless loops.
#[derive(Clone, Debug)]
pub struct Content {
    pub name: &'static str,
    pub dtype: (&'static str, u64),
    pub axes: Vec<usize>,
    pub nameless: u64,
}

/// A digit of an axis, or a nameless loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Digit {
    axis: usize,
    scale: u64,
    extent: u64,
}

#[derive(Clone, Debug)]
enum Item {
    Component { name: &'static str, size: u64, loops: Vec<Digit> },
    Pad { loops: Vec<Digit> },
    Body { loops: Vec<Digit>, items: Vec<Self> },
}

/// A page: how it is written, and how it is built.
#[derive(Clone, Debug)]
pub struct Page {
    pub text: String,
    pub extents: BTreeMap<String, u64>,
    pub types: Vec<(&'static str, &'static str)>,
    nest: Item,
}

/// Where an element of a component lies.
pub struct Element {
    pub index: Index,
    pub offset: u64,
}

pub struct Elements {
    pub name: &'static str,
    pub size: u64,
    pub all: Vec<Element>,
}

struct Open {
    name: &'static str,
    size: u64,
    digits: Vec<Digit>,
    nameless: Vec<u64>,
}

/// A random page of these components.
pub fn page(draw: &mut Draw, contents: &[Content], extents: &Extents) -> Page {
    let shared: Vec<Vec<u64>> = extents.iter().map(|extent| factors(draw, *extent)).collect();
    let parts = contents
        .iter()
        .map(|content| {
            let mut digits = Vec::new();
            for axis in content.axes.iter().copied() {
                let cut = if draw.chance(25) { factors(draw, extents[axis]) } else { shared[axis].clone() };
                let mut scale = 1;
                for extent in cut {
                    digits.push(Digit { axis, scale, extent });
                    scale *= extent;
                }
            }
            draw.shuffle(&mut digits);
            let nameless = factors(draw, content.nameless).into_iter().filter(|turns| *turns > 1).collect();
            Open { name: content.name, size: content.dtype.1, digits, nameless }
        })
        .collect();
    let nest = body(draw, parts, 0);
    written(draw, nest, contents, extents)
}

/// The same nest for other extents: the uppermost digit of an axis takes what the others leave, as a notation has it.
pub fn fitted(draw: &mut Draw, page: &Page, contents: &[Content], before: &Extents, extents: &Extents) -> Option<Page> {
    let mut nest = page.nest.clone();
    refit(&mut nest, before, extents).then(|| written(draw, nest, contents, extents))
}

fn refit(item: &mut Item, before: &Extents, extents: &Extents) -> bool {
    let loops = match item {
        // What padding is made of depends on nothing.
        Item::Pad { .. } => return true,
        Item::Component { loops, .. } | Item::Body { loops, .. } => loops,
    };
    for digit in loops.iter_mut().filter(|digit| digit.axis != NAMELESS) {
        let (old, new) = (before[digit.axis], extents[digit.axis]);
        if digit.scale * digit.extent != old {
            continue;
        }
        if new % digit.scale != 0 {
            return false;
        }
        digit.extent = new / digit.scale;
    }
    match item {
        Item::Body { items, .. } => items.iter_mut().all(|item| refit(item, before, extents)),
        _ => true,
    }
}

fn written(draw: &mut Draw, nest: Item, contents: &[Content], extents: &Extents) -> Page {
    let Item::Body { loops, items } = &nest else { unreachable!() };
    let text = text_of(draw, loops, items, extents);
    let used =
        contents.iter().flat_map(|content| content.axes.iter()).map(|axis| (AXES[*axis].to_owned(), extents[*axis]));
    let types = contents.iter().map(|content| (content.name, content.dtype.0)).collect();
    Page { text, extents: used.collect(), types, nest }
}

/// At most three factors, in any order; 1 only for 1.
fn factors(draw: &mut Draw, mut extent: u64) -> Vec<u64> {
    let mut found = Vec::new();
    while extent > 1 && found.len() < 2 && draw.below(2) == 1 {
        let all: Vec<u64> = (2..=extent).filter(|factor| extent % factor == 0).collect();
        let factor = draw.of(&all);
        found.push(factor);
        extent /= factor;
    }
    if extent > 1 || found.is_empty() {
        found.push(extent);
    }
    found
}

/// Loops that all parts share, as many as it pleases, then the parts in any order and grouping.
fn body(draw: &mut Draw, mut parts: Vec<Open>, depth: usize) -> Item {
    let mut loops = Vec::new();
    while draw.chance(65) {
        let shared: Vec<Digit> = parts[0]
            .digits
            .iter()
            .copied()
            .filter(|digit| parts.iter().all(|part| part.digits.contains(digit)))
            .collect();
        let turns = parts[0].nameless.first().copied();
        let nameless = turns.is_some() && parts.iter().all(|part| part.nameless.first().copied() == turns);
        let ways = shared.len() + usize::from(nameless);
        if ways == 0 {
            break;
        }
        let way = draw.index(ways);
        if let Some(digit) = shared.get(way) {
            parts.iter_mut().for_each(|part| part.digits.retain(|other| other != digit));
            loops.push(*digit);
        } else {
            for part in &mut parts {
                part.nameless.remove(0);
            }
            loops.push(Digit { axis: NAMELESS, scale: 1, extent: turns.unwrap() });
        }
    }
    if draw.chance(10) {
        loops.push(Digit { axis: NAMELESS, scale: 1, extent: 1 });
    }
    draw.shuffle(&mut parts);
    let (whole, mut items) = (parts.len(), Vec::new());
    while !parts.is_empty() {
        if draw.chance(10) {
            items.push(pad(draw));
        }
        let most = if parts.len() < whole || depth < 2 { parts.len() } else { parts.len() - 1 };
        let size = 1 + draw.index(most.max(1));
        let mut group: Vec<Open> = parts.drain(..size).collect();
        if size > 1 || (depth < 3 && draw.chance(15)) {
            items.push(body(draw, group, depth + 1));
        } else {
            items.push(component(draw, group.remove(0)));
        }
    }
    if draw.chance(10) {
        items.push(pad(draw));
    }
    Item::Body { loops, items }
}

fn pad(draw: &mut Draw) -> Item {
    let turns = |extent| Digit { axis: NAMELESS, scale: 1, extent };
    let mut loops = vec![turns(draw.between(1, 5))];
    if draw.chance(30) {
        loops.push(turns(draw.between(2, 3)));
    }
    Item::Pad { loops }
}

/// All that is left of a component's loops inside; nameless ones keep their order.
fn component(draw: &mut Draw, part: Open) -> Item {
    let mut loops = part.digits;
    let alone = part.nameless.len() == 1;
    for (at, turns) in part.nameless.into_iter().enumerate() {
        let at = if alone { draw.index(loops.len() + 1) } else { at };
        loops.insert(at, Digit { axis: NAMELESS, scale: 1, extent: turns });
    }
    Item::Component { name: part.name, size: part.size, loops }
}

fn text_of(draw: &mut Draw, loops: &[Digit], items: &[Item], extents: &Extents) -> String {
    let mut words: Vec<String> = loops.iter().map(|digit| loop_text(draw, *digit, extents)).collect();
    for item in items {
        words.push(match item {
            Item::Component { name, loops, .. } => {
                let inner: Vec<String> = loops.iter().map(|digit| loop_text(draw, *digit, extents)).collect();
                format!("{name}[{}]", inner.join(" "))
            }
            Item::Pad { loops } => {
                let inner: Vec<String> = loops.iter().map(|digit| digit.extent.to_string()).collect();
                format!("pad[{}]", inner.join(" "))
            }
            Item::Body { loops, items } => format!("({})", text_of(draw, loops, items, extents)),
        });
    }
    words.join(if draw.chance(5) { "\t " } else { " " })
}

fn loop_text(draw: &mut Draw, digit: Digit, extents: &Extents) -> String {
    let Digit { axis, scale, extent } = digit;
    if axis == NAMELESS {
        return extent.to_string();
    }
    let (name, whole, reach) = (AXES[axis], extents[axis], scale * extent);
    match (scale, reach == whole, draw.below(8)) {
        (1, true, 1) => format!("{name}/1"),
        (1, true, 2) => format!("{name}%{whole}"),
        (1, true, _) => name.to_owned(),
        (1, false, _) => format!("{name}%{extent}"),
        (_, true, _) => format!("{name}/{scale}"),
        (_, false, 0..4) => format!("{name}/{scale}%{extent}"),
        (_, false, _) => format!("{name}%{reach}/{scale}"),
    }
}

/// Every element of every component, and the bytes of the page.
pub fn walk(page: &Page) -> (Vec<Elements>, u64) {
    let mut found = Vec::new();
    let mut at = 0;
    step(&page.nest, &[0; 6], &mut at, &mut found);
    (found, at)
}

fn step(item: &Item, index: &Index, at: &mut u64, found: &mut Vec<Elements>) {
    match item {
        Item::Component { name, size, loops } => turns(loops, index, &mut |index| {
            let slot = found.iter().position(|one| one.name == *name).unwrap_or_else(|| {
                found.push(Elements { name, size: *size, all: Vec::new() });
                found.len() - 1
            });
            found[slot].all.push(Element { index: *index, offset: *at });
            *at += size;
        }),
        Item::Pad { loops } => turns(loops, index, &mut |_| *at += 1),
        Item::Body { loops, items } => turns(loops, index, &mut |index| {
            for item in items {
                step(item, index, at, found);
            }
        }),
    }
}

fn turns(loops: &[Digit], index: &Index, each: &mut dyn FnMut(&Index)) {
    let Some((digit, inner)) = loops.split_first() else { return each(index) };
    for turn in 0..digit.extent {
        let mut next = *index;
        if digit.axis == NAMELESS {
            next[NAMELESS] = next[NAMELESS] * digit.extent + turn;
        } else {
            next[digit.axis] += turn * digit.scale;
        }
        turns(inner, &next, each);
    }
}
