//! A peer that does not say how its pages are built.
//!
//! Unknown is not equal. Such a peer is taken as standard only where nothing but standard pages could have been meant: every page of
//! this rank is packed head-major or token-major, as the layout's name says, or rows of a latent cache, of 16-bit elements. Even
//! then a stock peer may shuffle its pages under the same backend name, and nothing in its handshake would show it; so there is a
//! warning, once a peer.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::format::{Component, PageFormat};
use crate::layout::{Group, GroupKind, Layer, Position, RankLayout, RankParts, Region, Segment, Shares, TOKEN_AXIS};
use crate::name::Name;

use super::report::{Report, Severity};
use super::stock::{StockHandshake, StockRegion};
use super::{Options, check};

/// What may be assumed of a peer without formats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Untagged {
    /// That its pages are standard, if all of this rank's are.
    #[default]
    IfStandard,
    /// That its pages are standard, whatever this rank's are: the caller knows it.
    AssumeStandard,
    /// Nothing.
    Refuse,
}

impl FromStr for Untagged {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "if-standard" => Ok(Self::IfStandard),
            "assume-standard" => Ok(Self::AssumeStandard),
            "refuse" => Ok(Self::Refuse),
            other => Err(Error::layout(None, "untagged", other, "if-standard, assume-standard or refuse")),
        }
    }
}

/// A peer's handshake, and where the peer stands, which the handshake does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UntaggedPeer {
    /// What it sent.
    pub handshake: StockHandshake,
    /// Its place in its engine.
    pub position: Position,
}

impl UntaggedPeer {
    /// The layout that the peer has if its pages are standard; layers, head sizes, totals, types and groups are taken to be those
    /// of `local`, since peers of one model agree about them.
    ///
    /// # Errors
    /// [`Error::Untagged`] naming a layer and what to set, when `policy` does not allow the assumption; [`Error::Layout`] when the
    /// handshake contradicts it; and whatever [`RankLayout::new`] refuses.
    pub fn assume(&self, local: &RankLayout, policy: Untagged) -> Result<RankLayout> {
        if let Some(first) = objections(local, policy).into_iter().next() {
            return Err(first);
        }
        self.standard_layout(local)
    }

    fn standard_layout(&self, local: &RankLayout) -> Result<RankLayout> {
        let handshake = &self.handshake;
        let context = self.position.cp.place().size();
        if handshake.dcp_size() != context {
            let expected = format!("{}, as its handshake says", handshake.dcp_size());
            return Err(Error::layout(None, "context-parallel size of the peer", context, expected));
        }
        let order = Order::of(handshake.layout_name());
        let found = handshake.layer_regions()?;
        let mut parts = RankParts {
            engine: handshake.engine().to_owned(),
            generation: 0,
            position: self.position,
            regions: Vec::with_capacity(found.len()),
            groups: Vec::new(),
            layers: Vec::new(),
        };
        for group in local.groups() {
            parts.groups.push(Group::new(
                group.kind(),
                handshake.pages_per_block(),
                group.tokens_per_state(),
                group.window(),
            )?);
        }
        let mut numbered = BTreeMap::new();
        for (layer, region) in pair_layers(local, &found)? {
            let format = standard(layer, handshake.block_size(), order, self.position)?;
            check_bytes(layer, &format, &region)?;
            let next = parts.regions.len();
            let at = *numbered.entry(region.at).or_insert(next);
            if at == next {
                parts.regions.push(Region::new(region.base, region.bytes, handshake.device()?, region.memory)?);
            }
            let segment = Segment::new(at, format, region.offset, region.pages, region.stride, Shares::default())?;
            parts.layers.push(Layer::new(layer.name(), vec![segment], layer.group(), layer.totals().iter().cloned())?);
        }
        RankLayout::new(parts)
    }
}

/// Compares this rank with a peer that sent no formats; see [`check`].
pub fn check_untagged(local: &RankLayout, peer: &UntaggedPeer, policy: Untagged, options: &Options) -> Report {
    let mut report = Report::default();
    for objection in objections(local, policy) {
        report.add(Severity::Error, objection);
    }
    if report.is_accepted() {
        match peer.standard_layout(local) {
            Ok(assumed) => {
                report = check(local, &assumed, options);
                report.add(Severity::Warning, warning(local, peer));
                return report;
            }
            Err(error) => report.add(Severity::Error, error),
        }
    }
    super::strategy::judge(super::strategy::DirectRuns::default(), options, &mut report);
    report
}

