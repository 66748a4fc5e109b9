//! A plan turned into what NIXL is handed: prepared rows with ids, or exact lists.
//!
//! * [`Prepared`]: rows that stand for every page once and for all; a request only names ids.
//! * [`Tiles`]: what kernels move between pages and a buffer, where direct runs would be too short; [`Moves`]: at which pages;
//!   [`Table`]: the same for a device.
//! * [`Pairing`]: which page goes with which for one request; makes ids, exact lists, and the bytes to clear.

mod descriptor;
mod ids;
mod joiner;
mod landing;
mod lists;
mod moves;
mod order;
mod orders;
mod pairing;
mod reads;
mod rows;
mod side;
mod stretches;
mod table;
mod tiles;
mod zero;

pub use descriptor::Descriptor;
pub use landing::{Landed, LandedChunk, LandedCount, LandedSpan, Landing, ScatterPart};
pub use moves::{Moves, Part};
pub use pairing::Pairing;
pub use rows::{Prepared, Row};
pub use table::{Batch, Table};
pub use tiles::{Chunk, ChunkPart, Tile, TileLane, TileLoop, Tiles};
