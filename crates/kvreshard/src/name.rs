//! The names of components and axes.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::units::wide;

/// The most bytes a name may have.
pub const MAX_NAME_BYTES: usize = 64;

/// The name of a component or an axis: `[A-Za-z_][A-Za-z0-9_]*`, at most [`MAX_NAME_BYTES`] bytes. Cheap to clone.
///
/// [`Name::ANONYMOUS`] alone is empty: it stands for the axis that the bare numbers of a notation make.
/// Ordered, hashed and compared as its text, so a map keyed by names is looked up with a `&str`.
#[derive(Clone)]
pub struct Name(Option<Arc<str>>);

impl Name {
    /// The axis made of loops without a name.
    pub const ANONYMOUS: Self = Self(None);

    /// `text` as a name.
    ///
    /// # Errors
    /// [`Error::Format`] when `text` is not an identifier, [`Error::Limit`] when it is too long.
    pub fn new(text: &str) -> Result<Self> {
        if text.len() > MAX_NAME_BYTES {
            return Err(Error::limit("bytes of a name", wide(text.len()), wide(MAX_NAME_BYTES)));
        }
        let mut bytes = text.bytes();
        let starts = bytes.next().is_some_and(starts_name);
        if starts && bytes.all(continues_name) {
            Ok(Self(Some(Arc::from(text))))
        } else {
            Err(Error::format(format!("{text:?}"), "a name is a letter or `_`, then letters, digits or `_` (ASCII)"))
        }
    }

    /// The text; empty for [`Name::ANONYMOUS`].
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether this is the axis made of loops without a name.
    pub const fn is_anonymous(&self) -> bool {
        self.0.is_none()
    }
}

/// Whether a name may begin with `byte`.
pub(crate) const fn starts_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

/// Whether `byte` may stand inside a name.
pub(crate) const fn continues_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Name {}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
