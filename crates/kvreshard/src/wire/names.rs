//! Layer names without their repetition: `model.layers.37.attn` is template `model.layers.#.attn` with number 37.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

use crate::error::{Error, Result, shows};
use crate::layout::{MAX_LAYER_NAME_BYTES, MAX_LAYERS};
use crate::units::wide;

use super::bounded::{List, Text};

/// Stands for a number in a template.
const HOLE: char = '#';

/// The most numbers that are taken out of one name.
const MAX_NUMBERS: usize = 32;

/// A name with [`HOLE`]s.
pub(super) type Template = Text<MAX_LAYER_NAME_BYTES>;

/// A layer's name in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WireName {
    /// The name itself.
    Text(String),
    /// Index of a template with its one number, as most names are.
    One([u64; 2]),
    /// Index of a template, then its numbers.
    Filled(Vec<u64>),
}

impl Serialize for WireName {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(to),
            Self::One(parts) => parts.as_slice().serialize(to),
            Self::Filled(parts) => parts.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for WireName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = WireName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a layer name: a text, or an array of a template and numbers")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<WireName, E> {
                if text.len() > MAX_LAYER_NAME_BYTES {
                    return Err(E::custom(format_args!("more than {MAX_LAYER_NAME_BYTES} bytes in a layer name")));
                }
                match text.chars().find(|c| !shows(*c)) {
                    Some(c) => Err(E::custom(format_args!("character {} in a layer name", c.escape_unicode()))),
                    None => Ok(WireName::Text(text.to_owned())),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> std::result::Result<WireName, A::Error> {
                let first = (from.next_element()?, from.next_element()?, from.next_element()?);
                if let (Some(template), Some(number), None) = first {
                    return Ok(WireName::One([template, number]));
                }
                let mut parts: Vec<u64> = [first.0, first.1, first.2].into_iter().flatten().collect();
                while let Some(number) = from.next_element()? {
                    if parts.len() > MAX_NUMBERS {
                        return Err(de::Error::custom(format_args!("more than {MAX_NUMBERS} numbers in a layer name")));
                    }
                    parts.push(number);
                }
                Ok(WireName::Filled(parts))
            }
        }
        from.deserialize_any(Reader)
    }
}

/// Templates in the order of first use.
#[derive(Debug, Default)]
pub(super) struct Templates(Vec<String>);

impl Templates {
    /// `name` by template, if its digits can be put back exactly as they were.
    pub(super) fn shorten(&mut self, name: &str) -> WireName {
        let mut template = String::with_capacity(name.len());
        let mut numbers = Vec::new();
        let mut rest = name;
        while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
            let (text, tail) = rest.split_at_checked(start).unwrap_or((rest, ""));
            let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
            let (digits, after) = tail.split_at_checked(end).unwrap_or((tail, ""));
            let Some(number) = digits.parse::<u64>().ok().filter(|number| number.to_string() == digits) else {
                return WireName::Text(name.to_owned());
            };
            template.push_str(text);
            template.push(HOLE);
            numbers.push(number);
            rest = after;
        }
        if numbers.is_empty() || numbers.len() > MAX_NUMBERS || name.contains(HOLE) {
            return WireName::Text(name.to_owned());
        }
        template.push_str(rest);
        let at = self.0.iter().position(|known| *known == template).unwrap_or_else(|| {
            self.0.push(template);
            self.0.len().saturating_sub(1)
        });
        numbers.insert(0, wide(at));
        WireName::Filled(numbers)
    }

    pub(super) fn into_list(self) -> List<Template, MAX_LAYERS> {
        List(self.0.into_iter().map(Text).collect())
    }
}

/// Fills templates, one name at a time.
pub(super) struct Names<'a> {
    templates: &'a [Template],
    /// The template last used, cut at its holes: neighbours mostly share it.
    cut: (u64, Vec<&'a str>),
    text: String,
}

impl<'a> Names<'a> {
    pub(super) const fn new(templates: &'a [Template]) -> Self {
        Self { templates, cut: (u64::MAX, Vec::new()), text: String::new() }
    }

    /// The name that `name` stands for.
    pub(super) fn restore<'b>(&'b mut self, name: &'b WireName) -> Result<&'b str> {
        let parts = match name {
            WireName::Text(text) => return bounded(text),
            WireName::One(parts) => parts.as_slice(),
            WireName::Filled(parts) => parts,
        };
        let Some((at, numbers)) = parts.split_first() else { return Err(wrong("an empty array")) };
        self.fill(*at, numbers)?;
        bounded(&self.text)
    }

    fn fill(&mut self, at: u64, numbers: &[u64]) -> Result<()> {
        if self.cut.0 != at || self.cut.1.is_empty() {
            let template = usize::try_from(at).ok().and_then(|at| self.templates.get(at));
            let Text(template) = template.ok_or_else(|| wrong("names a template that is not in the message"))?;
            self.cut.0 = at;
            self.cut.1.clear();
            self.cut.1.extend(template.split(HOLE));
        }
        let Some((first, pieces)) = self.cut.1.split_first() else { return Ok(()) };
        if pieces.len() != numbers.len() {
            return Err(wrong("has another count of numbers than its template"));
        }
        self.text.clear();
        self.text.push_str(first);
        for (number, piece) in numbers.iter().zip(pieces) {
            push_number(&mut self.text, *number);
            self.text.push_str(piece);
        }
        Ok(())
    }
}

/// Appends `number` in decimal; layer numbers are small, and a formatter would take longer than all the rest of a name.
fn push_number(text: &mut String, number: u64) {
    let (tens, ones) = (number.checked_div(10).unwrap_or_default(), number.checked_rem(10).unwrap_or_default());
    if tens > 0 {
        push_number(text, tens);
    }
    text.extend(u32::try_from(ones).ok().and_then(|ones| char::from_digit(ones, 10)));
}

fn bounded(text: &str) -> Result<&str> {
    if text.len() > MAX_LAYER_NAME_BYTES {
        return Err(Error::limit("bytes of a layer name", wide(text.len()), wide(MAX_LAYER_NAME_BYTES)));
    }
    Ok(text)
}

fn wrong(problem: &str) -> Error {
    Error::Wire { at: "layer name".to_owned(), problem: problem.to_owned() }
}
