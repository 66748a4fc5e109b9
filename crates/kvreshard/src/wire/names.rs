//! Layer names without their repetition: `model.layers.37.attn` is template `model.layers.#.attn` with number 37.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::units::wide;

/// Stands for a number in a template.
const HOLE: char = '#';

/// The longest layer name.
const MAX_NAME: usize = 1024;

/// A layer's name in a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum WireName {
    /// The name itself.
    Text(String),
    /// Index of a template, then its numbers.
    Filled(Vec<u64>),
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
        if numbers.is_empty() || name.contains(HOLE) {
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

    pub(super) fn into_texts(self) -> Vec<String> {
        self.0
    }
}

/// The name that `name` stands for.
pub(super) fn restore(name: WireName, templates: &[String]) -> Result<String> {
    let wrong = |problem: &str| Error::Wire { at: "layer name".to_owned(), problem: problem.to_owned() };
    let text = match name {
        WireName::Text(text) => text,
        WireName::Filled(parts) => {
            let Some((at, numbers)) = parts.split_first() else { return Err(wrong("an empty array")) };
            let template = usize::try_from(*at).ok().and_then(|at| templates.get(at));
            let template = template.ok_or_else(|| wrong("names a template that is not in the message"))?;
            if template.len() > MAX_NAME || template.matches(HOLE).count() != numbers.len() {
                return Err(wrong("has another count of numbers than its template"));
            }
            let mut pieces = template.split(HOLE);
            let mut text = pieces.next().unwrap_or_default().to_owned();
            for (number, piece) in numbers.iter().zip(pieces) {
                text.push_str(&number.to_string());
                text.push_str(piece);
            }
            text
        }
    };
    if text.len() > MAX_NAME {
        return Err(Error::limit("bytes of a layer name", wide(text.len()), wide(MAX_NAME)));
    }
    Ok(text)
}
