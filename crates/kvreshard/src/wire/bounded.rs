//! Lists, maps and texts that stop being read where their bound is, so that a few bytes of a message never become much memory.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

use crate::error::{hidden, shows};

/// At most `MAX` elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List<T, const MAX: usize>(pub(crate) Vec<T>);

/// The same for lists that mostly have one element, which is then kept without an allocation of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Few<T, const MAX: usize> {
    /// One element.
    One([T; 1]),
    /// Any other number of them.
    Many(Vec<T>),
}

/// At most `MAX` entries, each key once. Keys are names of at most 1,024 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Map<V, const MAX: usize>(pub(crate) BTreeMap<String, V>);

/// At most `MAX` bytes of UTF-8 that a person sees all of; white space that separates words too where it is `SPACED`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text<const MAX: usize, const SPACED: bool = false>(pub(crate) String);

/// At most `MAX` bytes, as a msgpack bin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bytes<const MAX: usize>(pub(crate) Vec<u8>);

/// The most bytes that are allocated for a list before its elements are seen.
const PREALLOCATED: usize = 8_192;

/// The longest key of a map that is read: a layer name.
const MAX_KEY: usize = 1_024;

fn over<E: de::Error>(what: &str, limit: usize) -> E {
    E::custom(format_args!("more than {limit} {what}"))
}

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V, const MAX: usize> Default for Map<V, MAX> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Serialize, const MAX: usize> Serialize for List<T, MAX> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Reader<T, MAX> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of at most {MAX} elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, from: A) -> Result<Vec<T>, A::Error> {
                elements::<T, A, MAX>(from, None)
            }
        }
        from.deserialize_seq(Reader::<T, MAX>(PhantomData)).map(Self)
    }
}

/// The elements of an array, after a `first` one that was read already.
fn elements<'de, T, A, const MAX: usize>(mut from: A, first: Option<T>) -> Result<Vec<T>, A::Error>
where
    T: Deserialize<'de>,
    A: SeqAccess<'de>,
{
    // The claimed length is believed up to a few pages of memory; beyond them the list grows as elements arrive.
    let room = PREALLOCATED.checked_div(size_of::<T>()).unwrap_or_default();
    let mut list = Vec::with_capacity(from.size_hint().unwrap_or_default().saturating_add(1).min(room));
    let mut next = first;
    while let Some(element) = next.take().map_or_else(|| from.next_element(), |first| Ok(Some(first)))? {
        if list.len() == MAX {
            return Err(over("elements in an array", MAX));
        }
        list.push(element);
    }
    Ok(list)
}

impl<T, const MAX: usize> Few<T, MAX> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(list) => list,
        }
    }
}

impl<T, const MAX: usize> FromIterator<T> for Few<T, MAX> {
    fn from_iter<I: IntoIterator<Item = T>>(from: I) -> Self {
        Self::Many(from.into_iter().collect())
    }
}

impl<T: Serialize, const MAX: usize> Serialize for Few<T, MAX> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_slice().serialize(to)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Reader<T, MAX> {
            type Value = Few<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of at most {MAX} elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Few<T, MAX>, A::Error> {
                match (from.size_hint(), from.next_element()?) {
                    (Some(1), Some(one)) => Ok(Few::One([one])),
                    (_, first) => elements::<T, A, MAX>(from, first).map(Few::Many),
                }
            }
        }
        from.deserialize_seq(Reader::<T, MAX>(PhantomData))
    }
}

impl<V: Serialize, const MAX: usize> Serialize for Map<V, MAX> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de, V: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Map<V, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<V, const MAX: usize>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>, const MAX: usize> Visitor<'de> for Reader<V, MAX> {
            type Value = BTreeMap<String, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a map of at most {MAX} entries")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some((Text(key), value)) = from.next_entry::<Text<MAX_KEY>, V>()? {
                    if map.len() == MAX {
                        return Err(over("entries in a map", MAX));
                    }
                    if map.insert(key, value).is_some() {
                        return Err(de::Error::custom("a key of a map is given twice"));
                    }
                }
                Ok(map)
            }
        }
        from.deserialize_map(Reader::<V, MAX>(PhantomData)).map(Self)
    }
}

impl<const MAX: usize, const SPACED: bool> Serialize for Text<MAX, SPACED> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de, const MAX: usize, const SPACED: bool> Deserialize<'de> for Text<MAX, SPACED> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<const MAX: usize, const SPACED: bool>;
        impl<const MAX: usize, const SPACED: bool> Visitor<'_> for Reader<MAX, SPACED> {
            type Value = String;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a text of at most {MAX} bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
                if text.len() > MAX {
                    return Err(over("bytes in a text", MAX));
                }
                let hides = |c: &char| !(shows(*c) || SPACED && c.is_ascii_whitespace());
                match hidden(text).and_then(|_| text.chars().find(hides)) {
                    Some(c) => Err(E::custom(format_args!("character {} in a text", c.escape_unicode()))),
                    None => Ok(text.to_owned()),
                }
            }
        }
        from.deserialize_str(Reader::<MAX, SPACED>).map(Self)
    }
}

impl<const MAX: usize> Serialize for Bytes<MAX> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for Bytes<MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<const MAX: usize>;
        impl<const MAX: usize> Visitor<'_> for Reader<MAX> {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a bin of at most {MAX} bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                if bytes.len() > MAX { Err(over("bytes in a bin", MAX)) } else { Ok(bytes.to_vec()) }
            }
        }
        from.deserialize_bytes(Reader::<MAX>).map(Self)
    }
}
