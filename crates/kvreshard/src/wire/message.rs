//! The message's fields, and their way from and to a layout.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::format::{ElementType, PageFormat, Types};
use crate::layout::{
    Group, GroupKind, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares, TokensPerState,
};
use crate::name::Name;
use crate::shard::{ContextParallel, Place};
use crate::units::{Interval, wide};

use super::names::{Templates, WireName, restore};

/// Everything after the version.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Body {
    engine: String,
    generation: u64,
    tp: (u64, u64),
    pp: (u64, u64),
    cp: (u64, u64, u64),
    regions: Vec<(u64, u64, u32, String)>,
    groups: Vec<WireGroup>,
    formats: Vec<WireFormat>,
    kinds: Vec<WireKind>,
    templates: Vec<String>,
    layers: Vec<WireLayer>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WireGroup {
    kind: String,
    pages_per_block: u64,
    tokens_per_state: (u64, u64),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WireFormat {
    notation: String,
    extents: BTreeMap<String, u64>,
    types: BTreeMap<String, String>,
    /// First bytes of the fingerprint: a reader that understands the notation otherwise must not go on.
    #[serde(with = "bytes")]
    fingerprint: Vec<u8>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct WireKind {
    group: u64,
    totals: BTreeMap<String, u64>,
    segments: Vec<WireSegment>,
}

/// Format, pages, page stride, shares.
type WireSegment = (u64, u64, u64, BTreeMap<String, (u64, u64)>);

/// Name, kind, and region and offset of each segment.
type WireLayer = (WireName, u64, Vec<(u64, u64)>);

/// How much of a fingerprint is sent.
const FINGERPRINT_BYTES: usize = 16;

impl Body {
    pub(super) fn of(layout: &RankLayout) -> Result<Self> {
        let position = layout.position();
        let mut formats: Vec<&PageFormat> = Vec::new();
        let mut kinds: Vec<WireKind> = Vec::new();
        let mut templates = Templates::default();
        let mut layers = Vec::with_capacity(layout.layers().len());
        for layer in layout.layers() {
            let mut segments = Vec::with_capacity(layer.segments().len());
            for segment in layer.segments() {
                let known = formats
                    .iter()
                    .position(|known| known.notation() == segment.format().notation() && *known == segment.format());
                let format = known.unwrap_or_else(|| {
                    formats.push(segment.format());
                    formats.len().saturating_sub(1)
                });
                let shares =
                    segment.shares().iter().map(|(axis, share)| (axis.to_string(), (share.start(), share.end())));
                segments.push((wide(format), segment.pages(), segment.page_stride(), shares.collect()));
            }
            let kind = WireKind {
                group: wide(layer.group()),
                totals: layer.totals().iter().map(|(axis, total)| (axis.to_string(), *total)).collect(),
                segments,
            };
            let at = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                kinds.push(kind);
                kinds.len().saturating_sub(1)
            });
            let places = layer.segments().iter().map(|segment| (wide(segment.region()), segment.offset())).collect();
            layers.push((templates.shorten(layer.name()), wide(at), places));
        }
        let region =
            |region: &Region| (region.base(), region.bytes(), region.device(), region.memory().name().to_owned());
        let cp = position.cp;
        Ok(Self {
            engine: layout.engine().to_owned(),
            generation: layout.generation(),
            tp: (position.tp.rank(), position.tp.size()),
            pp: (position.pp.rank(), position.pp.size()),
            cp: (cp.place().rank(), cp.place().size(), cp.interleave()),
            regions: layout.regions().iter().map(region).collect(),
            groups: layout.groups().iter().map(WireGroup::of).collect(),
            formats: formats.into_iter().map(WireFormat::of).collect(),
            kinds,
            templates: templates.into_texts(),
            layers,
        })
    }

    pub(super) fn into_layout(self) -> Result<RankLayout> {
        let regions = self
            .regions
            .iter()
            .map(|(base, bytes, device, memory)| Region::new(*base, *bytes, *device, memory.parse::<MemoryKind>()?));
        let formats: Vec<PageFormat> = self.formats.iter().map(WireFormat::read).collect::<Result<_>>()?;
        let kinds: Vec<Kind> = self.kinds.iter().map(|kind| Kind::read(kind, &formats)).collect::<Result<_>>()?;
        let mut layers = Vec::new();
        for (name, kind, places) in self.layers {
            let name = restore(name, &self.templates)?;
            let kind = get(&kinds, kind, "kind", &name)?;
            if kind.segments.len() != places.len() {
                return Err(wrong(&name, "has another count of segments than its kind"));
            }
            let mut segments = Vec::with_capacity(places.len());
            for ((region, offset), (format, pages, stride, shares)) in places.iter().zip(&kind.segments) {
                let region =
                    usize::try_from(*region).map_err(|_| wrong(&name, "names a region that is not in the message"))?;
                segments.push(Segment::new(region, format.clone(), *offset, *pages, *stride, shares.clone())?);
            }
            layers.push(Layer::new(name, segments, kind.group, kind.totals.iter().cloned())?);
        }
        let (cp_rank, cp_size, interleave) = self.cp;
        RankLayout::new(RankParts {
            engine: self.engine,
            generation: self.generation,
            position: Position {
                tp: Place::new(self.tp.0, self.tp.1)?,
                pp: Place::new(self.pp.0, self.pp.1)?,
                cp: ContextParallel::new(Place::new(cp_rank, cp_size)?, interleave)?,
            },
            regions: regions.collect::<Result<_>>()?,
            groups: self.groups.iter().map(WireGroup::read).collect::<Result<_>>()?,
            layers,
        })
    }
}

