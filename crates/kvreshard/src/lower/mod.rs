//! A plan turned into what NIXL is handed: prepared rows with ids, or exact lists.
//!
//! * [`Prepared`]: rows that stand for every page once and for all; a request only names ids.
//! * [`Pairing`]: which page goes with which for one request; makes ids, exact lists, and the bytes to clear.

mod lists;
mod pairing;
mod rows;
mod zero;

pub use lists::Descriptor;
pub use pairing::Pairing;
pub use rows::{Prepared, Row};