const REMEDY: &str =
    "have the peer send its page formats, or say assume_untagged=\"standard\" if you know that it packs its pages";

/// Why nothing may be assumed of a peer, a reason a layer.
fn objections(local: &RankLayout, policy: Untagged) -> Vec<Error> {
    let untagged = |layer: &Layer, problem: &str, remedy: &str| Error::Untagged {
        layer: Some(layer.name().to_owned()),
        local: layer.segments().first().map_or_else(String::new, |s| s.format().notation().to_owned()),
        problem: problem.to_owned(),
        remedy: remedy.to_owned(),
    };
    match policy {
        Untagged::AssumeStandard => Vec::new(),
        Untagged::Refuse => local
            .layers()
            .iter()
            .take(1)
            .map(|layer| untagged(layer, "untagged peers are refused here", "have the peer send its page formats"))
            .collect(),
        Untagged::IfStandard => {
            let odd = local.layers().iter().filter(|layer| !is_standard(local, layer));
            let problem =
                "pages are taken for equal unseen only where this side packs 16-bit K and V (HND, NHD) or MLA rows";
            odd.map(|layer| untagged(layer, problem, REMEDY)).collect()
        }
    }
}

fn warning(local: &RankLayout, peer: &UntaggedPeer) -> Error {
    let first = local.layers().first();
    let local = first
        .and_then(|layer| layer.segments().first())
        .map_or_else(String::new, |segment| segment.format().notation().to_owned());
    let (handshake, engine) = (&peer.handshake, peer.handshake.engine());
    Error::Untagged {
        layer: None,
        local,
        problem: format!(
            "engine {engine:?} reports backend {} and layout {} alone, so its pages are taken as packed; a peer that shuffles them \
             under the same name would not be noticed",
            handshake.backend(),
            handshake.layout_name()
        ),
        remedy: "have the peer send its page formats, or say untagged=\"refuse\"".to_owned(),
    }
}

/// The order of heads and tokens that a layout's name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Heads,
    Tokens,
    /// Heads in planes, or a name that is not known.
    Other,
}

impl Order {
    fn of(name: &str) -> Self {
        match name {
            "LBHNC" | "BLHNC" | "HND" => Self::Heads,
            "LBNHC" | "BLNHC" | "NHD" => Self::Tokens,
            _ => Self::Other,
        }
    }
}

/// Whether a layer's pages are what a page is without anything said: packed K and V, or latent rows, of 16-bit elements.
fn is_standard(local: &RankLayout, layer: &Layer) -> bool {
    let [segment] = layer.segments() else { return false };
    let format = segment.format();
    if format.components().iter().any(|component| component.dtype().bytes() != 2) {
        return false;
    }
    let states = local.states_per_page(layer.group());
    [Order::Heads, Order::Tokens]
        .into_iter()
        .any(|order| standard(layer, states, order, local.position()).is_ok_and(|packed| packed.same_bytes_as(format)))
}

