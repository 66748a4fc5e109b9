//! Layer by layer: what differs, and what moving directly would take.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, Result, Side};
use crate::layout::{Group, GroupKind, Layer, RankLayout};
use crate::plan::build::{copies_of, group_disagreements};
use crate::plan::matching::{Match, disagreements, match_layers, notations};
use crate::plan::period::{Paging, Period};
use crate::plan::work::Work;
use crate::units::{add, div_ceil, mul};

use super::Options;
use super::report::{Report, Severity};
use super::strategy::{DirectRuns, LayerRuns};

/// What the planner makes of one kind of layer: runs and bytes of a period, and local pages in it.
type Counted = Result<(u64, u64, u64)>;

/// Compares every layer of both sides.
pub(super) fn compare(local: &RankLayout, remote: &RankLayout, options: &Options, report: &mut Report) -> DirectRuns {
    missing(local, remote, options, report);
    positions(local, remote, report);
    let mut kinds: Vec<(&Layer, &Layer, Counted)> = Vec::new();
    let mut direct = DirectRuns::default();
    let mut work = Work::default();
    let mut pairs = BTreeSet::new();
    for here in local.layers() {
        let Some(there) = remote.layer(here.name()) else { continue };
        let groups = (local.groups().get(here.group()), remote.groups().get(there.group()));
        let (Some(ours), Some(theirs)) = groups else { continue };
        let first = pairs.insert((here.group(), there.group()));
        let mut fits = true;
        for error in group_disagreements(here.name(), ours, theirs).into_iter().chain(disagreements(here, there)) {
            report.add(Severity::Error, error);
            fits = false;
        }
        if !fits {
            continue;
        }
        if first {
            group_notes((local, here, ours), (remote, there, theirs), report);
        }
        let known = kinds.iter().position(|(ours, theirs, _)| ours.same_kind(here) && theirs.same_kind(there));
        let counted = match known.and_then(|at| kinds.get(at)) {
            Some((_, _, counted)) => counted.clone(),
            None => {
                let counted = count(local, here, remote, there, ours, &mut work);
                kinds.push((here, there, counted.clone()));
                counted
            }
        };
        match counted {
            Err(error) => report.add(Severity::Error, of_layer(error, here, there)),
            Ok((0, ..)) => report.add(Severity::Note, nothing_in_common(here, there)),
            Ok((runs, bytes, pages)) => {
                let rearranged = rearranged(here, there);
                let runs_per_page = div_ceil(runs, pages, "runs of a page").unwrap_or(u64::MAX);
                if !rearranged.is_empty() {
                    report.add(Severity::Note, another_arrangement(here, there, &rearranged, runs_per_page));
                }
                direct.runs = direct.runs.saturating_add(runs);
                direct.bytes = direct.bytes.saturating_add(bytes);
                direct.layers.push(LayerRuns {
                    layer: here.name().to_owned(),
                    local: notations(here),
                    remote: notations(there),
                    runs_per_page,
                    rearranged,
                });
            }
        }
    }
    direct
}

/// Layers that the destination has and the source lacks, and the other way round.
fn missing(local: &RankLayout, remote: &RankLayout, options: &Options, report: &mut Report) {
    let (to, from, source) = match options.direction.destination() {
        Side::Local => (local, remote, Side::Remote),
        Side::Remote => (remote, local, Side::Local),
    };
    let lacking = |of: &RankLayout, side: Side, layer: &Layer| {
        of.layer(layer.name()).is_none().then(|| Error::Missing {
            layer: layer.name().to_owned(),
            side,
            missing: "the layer".to_owned(),
        })
    };
    // Ranks of a pipeline hold some layers each.
    let severity = |of: &RankLayout| if of.position().pp.size() == 1 { Severity::Error } else { Severity::Note };
    for layer in to.layers() {
        if let Some(error) = lacking(from, source, layer) {
            report.add(severity(from), error);
        }
    }
    let target = if source == Side::Local { Side::Remote } else { Side::Local };
    for layer in from.layers() {
        if let Some(error) = lacking(to, target, layer) {
            report.add(Severity::Note, error);
        }
    }
    if !to.layers().iter().any(|layer| from.layer(layer.name()).is_some()) {
        let names = |layout: &RankLayout| {
            let shown: Vec<_> = layout.layers().iter().take(3).map(Layer::name).collect();
            let more = if layout.layers().len() > shown.len() { ", ..." } else { "" };
            format!("{}{more}", shown.join(", "))
        };
        let remedy = "peers match layers by name: give both sides the model's names".to_owned();
        let error = Error::Incompatible {
            layer: None,
            field: "every layer name".to_owned(),
            local: names(local),
            remote: names(remote),
            remedy: Some(remedy),
        };
        report.add(if from.position().pp.size() == 1 { Severity::Error } else { Severity::Warning }, error);
    }
}

/// Notes about the two ranks' places.
fn positions(local: &RankLayout, remote: &RankLayout, report: &mut Report) {
    let (ours, theirs) = (local.position().cp, remote.position().cp);
    if ours.place().size() != theirs.place().size() || ours.interleave() != theirs.interleave() {
        let text = |cp: crate::shard::ContextParallel| match cp.place().size() {
            1 => "every token".to_owned(),
            size => format!("{} tokens of {size} ranks in turn", cp.interleave()),
        };
        report.add(Severity::Note, differs(None, "context-parallel dealing", text(ours), text(theirs), LINED_UP));
    }
}

