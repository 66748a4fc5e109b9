//! The page formats known from engines, by name.
//!
//! A preset turns a few numbers (heads, states in a page, head size, element type) into a [`PageFormat`]; everything else, such as
//! the 16-byte vectors that some kernels cut axes into, is computed. Nothing about a preset is special: writing its notation by
//! hand gives an equal format. Each was checked against the address formula of the code that writes such pages.
//!
//! Axes mean the same in all of them: `n` states of a page (tokens, mostly), `h` KV heads held by the rank, `d` and `dv` head sizes
//! of K and V, `b` bytes of 4-bit data, `s` scales of a row, `r` elements of a latent row.

mod arguments;
mod attention;
mod latent;
mod quantised;
mod state;

use std::collections::BTreeMap;
use std::sync::LazyLock;

pub use arguments::{Kind, Parameter, Value};

use super::{ElementType, PageFormat, Types};
use crate::error::{Error, Result};
use arguments::Arguments;

/// A page format by name.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Preset {
    /// What [`preset`] finds it by.
    pub name: &'static str,
    /// What the page looks like, in a sentence.
    pub summary: &'static str,
    /// Which engines and backends build such pages.
    pub found_in: &'static str,
    /// What it needs to know, in the order a reader expects.
    pub parameters: &'static [Parameter],
    recipe: fn(&Arguments) -> Result<Recipe>,
}

/// What a preset hands to [`PageFormat::new`].
struct Recipe {
    notation: String,
    extents: Vec<(&'static str, u64)>,
    types: Vec<(&'static str, ElementType)>,
}

/// Every preset, families together.
pub fn presets() -> &'static [Preset] {
    static ALL: LazyLock<Vec<Preset>> =
        LazyLock::new(|| [attention::PRESETS, quantised::PRESETS, latent::PRESETS, state::PRESETS].concat());
    &ALL
}

/// The page format that `name` and its parameters describe.
///
/// ```
/// use std::collections::BTreeMap;
/// use kvreshard::format::{Value, preset};
///
/// let parameters = [("h", Value::from(8)), ("n", 16.into()), ("d", 128.into()), ("dtype", "bf16".into())];
/// let format = preset("aiter-shuffle", &parameters.map(|(name, value)| (name.to_owned(), value)).into())?;
/// assert_eq!(format.notation(), "k[h d/8 n d%8] v[h n/8 d n%8]");
/// # Ok::<(), kvreshard::Error>(())
/// ```
///
/// # Errors
/// [`Error::Format`] naming the preset or the parameter when the name is unknown, a parameter is missing, unknown, of the wrong kind
/// or does not fit the others; and as [`PageFormat::new`].
pub fn preset(name: &str, parameters: &BTreeMap<String, Value>) -> Result<PageFormat> {
    find_preset(name)?.format(parameters)
}

/// The preset of that name.
///
/// # Errors
/// [`Error::Format`] naming those that are known.
pub fn find_preset(name: &str) -> Result<&'static Preset> {
    presets().iter().find(|known| known.name == name).ok_or_else(|| {
        let known: Vec<_> = presets().iter().map(|known| known.name).collect();
        Error::format(format!("preset {name:?}"), format!("is not known; known are {}", known.join(", ")))
    })
}

impl Preset {
    /// The page format of this preset with the given parameters.
    ///
    /// # Errors
    /// As [`preset`].
    pub fn format(&self, parameters: &BTreeMap<String, Value>) -> Result<PageFormat> {
        let recipe = (self.recipe)(&Arguments::new(self, parameters)?)?;
        let extents = recipe.extents.into_iter().map(|(axis, extent)| (axis.to_owned(), extent)).collect();
        PageFormat::new(&recipe.notation, &extents, &Types::each(recipe.types))
    }
}
