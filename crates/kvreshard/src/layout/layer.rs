//! One model layer's cache on one rank.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::Component;
use crate::name::Name;
use crate::units::{Interval, wide};

use super::group::{Group, GroupKind};
use super::limits::{MAX_LAYER_NAME_BYTES, MAX_SEGMENTS_PER_LAYER, MAX_TOTALS, shown, within};
use super::rank::{Position, TOKEN_AXIS};
use super::region::Region;
use super::segment::Segment;

/// One model layer's cache on one rank: its segments, its group, and how many heads (or channels) there are in all along each
/// sharded axis. Peers match layers by name, never by index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    name: Arc<str>,
    segments: Vec<Segment>,
    group: usize,
    totals: Arc<[(Name, u64)]>,
}

/// The part of a component that a segment holds: an interval of its sharded axis, or all of a replicated component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    /// The sharded axis, `None` when every rank holds the whole component.
    pub(crate) axis: Option<Name>,
    /// The members held; `[0, 1)` of a replicated component.
    pub(crate) interval: Interval,
}

/// What every layer must keep to, whatever it is like.
fn bounded(name: &str, segments: &[Segment]) -> Result<()> {
    if segments.is_empty() {
        return Err(Error::layout(Some(name), "segments", 0, "at least 1"));
    }
    within("bytes of a layer name", name.len(), MAX_LAYER_NAME_BYTES)?;
    shown("character of a layer name", name)?;
    within("segments of one layer", segments.len(), MAX_SEGMENTS_PER_LAYER)
}

impl Layer {
    /// A layer of at least one segment. `totals` names every sharded axis with its total over all ranks; a layer without
    /// sharded axes (MLA) is replicated.
    ///
    /// # Errors
    /// [`Error::Layout`] when there is no segment, a total is zero, an axis is named twice, or the name has characters that do not
    /// print; [`Error::Limit`] when there is too
    /// much of anything.
    pub fn new(
        name: impl Into<Arc<str>>,
        segments: Vec<Segment>,
        group: usize,
        totals: impl IntoIterator<Item = (Name, u64)>,
    ) -> Result<Self> {
        let name = name.into();
        bounded(&name, &segments)?;
        let mut totals: Vec<(Name, u64)> = totals.into_iter().collect();
        within("sharded axes of one layer", totals.len(), MAX_TOTALS)?;
        totals.sort_by(|a, b| a.0.cmp(&b.0));
        for (index, (axis, total)) in totals.iter().enumerate() {
            if *total == 0 {
                return Err(Error::layout(Some(&name), format!("total of axis {axis}"), 0, "at least 1"));
            }
            if axis.as_ref() == TOKEN_AXIS {
                return Err(Error::layout(Some(&name), "totals", axis, "a sharded axis; n counts tokens"));
            }
            if totals.iter().skip(index).skip(1).any(|(other, _)| other == axis) {
                return Err(Error::layout(Some(&name), "totals", axis, "each axis once"));
            }
        }
        Ok(Self { name, segments, group, totals: totals.into() })
    }

