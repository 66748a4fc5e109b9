//! The formats of a host's regions, for a host whose own metadata already has the addresses.
//!
//! ```text
//! [ 1, { "place", "groups", "formats",                      as in a layout's message
//!        "kinds":     [[format, group, {axis: total}, {axis: [start, end]}], ..],
//!        "templates": ["model.layers.#.attn", ..],
//!        "regions":   [[name, kind] or nil, ..] } ]         one a region of the host, in the host's order
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::format::PageFormat;
use crate::layout::{
    Group, Layer, MAX_GROUPS, MAX_LAYER_NAME_BYTES, MAX_LAYERS, MAX_SEGMENTS, MemoryKind, Position, RankLayout,
    RankParts, Region, Segment, Shares, within,
};
use crate::name::Name;
use crate::units::{add, mul, wide};

use super::bounded::List;
use super::format::{
    Formats, MAX_FORMATS, WireFormat, WireGroup, WirePosition, WireShares, WireTotals, get, read_shares, read_totals,
    write_shares, write_totals,
};
use super::names::{Names, Template, Templates, WireName};
use super::{read, write};

/// What one region of a host holds: pages of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionTag {
    /// The name that peers match layers by. Regions of one name are the segments of one layer.
    pub layer: Arc<str>,
    /// How each page is built.
    pub format: PageFormat,
    /// Index of the layer's group.
    pub group: usize,
    /// Every sharded axis of the layer with its total over all ranks.
    pub totals: Vec<(Name, u64)>,
    /// The interval of each sharded axis that this region holds; an axis that is not named is shared by the tensor-parallel rule.
    pub shares: Shares,
}

/// Where a host says that a region is, as connectors exchange it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostRegion {
    /// The address of page 0.
    pub base: u64,
    /// Bytes of one page, which must be those of the tag.
    pub page_bytes: u64,
    /// Bytes from one page to the next.
    pub page_stride: u64,
    /// How many pages.
    pub pages: u64,
    /// NIXL's device id.
    pub device: u32,
    /// Host or device memory.
    pub memory: MemoryKind,
}

/// The tag of every region of a host, in the host's order; `None` where the host cannot say how a region's pages are built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionTags {
    /// Where the rank stands.
    pub position: Position,
    /// The groups that the tags refer to.
    pub groups: Vec<Group>,
    /// The tags.
    pub regions: Vec<Option<RegionTag>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Body {
    place: WirePosition,
    groups: List<WireGroup, MAX_GROUPS>,
    formats: List<WireFormat, MAX_FORMATS>,
    kinds: List<WireKind, MAX_SEGMENTS>,
    templates: List<Template, MAX_LAYERS>,
    regions: List<Option<(WireName, u64)>, MAX_SEGMENTS>,
}

/// The most bytes of layer names over all regions: what a layout of the most layers may have.
const MAX_ALL_NAMES: usize = MAX_LAYERS * MAX_LAYER_NAME_BYTES;

/// Format, group, totals, shares.
type WireKind = (u64, u64, WireTotals, WireShares);

impl RegionTags {
    /// The tags of a layout's segments, layer by layer.
    pub fn of(layout: &RankLayout) -> Self {
        let tag = |layer: &Layer, segment: &Segment| RegionTag {
            layer: Arc::from(layer.name()),
            format: segment.format().clone(),
            group: layer.group(),
            totals: layer.totals().to_vec(),
            shares: segment.shares().clone(),
        };
        let tags =
            layout.layers().iter().flat_map(|layer| layer.segments().iter().map(move |one| Some(tag(layer, one))));
        Self { position: layout.position(), groups: layout.groups().to_vec(), regions: tags.collect() }
    }

