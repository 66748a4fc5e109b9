//! Layouts for tests, in few words.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    missing_docs,
    unreachable_pub
)]

use std::collections::BTreeMap;

use kvreshard::format::{PageFormat, Types};
use kvreshard::layout::{Group, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares};
use kvreshard::name::Name;
use kvreshard::shard::{ContextParallel, Place};

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn format(notation: &str, extents: &[(&str, u64)], dtype: &str) -> PageFormat {
    let extents: BTreeMap<String, u64> = extents.iter().map(|(axis, extent)| ((*axis).to_owned(), *extent)).collect();
    PageFormat::new(notation, &extents, &Types::all(dtype.parse().unwrap())).unwrap()
}

pub fn position(tp: (u64, u64)) -> Position {
    Position { tp: Place::new(tp.0, tp.1).unwrap(), ..Position::ALONE }
}

pub fn context(cp: (u64, u64), interleave: u64) -> Position {
    let cp = ContextParallel::new(Place::new(cp.0, cp.1).unwrap(), interleave).unwrap();
    Position { cp, ..Position::ALONE }
}

/// A rank whose layers `layers.0 ..` each have one segment in a region of their own, `gap` bytes of padding between pages.
pub struct Rank {
    pub engine: &'static str,
    pub position: Position,
    pub notation: String,
    pub extents: Vec<(&'static str, u64)>,
    pub dtype: &'static str,
    pub heads: Option<u64>,
    pub layers: usize,
    pub pages: u64,
    pub gap: u64,
    pub base: u64,
}

impl Rank {
    pub fn new(
        engine: &'static str,
        tp: (u64, u64),
        notation: &str,
        heads: u64,
        extents: &[(&'static str, u64)],
    ) -> Self {
        Self {
            engine,
            position: position(tp),
            notation: notation.to_owned(),
            extents: extents.to_vec(),
            dtype: "bf16",
            heads: Some(heads),
            layers: 2,
            pages: 8,
            gap: 0,
            base: 1 << 20,
        }
    }

    pub fn build(&self) -> RankLayout {
        let mut extents = self.extents.clone();
        if let Some(heads) = self.heads {
            extents.push(("h", self.position.tp.share(heads).unwrap().len()));
        }
        let format = format(&self.notation, &extents, self.dtype);
        let stride = format.page_bytes() + self.gap;
        let bytes = stride * self.pages;
        let mut regions = Vec::new();
        let mut layers = Vec::new();
        for layer in 0..self.layers {
            let base = self.base + (bytes + 4096) * u64::try_from(layer).unwrap();
            regions.push(Region::new(base, bytes, 0, MemoryKind::Dram).unwrap());
            let segment = Segment::new(layer, format.clone(), 0, self.pages, stride, Shares::default()).unwrap();
            let totals = self.heads.map(|heads| (name("h"), heads));
            layers.push(Layer::new(format!("layers.{layer}"), vec![segment], 0, totals).unwrap());
        }
        RankLayout::new(RankParts {
            engine: self.engine.to_owned(),
            generation: 0,
            position: self.position,
            regions,
            groups: vec![Group::PLAIN],
            layers,
        })
        .unwrap()
    }
}