/// A kind with its formats and names looked up.
struct Kind {
    group: usize,
    totals: Vec<(Name, u64)>,
    segments: Vec<(PageFormat, u64, u64, Shares)>,
}

impl Kind {
    fn read(wire: &WireKind, formats: &[PageFormat]) -> Result<Self> {
        let mut totals = Vec::new();
        for (axis, total) in &wire.totals {
            totals.push((Name::new(axis)?, *total));
        }
        let mut segments = Vec::new();
        for (format, pages, stride, shares) in &wire.segments {
            let mut held = Vec::new();
            for (axis, (start, end)) in shares {
                let share = Interval::new(*start, *end).ok_or_else(|| wrong(axis, "share ends before it starts"))?;
                held.push((Name::new(axis)?, share));
            }
            segments.push((get(formats, *format, "format", "kind")?.clone(), *pages, *stride, Shares::new(held)));
        }
        let group =
            usize::try_from(wire.group).map_err(|_| wrong("kind", "names a group that is not in the message"))?;
        Ok(Self { group, totals, segments })
    }
}

impl WireGroup {
    fn of(group: &Group) -> Self {
        let states = group.tokens_per_state();
        Self {
            kind: group.kind().name().to_owned(),
            pages_per_block: group.pages_per_block(),
            tokens_per_state: (states.tokens(), states.states()),
            window: group.window(),
        }
    }

    fn read(&self) -> Result<Group> {
        let states = TokensPerState::new(self.tokens_per_state.0, self.tokens_per_state.1)?;
        Group::new(self.kind.parse::<GroupKind>()?, self.pages_per_block, states, self.window)
    }
}

impl WireFormat {
    fn of(format: &PageFormat) -> Self {
        let types = format.components().iter().map(|c| (c.name().to_string(), c.dtype().name().to_owned()));
        Self {
            notation: format.notation().to_owned(),
            extents: format.extents().iter().map(|(axis, extent)| (axis.to_string(), *extent)).collect(),
            types: types.collect(),
            fingerprint: format.fingerprint().as_bytes().iter().copied().take(FINGERPRINT_BYTES).collect(),
        }
    }

    fn read(&self) -> Result<PageFormat> {
        let mut types = Vec::new();
        for (component, dtype) in &self.types {
            types.push((component.clone(), dtype.parse::<ElementType>()?));
        }
        let format = PageFormat::new(&self.notation, &self.extents, &Types::each(types))?;
        if self.fingerprint.len() < FINGERPRINT_BYTES || !format.fingerprint().as_bytes().starts_with(&self.fingerprint)
        {
            return Err(wrong("format", "the peer reads its notation otherwise: the fingerprints differ"));
        }
        Ok(format)
    }
}

fn get<'a, T>(list: &'a [T], at: u64, what: &str, of: &str) -> Result<&'a T> {
    usize::try_from(at)
        .ok()
        .and_then(|at| list.get(at))
        .ok_or_else(|| wrong(of, &format!("names a {what} that is not in the message")))
}

fn wrong(at: &str, problem: &str) -> Error {
    Error::Wire { at: at.chars().take(200).collect(), problem: problem.to_owned() }
}

/// A msgpack bin instead of an array of numbers.
mod bytes {
    use serde::{Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct Bin;
        impl de::Visitor<'_> for Bin {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("binary")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Self::Value, E> {
                Ok(bytes)
            }
        }
        from.deserialize_byte_buf(Bin)
    }
}