const LINED_UP: &str = "tokens are lined up by their place in the sequence";

/// Notes about two groups that stand for the same tokens in other pages.
fn group_notes(
    (local, here, ours): (&RankLayout, &Layer, &Group),
    (remote, there, theirs): (&RankLayout, &Layer, &Group),
    report: &mut Report,
) {
    let states = |layout: &RankLayout, layer: &Layer| layout.states_per_page(layer.group());
    for (field, mine, other) in [
        ("states in a page", states(local, here), states(remote, there)),
        ("pages in a block", ours.pages_per_block(), theirs.pages_per_block()),
    ] {
        if mine != other {
            let note = differs(Some(here), field, mine.to_string(), other.to_string(), LINED_UP);
            report.add(Severity::Note, note);
        }
    }
    if ours.window() != theirs.window() {
        let text =
            |group: &Group| group.window().map_or_else(|| "all tokens".to_owned(), |w| format!("last {w} tokens"));
        let remedy = "a request may ask for no more than both keep";
        report.add(Severity::Warning, differs(Some(here), "window", text(ours), text(theirs), remedy));
    }
}

fn differs(layer: Option<&Layer>, field: &str, local: String, remote: String, remedy: &str) -> Error {
    Error::Incompatible {
        layer: layer.map(|layer| layer.name().to_owned()),
        field: field.to_owned(),
        local,
        remote,
        remedy: Some(remedy.to_owned()),
    }
}

fn nothing_in_common(here: &Layer, there: &Layer) -> Error {
    let text = |layer: &Layer| {
        let shares: Vec<String> = layer
            .segments()
            .iter()
            .take(4)
            .flat_map(|s| s.shares().iter().map(|(axis, share)| format!("{axis} {share}")).collect::<Vec<_>>())
            .collect();
        if shares.is_empty() { "no sharded axis".to_owned() } else { shares.join(", ") }
    };
    differs(Some(here), "share", text(here), text(there), "these two ranks exchange nothing of it; route other ranks")
}

fn another_arrangement(here: &Layer, there: &Layer, how: &str, runs: u64) -> Error {
    let remedy = format!(
        "the same elements in another arrangement ({how}): {runs} descriptors a page directly, or a conversion (landed, packed)"
    );
    differs(Some(here), "page format", notations(here), notations(there), &remedy)
}

/// How the arrangement of two layers' pages differs, in words, extents that only say which share is held aside.
fn rearranged(here: &Layer, there: &Layer) -> String {
    let (Some(ours), Some(theirs)) = (here.segments().first(), there.segments().first()) else { return String::new() };
    if here.segments().len() != there.segments().len() {
        return format!("{} against {} segments", here.segments().len(), there.segments().len());
    }
    let mut texts: Vec<String> = Vec::new();
    // Shares and page lengths are no arrangement, so both are brought to the same before they are compared.
    let even = ours.format().with_extents(
        &theirs
            .format()
            .extents()
            .iter()
            .filter(|(axis, _)| ours.format().extents().contains_key(*axis))
            .map(|(axis, extent)| (axis.to_string(), *extent))
            .collect(),
    );
    let compared = even.as_ref().unwrap_or_else(|_| ours.format());
    for difference in compared.difference(theirs.format()) {
        if !difference.of_content() {
            texts.push(difference.to_string());
        }
    }
    texts.truncate(4);
    texts.join("; ")
}

/// An error of planning one kind of layer, with the layer's name and formats.
fn of_layer(error: Error, here: &Layer, there: &Layer) -> Error {
    match error {
        Error::Limit { what, found, limit } => {
            Error::Limit { what: format!("layer {}: {what}", here.name()), found, limit }
        }
        Error::Overflow { term } => Error::Overflow { term: format!("layer {}: {term}", here.name()) },
        Error::Incompatible { layer: None, field, local, remote, remedy } => {
            Error::Incompatible { layer: Some(there.name().to_owned()), field, local, remote, remedy }
        }
        other => other,
    }
}

/// Runs, bytes and local pages of one period of one layer.
fn count(
    local: &RankLayout,
    here: &Layer,
    remote: &RankLayout,
    there: &Layer,
    group: &Group,
    work: &mut Work,
) -> Counted {
    let period = match group.kind() {
        GroupKind::State => Arc::new(Period::whole()),
        GroupKind::Tokens => {
            let paging = |layout: &RankLayout, layer: &Layer| Paging {
                states: layout.states_per_page(layer.group()),
                context: layout.position().cp,
            };
            Arc::new(Period::new(paging(local, here), paging(remote, there))?)
        }
    };
    let matches = match_layers(here, there, None)?;
    let (mut runs, mut bytes) = (0, 0);
    for these in matches.chunk_by(|a, b| Match::segments(a) == Match::segments(b)) {
        for cell in &period.cells {
            let copies = copies_of(these, group.kind(), &cell.spans(None)?, work)?;
            for copy in &copies {
                runs = add(runs, copy.runs()?, "runs of a layer")?;
                bytes = add(bytes, mul(copy.runs()?, copy.run, "bytes of a layer")?, "bytes of a layer")?;
            }
        }
    }
    Ok((runs, bytes, period.local_pages))
}