/// The standard page of `layer` on a rank at `position`, of `states` states.
fn standard(layer: &Layer, states: u64, order: Order, position: Position) -> Result<PageFormat> {
    let refused = |found: String, expected: &str| Error::layout(Some(layer.name()), "standard page", found, expected);
    let [segment] = layer.segments() else {
        return Err(refused(format!("{} segments", layer.segments().len()), "one segment: a standard page is whole"));
    };
    let format = segment.format();
    let sharded = layer.totals().first().map(|(axis, _)| axis.clone());
    let head = sharded.clone().or_else(|| Name::new("h").ok());
    let content = |component: &Component| {
        let mut axes =
            component.axes().map(|(axis, _)| axis).filter(|a| a.as_ref() != TOKEN_AXIS && Some(*a) != head.as_ref());
        let axis = axes.next().filter(|axis| !axis.is_anonymous()).cloned();
        if axes.next().is_some() { None } else { axis }
    };
    let (notation, axes) = match (format.component("k"), format.component("v"), format.components()) {
        (Some(k), Some(v), [_, _]) => {
            let (Some(kd), Some(vd)) = (content(k), content(v)) else {
                let expected = "K and V with one content axis each";
                return Err(refused(format!("`{}`", format.notation()), expected));
            };
            let loops = match (order, &head) {
                (Order::Heads, Some(head)) => format!("{head} {TOKEN_AXIS}"),
                (Order::Tokens, Some(head)) => format!("{TOKEN_AXIS} {head}"),
                _ => {
                    return Err(refused(
                        "a layout name without heads and tokens in a page".to_owned(),
                        "LBHNC, BLHNC, LBNHC or BLNHC",
                    ));
                }
            };
            (format!("{loops} k[{kd}] v[{vd}]"), vec![(kd, k), (vd, v)])
        }
        (_, _, [row]) if sharded.is_none() => {
            let Some(axis) = content(row) else {
                return Err(refused(format!("`{}`", format.notation()), "one row of one axis a token"));
            };
            (format!("{}[{TOKEN_AXIS} {axis}]", row.name()), vec![(axis, row)])
        }
        _ => return Err(refused(format!("`{}`", format.notation()), "components k and v, or the one of MLA rows")),
    };
    let mut extents: BTreeMap<String, u64> = BTreeMap::from([(TOKEN_AXIS.to_owned(), states)]);
    for (axis, component) in axes {
        extents.insert(axis.to_string(), component.extent(axis.as_ref()).unwrap_or(1));
    }
    if let Some(head) = head.filter(|_| format.components().len() == 2) {
        let held = match layer.total(&head) {
            Some(total) => position.tp.share(total)?.len(),
            None => format.components().iter().find_map(|c| c.extent(head.as_ref())).unwrap_or(1),
        };
        extents.insert(head.to_string(), held);
    }
    PageFormat::new(&notation, &extents, &format.types())
}

/// The peer's regions with the layers that they hold: by name where the peer names them, else in the natural order of names, which
/// is the order in which stock peers list their regions.
fn pair_layers<'a, 'b>(local: &'a RankLayout, found: &[StockRegion<'b>]) -> Result<Vec<(&'a Layer, StockRegion<'b>)>> {
    let tokens = |layer: &&Layer| local.groups().get(layer.group()).is_some_and(|g| g.kind() == GroupKind::Tokens);
    if let Some(state) = local.layers().iter().find(|layer| !tokens(layer)) {
        let expected = "layers of tokens: a state's parts cannot be assumed";
        return Err(Error::layout(Some(state.name()), "group kind", GroupKind::State, expected));
    }
    if found.iter().all(|region| region.name.is_some()) && !found.is_empty() {
        let by_name = found.iter().filter_map(|region| Some((local.layer(region.name?)?, region.clone())));
        return Ok(by_name.collect());
    }
    if found.len() != local.layers().len() {
        let expected = format!("{}, one a layer, since the peer does not name them", local.layers().len());
        return Err(Error::layout(None, "regions of the peer", found.len(), expected));
    }
    let mut layers: Vec<&Layer> = local.layers().iter().collect();
    layers.sort_by_cached_key(|layer| natural(layer.name()));
    Ok(layers.into_iter().zip(found.iter().cloned()).collect())
}

/// A name with its numbers as numbers, so that layer 10 comes after layer 2.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let start = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at_checked(start).unwrap_or((rest, ""));
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (digits, after) = tail.split_at_checked(end).unwrap_or((tail, ""));
        key.push((text.to_owned(), digits.parse().unwrap_or(u64::MAX)));
        rest = after;
    }
    key
}

/// What the peer says of its pages' length must be what standard pages have.
fn check_bytes(layer: &Layer, format: &PageFormat, region: &StockRegion<'_>) -> Result<()> {
    if region.page_bytes == format.page_bytes() {
        return Ok(());
    }
    Err(Error::Incompatible {
        layer: Some(layer.name().to_owned()),
        field: "page bytes".to_owned(),
        local: format!("{} as standard pages {format}", format.page_bytes()),
        remote: format!("{} in the peer's handshake", region.page_bytes),
        remedy: Some(
            "the peer's pages are not standard, or its tensor-parallel size, block size or element type is another"
                .to_owned(),
        ),
    })
}
