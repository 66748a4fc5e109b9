//! The parameters of presets: what they take, and the values given, checked.

use std::collections::BTreeMap;
use std::fmt;

use super::Preset;
use crate::error::{Error, Result};
use crate::format::ElementType;
use crate::units::rem;

/// A value for a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A count or a size.
    Number(u64),
    /// An element type or a choice, by name.
    Text(String),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<ElementType> for Value {
    fn from(dtype: ElementType) -> Self {
        Self::Text(dtype.name().to_owned())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// A parameter of a preset.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Parameter {
    /// The name it is given by.
    pub name: &'static str,
    /// What it is.
    pub meaning: &'static str,
    /// What values it takes, and which one it has when none is given.
    pub kind: Kind,
}

/// What values a parameter takes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Kind {
    /// A number of at least 1 that must be given.
    Required,
    /// A number; this one when none is given.
    Default(u64),
    /// A number of at least 1; the value of this earlier parameter when none is given.
    SameAs(&'static str),
    /// An element type; this one when none is given.
    Type(ElementType),
    /// One of these element types; the first when none is given.
    TypeOf(&'static [ElementType]),
    /// One of these words; the first when none is given.
    Choice(&'static [&'static str]),
}

impl Parameter {
    pub(super) const fn new(name: &'static str, meaning: &'static str, kind: Kind) -> Self {
        Self { name, meaning, kind }
    }

    /// The value when none is given, in words; `None` when one must be given.
    pub fn default(&self) -> Option<String> {
        match self.kind {
            Kind::Required => None,
            Kind::Default(number) => Some(number.to_string()),
            Kind::SameAs(other) => Some(other.to_owned()),
            Kind::Type(dtype) => Some(dtype.to_string()),
            Kind::TypeOf(types) => types.first().map(ToString::to_string),
            Kind::Choice(words) => words.first().map(ToString::to_string),
        }
    }
}

/// The parameters of one use of a preset, defaults filled in.
pub(super) struct Arguments {
    preset: &'static str,
    values: BTreeMap<&'static str, Argument>,
}

#[derive(Clone, Copy)]
enum Argument {
    Number(u64),
    Type(ElementType),
    Word(&'static str),
}

impl Arguments {
    pub(super) fn new(preset: &Preset, given: &BTreeMap<String, Value>) -> Result<Self> {
        let mut arguments = Self { preset: preset.name, values: BTreeMap::new() };
        if let Some(unknown) = given.keys().find(|name| preset.parameters.iter().all(|known| known.name != **name)) {
            let known: Vec<_> = preset.parameters.iter().map(|known| known.name).collect();
            return Err(arguments.problem(format!("takes no {unknown:?}; it takes {}", known.join(", "))));
        }
        for parameter in preset.parameters {
            let value = arguments.fill_in(parameter, given.get(parameter.name))?;
            arguments.values.insert(parameter.name, value);
        }
        Ok(arguments)
    }

    fn fill_in(&self, parameter: &Parameter, given: Option<&Value>) -> Result<Argument> {
        let name = parameter.name;
        let unfit = |found: &Value, wanted: String| self.problem(format!("{name} is {found}, but takes {wanted}"));
        match (parameter.kind, given) {
            (Kind::Required, None) => Err(self.problem(format!("needs {name}: {}", parameter.meaning))),
            (Kind::Required | Kind::SameAs(_), Some(Value::Number(0))) => {
                Err(self.problem(format!("{name} is 0, but takes at least 1")))
            }
            (Kind::Required | Kind::SameAs(_) | Kind::Default(_), Some(Value::Number(number))) => {
                Ok(Argument::Number(*number))
            }
            (Kind::Required | Kind::SameAs(_) | Kind::Default(_), Some(other)) => {
                Err(unfit(other, "a number".to_owned()))
            }
            (Kind::Default(number), None) => Ok(Argument::Number(number)),
            (Kind::SameAs(other), None) => self.number(other).map(Argument::Number),
            (Kind::Type(dtype), None) => Ok(Argument::Type(dtype)),
            (Kind::Type(_), Some(Value::Text(text))) => text.parse().map(Argument::Type),
            (Kind::Type(_), Some(other)) => Err(unfit(other, "the name of an element type".to_owned())),
            (Kind::TypeOf(types), None) => {
                types.first().map(|dtype| Argument::Type(*dtype)).ok_or_else(|| self.problem(format!("needs {name}")))
            }
            (Kind::TypeOf(types), Some(given)) => {
                let dtype = match given {
                    Value::Text(text) => Some(text.parse()?),
                    Value::Number(_) => None,
                };
                dtype.filter(|dtype| types.contains(dtype)).map(Argument::Type).ok_or_else(|| {
                    let names: Vec<_> = types.iter().map(|dtype| dtype.name()).collect();
                    unfit(given, names.join(" or "))
                })
            }
            (Kind::Choice(words), None) => {
                words.first().map(|word| Argument::Word(word)).ok_or_else(|| self.problem(format!("needs {name}")))
            }
            (Kind::Choice(words), Some(given)) => {
                let word = words.iter().find(|word| matches!(given, Value::Text(text) if text == *word));
                word.map(|word| Argument::Word(word)).ok_or_else(|| unfit(given, words.join(" or ")))
            }
        }
    }

    /// [`Error::Format`] about this preset.
    pub(super) fn problem(&self, problem: impl Into<String>) -> Error {
        Error::format(format!("preset {}", self.preset), problem)
    }

    pub(super) fn number(&self, name: &str) -> Result<u64> {
        match self.values.get(name) {
            Some(Argument::Number(number)) => Ok(*number),
            _ => Err(self.problem(format!("has no number {name}"))),
        }
    }

    pub(super) fn dtype(&self, name: &str) -> Result<ElementType> {
        match self.values.get(name) {
            Some(Argument::Type(dtype)) => Ok(*dtype),
            _ => Err(self.problem(format!("has no element type {name}"))),
        }
    }

    pub(super) fn word(&self, name: &str) -> Result<&'static str> {
        match self.values.get(name) {
            Some(Argument::Word(word)) => Ok(word),
            _ => Err(self.problem(format!("has no choice {name}"))),
        }
    }

    /// The numbers of these parameters, each with its name, as extents.
    pub(super) fn extents(&self, names: &[&'static str]) -> Result<Vec<(&'static str, u64)>> {
        names.iter().map(|name| Ok((*name, self.number(name)?))).collect()
    }

    /// Refuses a parameter that is not a multiple of `of`; `why` says where the number comes from.
    pub(super) fn multiple(&self, name: &str, of: u64, why: &str) -> Result<()> {
        let value = self.number(name)?;
        if rem(value, of, name)? == 0 {
            return Ok(());
        }
        Err(self.problem(format!("{name} is {value}, but must be a multiple of {of}: {why}")))
    }
}
