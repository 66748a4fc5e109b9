//! A rank's memory: regions registered with NIXL, segments of pages in them, layers made of segments, groups of layers that
//! share block ids, and [`RankLayout`], which holds all that a peer must know.
//!
//! ```text
//! region   |----------------------------------------------------------------|   one registration
//! segment      |page 0    |.|page 1    |.|page 2    |.                          offset, page stride, pages, format
//!               <- page bytes ->
//!               <- page stride ->
//! ```

mod group;
mod layer;
mod limits;
mod rank;
mod region;
mod segment;

pub use group::{Group, GroupKind, TokensPerState};
pub(crate) use layer::Held;
pub use layer::Layer;
pub(crate) use limits::within;
pub use limits::{
    MAX_ENGINE_BYTES, MAX_GROUPS, MAX_LAYER_NAME_BYTES, MAX_LAYERS, MAX_PARTS, MAX_REGIONS, MAX_SEGMENTS,
    MAX_SEGMENTS_PER_LAYER, MAX_TOTALS,
};
pub(crate) use rank::TOKEN_AXIS;
pub use rank::{Position, RankLayout, RankParts};
pub use region::{MemoryKind, Region};
pub use segment::{Segment, Shares};
