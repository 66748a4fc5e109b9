//! Exact NIXL descriptor plans for moving paged KV cache between engines that lay it out differently.
//!
//! A page format is a nest of loops ([`mod@format`]); a rank's memory is layers of strided page segments ([`layout`]); what one
//! engine needs from another is a route; what one rank sends another is a [`plan`].

pub mod check;
pub mod cost;
pub mod engine;
pub mod error;
mod explain;
pub mod format;
pub mod layout;
pub mod lower;
pub mod name;
pub mod picture;
pub mod plan;
pub mod request;
pub mod ring;
pub mod route;
pub mod shard;
mod units;
pub mod verify;
pub mod wire;

pub use error::{Error, Result, Side};
pub use units::Interval;
