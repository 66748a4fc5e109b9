//! Which component has which element type.

use std::collections::BTreeMap;

use super::dtype::ElementType;
use super::grammar::{PAD, misfit};
use crate::error::{Error, Result};
use crate::name::Name;

/// The element types of a page's components: one for all, one each, or one for those that are not named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Types {
    default: Option<ElementType>,
    each: BTreeMap<String, ElementType>,
}

impl Types {
    /// `default` for every component that `each` does not name.
    pub const fn new(default: Option<ElementType>, each: BTreeMap<String, ElementType>) -> Self {
        Self { default, each }
    }

    /// One type for every component.
    pub const fn all(default: ElementType) -> Self {
        Self { default: Some(default), each: BTreeMap::new() }
    }

    /// One type for each component named; any other is an error.
    pub fn each<N: Into<String>>(types: impl IntoIterator<Item = (N, ElementType)>) -> Self {
        Self { default: None, each: types.into_iter().map(|(name, dtype)| (name.into(), dtype)).collect() }
    }

    /// These types, with `dtype` for `component`.
    #[must_use]
    pub fn with(mut self, component: impl Into<String>, dtype: ElementType) -> Self {
        self.each.insert(component.into(), dtype);
        self
    }

    /// The type of the component written at `at`.
    pub(super) fn get(&self, component: &Name, at: usize) -> Result<ElementType> {
        let named = self.each.get(component.as_str()).copied();
        named.or(self.default).ok_or_else(|| misfit(component, "this component has no element type", at))
    }

    /// Refuses types for components that do not exist.
    pub(super) fn check_names<'a>(&self, components: impl Iterator<Item = &'a Name> + Clone) -> Result<()> {
        match self.each.keys().find(|named| !components.clone().any(|known| known == named.as_str())) {
            None => Ok(()),
            Some(pad) if pad == PAD => Err(Error::format(PAD, "a type is given for it, but nobody reads a pad")),
            Some(unknown) => {
                let known: Vec<_> = components.map(Name::as_str).collect();
                let problem = format!("a type is given for it, but the components are {}", known.join(", "));
                Err(Error::format(unknown, problem))
            }
        }
    }
}

impl From<ElementType> for Types {
    fn from(default: ElementType) -> Self {
        Self::all(default)
    }
}