    /// The tags as a message for peers: one optional field of a host's own metadata.
    ///
    /// # Errors
    /// As [`RankLayout::to_bytes`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut formats = Formats::default();
        let mut templates = Templates::default();
        let mut kinds: Vec<WireKind> = Vec::new();
        let mut regions = Vec::with_capacity(self.regions.len());
        for tag in &self.regions {
            let Some(tag) = tag else {
                regions.push(None);
                continue;
            };
            let format = formats.index(&tag.format);
            let kind = (format, wide(tag.group), write_totals(&tag.totals), write_shares(&tag.shares));
            let at = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                kinds.push(kind);
                kinds.len().saturating_sub(1)
            });
            regions.push(Some((templates.shorten(&tag.layer), wide(at))));
        }
        write(&Body {
            place: WirePosition::of(self.position),
            groups: List(self.groups.iter().map(WireGroup::of).collect()),
            formats: List(formats.write()?),
            kinds: List(kinds),
            templates: templates.into_list(),
            regions: List(regions),
        })
    }

    /// Reads a message of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// As [`RankLayout::from_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let body: Body = read(bytes)?;
        let formats: Vec<PageFormat> = body.formats.0.iter().map(WireFormat::read).collect::<Result<_>>()?;
        let mut kinds = Vec::with_capacity(body.kinds.0.len());
        for (format, group, totals, shares) in &body.kinds.0 {
            let format = get(&formats, *format, "format", "kind")?;
            let group = usize::try_from(*group).map_err(|_| super::format::wrong("kind", "names no group"))?;
            kinds.push((format, group, read_totals(totals)?, read_shares(shares)?));
        }
        let mut regions = Vec::with_capacity(body.regions.0.len());
        let mut name_bytes = 0_usize;
        let mut names = Names::new(&body.templates.0);
        for region in body.regions.0 {
            let Some((name, kind)) = region else {
                regions.push(None);
                continue;
            };
            let layer = names.restore(&name)?;
            // A template makes a long name of a few bytes, and there may be many more regions than layers.
            name_bytes = name_bytes.saturating_add(layer.len());
            within("bytes of all layer names", name_bytes, MAX_ALL_NAMES)?;
            let (format, group, totals, shares) = get(&kinds, kind, "kind", layer)?;
            regions.push(Some(RegionTag {
                layer: layer.into(),
                format: (*format).clone(),
                group: *group,
                totals: totals.clone(),
                shares: shares.clone(),
            }));
        }
        Ok(Self {
            position: body.place.read()?,
            groups: body.groups.0.iter().map(WireGroup::read).collect::<Result<_>>()?,
            regions,
        })
    }

    /// The layout that these tags and the host's addresses make. Regions without a tag are left out: what no tag describes is
    /// not planned for.
    ///
    /// # Errors
    /// [`Error::Layout`] when the tags are not as many as the regions, or a region's pages are not as long as its tag says; and
    /// whatever [`RankLayout::new`] refuses.
    pub fn join(&self, engine: &str, generation: u64, addresses: &[HostRegion]) -> Result<RankLayout> {
        if addresses.len() != self.regions.len() {
            let expected = format!("{}, one a tag", self.regions.len());
            return Err(Error::layout(None, "regions of the host", addresses.len(), expected));
        }
        let mut regions = Vec::new();
        let mut named: Vec<(&RegionTag, Vec<Segment>)> = Vec::new();
        let mut by_name = std::collections::HashMap::new();
        for (tag, at) in self.regions.iter().zip(addresses) {
            let Some(tag) = tag else { continue };
            let page = tag.format.page_bytes();
            if at.page_bytes != page {
                let expected = format!("{page}, as of `{}`", tag.format.notation());
                return Err(Error::layout(Some(&tag.layer), "page bytes of the host", at.page_bytes, expected));
            }
            let term = "(pages - 1) * page_stride + page bytes";
            let bytes = add(mul(at.pages.saturating_sub(1), at.page_stride, term)?, page, term)?;
            let segment =
                Segment::new(regions.len(), tag.format.clone(), 0, at.pages, at.page_stride, tag.shares.clone())?;
            regions.push(Region::new(at.base, bytes, at.device, at.memory)?);
            let slot = *by_name.entry(Arc::clone(&tag.layer)).or_insert(named.len());
            match named.get_mut(slot) {
                None => named.push((tag, vec![segment])),
                Some((first, segments)) => {
                    if (first.group, &first.totals) != (tag.group, &tag.totals) {
                        let expected = "one group and one total of each axis in all regions of a layer";
                        return Err(Error::layout(Some(&tag.layer), "tags", "contradicting regions", expected));
                    }
                    segments.push(segment);
                }
            }
        }
        let mut layers = Vec::with_capacity(named.len());
        for (tag, segments) in named {
            layers.push(Layer::new(Arc::clone(&tag.layer), segments, tag.group, tag.totals.iter().cloned())?);
        }
        RankLayout::new(RankParts {
            engine: engine.to_owned(),
            generation,
            position: self.position,
            regions,
            groups: self.groups.clone(),
            layers,
        })
    }
}
