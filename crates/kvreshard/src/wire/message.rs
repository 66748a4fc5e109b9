//! The fields of a whole layout's message, and their way from and to a layout.

use std::cell::OnceCell;
use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};
use crate::format::PageFormat;
use crate::layout::{
    Layer, MAX_ENGINE_BYTES, MAX_GROUPS, MAX_LAYERS, MAX_REGIONS, MAX_SEGMENTS_PER_LAYER, MemoryKind, RankLayout,
    RankParts, Region, Segment, Shares,
};
use crate::name::Name;
use crate::units::wide;

use super::bounded::{Few, List, Text};
use super::format::{
    Formats, MAX_FORMATS, MAX_WORD, WireFormat, WireGroup, WirePosition, WireShares, WireTotals, get, read_shares,
    read_totals, write_shares, write_totals, wrong,
};
use super::names::{Names, Template, Templates, WireName};

/// Everything after the version.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Body {
    engine: Text<MAX_ENGINE_BYTES>,
    generation: u64,
    place: WirePosition,
    regions: List<WireRegion, MAX_REGIONS>,
    groups: List<WireGroup, MAX_GROUPS>,
    formats: List<WireFormat, MAX_FORMATS>,
    kinds: List<WireKind, MAX_LAYERS>,
    templates: List<Template, MAX_LAYERS>,
    layers: List<WireLayer, MAX_LAYERS>,
}

/// Base, bytes, device, memory kind.
type WireRegion = (u64, u64, u32, WireMemory);

/// A memory kind by its name; what is no such name is the error to give.
#[derive(Debug)]
struct WireMemory(std::result::Result<MemoryKind, Box<Error>>);

impl Serialize for WireMemory {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(kind) => to.serialize_str(kind.name()),
            Err(error) => Err(serde::ser::Error::custom(error)),
        }
    }
}

impl<'de> Deserialize<'de> for WireMemory {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = WireMemory;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a memory kind")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<WireMemory, E> {
                if text.len() > MAX_WORD {
                    return Err(E::custom(format_args!("more than {MAX_WORD} bytes in a memory kind")));
                }
                Ok(WireMemory(text.parse().map_err(Box::new)))
            }
        }
        from.deserialize_str(Reader)
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct WireKind {
    group: u64,
    totals: WireTotals,
    segments: List<WireSegment, MAX_SEGMENTS_PER_LAYER>,
}

/// Format, pages, page stride, shares.
type WireSegment = (u64, u64, u64, WireShares);

/// Name, kind, and region and offset of each segment.
type WireLayer = (WireName, u64, Few<(u64, u64), MAX_SEGMENTS_PER_LAYER>);

impl Body {
    pub(super) fn of(layout: &RankLayout) -> Result<Self> {
        let mut formats = Formats::default();
        let mut kinds: Vec<WireKind> = Vec::new();
        let mut templates = Templates::default();
        let mut layers = Vec::with_capacity(layout.layers().len());
        for layer in layout.layers() {
            let segments = layer.segments().iter().map(|segment| {
                let format = formats.index(segment.format());
                (format, segment.pages(), segment.page_stride(), write_shares(segment.shares()))
            });
            let kind = WireKind {
                group: wide(layer.group()),
                segments: List(segments.collect()),
                totals: write_totals(layer.totals()),
            };
            let at = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                kinds.push(kind);
                kinds.len().saturating_sub(1)
            });
            let places = layer.segments().iter().map(|segment| (wide(segment.region()), segment.offset())).collect();
            layers.push((templates.shorten(layer.name()), wide(at), places));
        }
        let region =
            |region: &Region| (region.base(), region.bytes(), region.device(), WireMemory(Ok(region.memory())));
        Ok(Self {
            engine: Text(layout.engine().to_owned()),
            generation: layout.generation(),
            place: WirePosition::of(layout.position()),
            regions: List(layout.regions().iter().map(region).collect()),
            groups: List(layout.groups().iter().map(WireGroup::of).collect()),
            formats: List(formats.write()?),
            kinds: List(kinds),
            templates: templates.into_list(),
            layers: List(layers),
        })
    }

    pub(super) fn into_layout(self) -> Result<RankLayout> {
        let mut regions = Vec::with_capacity(self.regions.0.len());
        for (base, bytes, device, memory) in self.regions.0 {
            regions.push(Region::new(base, bytes, device, memory.0.map_err(|error| *error)?)?);
        }
        let formats: Vec<PageFormat> = self.formats.0.iter().map(WireFormat::read).collect::<Result<_>>()?;
        let kinds: Vec<Kind> = self.kinds.0.iter().map(|kind| Kind::read(kind, &formats)).collect::<Result<_>>()?;
        let mut layers = Vec::with_capacity(self.layers.0.len());
        let mut names = Names::new(&self.templates.0);
        for (name, kind, places) in &self.layers.0 {
            let places = places.as_slice();
            let name = names.restore(name)?;
            let kind = get(&kinds, *kind, "kind", name)?;
            if kind.segments.len() != places.len() {
                return Err(wrong(name, "has another count of segments than its kind"));
            }
            let mut segments = Vec::with_capacity(places.len());
            for ((region, offset), (format, pages, stride, shares)) in places.iter().zip(&kind.segments) {
                let region =
                    usize::try_from(*region).map_err(|_| wrong(name, "names a region that is not in the message"))?;
                segments.push(Segment::new(region, format.clone(), *offset, *pages, *stride, shares.clone())?);
            }
            let layer = match kind.sample.get() {
                Some(sample) => sample.like(name, segments)?,
                None => Layer::new(name, segments, kind.group, kind.totals.iter().cloned())?,
            };
            kind.sample.get_or_init(|| layer.clone());
            layers.push(layer);
        }
        RankLayout::new(RankParts {
            engine: self.engine.0,
            generation: self.generation,
            position: self.place.read()?,
            regions,
            groups: self.groups.0.iter().map(WireGroup::read).collect::<Result<_>>()?,
            layers,
        })
    }
}

/// A kind with its formats and names looked up.
struct Kind {
    group: usize,
    totals: Vec<(Name, u64)>,
    segments: Vec<(PageFormat, u64, u64, Shares)>,
    /// The first layer of this kind.
    sample: OnceCell<Layer>,
}

impl Kind {
    fn read(wire: &WireKind, formats: &[PageFormat]) -> Result<Self> {
        let mut segments = Vec::with_capacity(wire.segments.0.len());
        for (format, pages, stride, shares) in &wire.segments.0 {
            let format = get(formats, *format, "format", "kind")?.clone();
            segments.push((format, *pages, *stride, read_shares(shares)?));
        }
        let group =
            usize::try_from(wire.group).map_err(|_| wrong("kind", "names a group that is not in the message"))?;
        Ok(Self { group, totals: read_totals(&wire.totals)?, segments, sample: OnceCell::new() })
    }
}