    /// Another layer of this one's group and totals.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn like(&self, name: impl Into<Arc<str>>, segments: Vec<Segment>) -> Result<Self> {
        let name = name.into();
        bounded(&name, &segments)?;
        Ok(Self { name, segments, group: self.group, totals: Arc::clone(&self.totals) })
    }

    /// The name that peers match by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name, shared.
    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// The segments, in the order given.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The index of its group in the rank's list of groups.
    pub const fn group(&self) -> usize {
        self.group
    }

    /// Every sharded axis with its total over all ranks, sorted by axis.
    pub fn totals(&self) -> &[(Name, u64)] {
        &self.totals
    }

    /// The total of `axis`, if it is sharded.
    pub fn total(&self, axis: &Name) -> Option<u64> {
        self.totals.iter().find(|(name, _)| name == axis).map(|(_, total)| *total)
    }

    /// States (indices of axis `n`) in a page; 1 for a layer without tokens.
    pub fn states_per_page(&self) -> u64 {
        self.segments
            .first()
            .and_then(|segment| segment.format().components().iter().find_map(|c| c.extent(TOKEN_AXIS)))
            .unwrap_or(1)
    }

    /// What `segment` holds of `component`: its sharded axis is the one on the component's path, or an axis that the whole format
    /// lacks (a plane).
    pub(crate) fn held(&self, segment: &Segment, component: &Component) -> Option<Held> {
        let format = segment.format();
        let on_path = |axis: &Name| component.extent(axis.as_ref()).is_some();
        let plane = |axis: &Name| !format.components().iter().any(|c| c.extent(axis.as_ref()).is_some());
        let axis = self
            .totals
            .iter()
            .map(|(axis, _)| axis)
            .find(|axis| on_path(axis) || (plane(axis) && segment.shares().get(axis).is_some()));
        match axis {
            None => Some(Held { axis: None, interval: Interval::from_zero(1) }),
            Some(axis) => segment.shares().get(axis).map(|interval| Held { axis: Some(axis.clone()), interval }),
        }
    }

    /// Whether both are built alike, wherever they lie.
    pub(crate) fn same_kind(&self, other: &Self) -> bool {
        self.totals == other.totals
            && self.segments.len() == other.segments.len()
            && self
                .segments
                .iter()
                .zip(&other.segments)
                .all(|(a, b)| a.format().same_bytes_as(b.format()) && a.shares() == b.shares())
    }

    /// Fills missing shares by the tensor-parallel rule and checks everything that needs the rank's regions and groups. `checked` is
    /// a layer that passed: what is built alike need not be checked again.
    pub(super) fn settle(
        &mut self,
        regions: &[Region],
        groups: &[Group],
        position: &Position,
        checked: Option<&Self>,
    ) -> Result<()> {
        let name = Arc::clone(&self.name);
        let group = groups.get(self.group).ok_or_else(|| {
            Error::layout(Some(&name), "group", self.group, format!("an index below {}", wide(groups.len())))
        })?;
        for (axis, total) in self.totals.iter() {
            for segment in self.segments.iter_mut().filter(|segment| segment.shares().get(axis).is_none()) {
                let used = segment.format().components().iter().any(|c| c.extent(axis.as_ref()).is_some());
                if used {
                    segment.fill_share(axis, position.tp.share(*total)?);
                }
            }
        }
        for segment in &self.segments {
            let region = regions.get(segment.region()).ok_or_else(|| {
                Error::layout(Some(&name), "region", segment.region(), format!("an index below {}", regions.len()))
            })?;
            segment.check_inside(&name, region)?;
        }
        if checked.is_some_and(|checked| checked.group == self.group && checked.same_kind(self)) {
            return Ok(());
        }
        for segment in &self.segments {
            self.check_shares(segment, position)?;
            self.check_tokens(segment, group)?;
        }
        self.check_disjoint()
    }

    /// Heads held must agree with the heads in the page, or every offset after the first head is wrong.
    fn check_shares(&self, segment: &Segment, position: &Position) -> Result<()> {
        for (axis, interval) in segment.shares().iter() {
            let Some(total) = self.total(axis) else {
                let expected = "an axis that the layer's totals name";
                return Err(Error::layout(Some(&self.name), format!("share of axis {axis}"), interval, expected));
            };
            let extent = segment.format().components().iter().find_map(|c| c.extent(axis.as_ref())).unwrap_or(1);
            if interval.len() != extent || interval.end() > total {
                return Err(Error::layout(
                    Some(&self.name),
                    format!("axis {axis}"),
                    format!("{extent} held in a page"),
                    format!(
                        "{} held: the share {interval} of {total} in all at tensor-parallel rank {} of {}",
                        interval.len(),
                        position.tp.rank(),
                        position.tp.size()
                    ),
                ));
            }
        }
        for component in segment.format().components() {
            let sharded = self.totals.iter().filter(|(axis, _)| component.extent(axis.as_ref()).is_some()).count();
            if sharded > 1 {
                let found = format!("{sharded} sharded axes");
                return Err(Error::layout(
                    Some(&self.name),
                    format!("component {}", component.name()),
                    found,
                    "one at most",
                ));
            }
        }
        Ok(())
    }

    fn check_tokens(&self, segment: &Segment, group: &Group) -> Result<()> {
        let pages = self.states_per_page();
        for component in segment.format().components() {
            let extent = component.extent(TOKEN_AXIS);
            let expected = match group.kind() {
                GroupKind::Tokens if extent == Some(pages) => continue,
                GroupKind::State if extent.unwrap_or(1) == 1 => continue,
                GroupKind::Tokens if extent.is_none() => "an axis n, since its group counts tokens".to_owned(),
                GroupKind::Tokens => format!("{pages} states a page, as in the layer's first component"),
                GroupKind::State => "no axis n, since states move whole".to_owned(),
            };
            let found = extent.map_or_else(|| "no axis n".to_owned(), |extent| format!("n={extent}"));
            return Err(Error::layout(Some(&self.name), format!("component {}", component.name()), found, expected));
        }
        Ok(())
    }

    /// Two homes for one head would make it a matter of luck which one a peer reads.
    fn check_disjoint(&self) -> Result<()> {
        if self.segments.len() == 1 {
            return Ok(());
        }
        let mut held: Vec<(&Name, Held)> = Vec::new();
        for segment in &self.segments {
            for component in segment.format().components() {
                if let Some(part) = self.held(segment, component) {
                    held.push((component.name(), part));
                }
            }
        }
        held.sort_by(|a, b| (a.0, a.1.interval).cmp(&(b.0, b.1.interval)));
        for (one, next) in held.iter().zip(held.iter().skip(1)) {
            if one.0 == next.0 && one.1.interval.intersect(next.1.interval).is_some() {
                return Err(Error::layout(
                    Some(&self.name),
                    format!("component {}", one.0),
                    format!("{} and {} in two segments", one.1.interval, next.1.interval),
                    "each member in one segment",
                ));
            }
        }
        Ok(())
    }
}
