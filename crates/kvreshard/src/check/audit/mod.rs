//! Two captured handshakes of stock NixlConnector 0.33, and what an operator knows: which silent mismatch the pair falls into.
//!
//! A stock handshake passes when sizes, names and layout labels agree. [`ROWS`] lists the ways in which that is not enough. A row
//! that follows from what is known is an error, one that cannot be ruled out a warning that says what to find out.

mod facts;
mod interior;

use std::collections::BTreeSet;

pub use facts::Facts;
use interior::Interior;

use super::report::{Report, Severity};
use super::stock::StockHandshake;
use crate::error::Error;

/// The ways in which a stock pair is accepted and wrong: the row's name and what goes wrong.
pub const ROWS: &[(&str, &str)] = &[
    ("1a", "FLASH_ATTN names packed and AITER-shuffled pages alike: values are read from other places"),
    ("1b", "MINIMAX_M3_SPARSE names packed, page-16 and NVFP4 pages alike"),
    ("1c", "backends differ, and the hash that would tell is switched off"),
    ("2", "pages of a K slot and a V slot are cut as if every head had its own slot, at unequal tensor parallelism"),
    ("3", "with two local heads in planes, shuffled and packed regions are equal in number and size"),
    ("4", "NVFP4 V scales are swizzled on one side and linear on the other"),
    ("4a", "indexer scales are fp32 on one side and UE8M0 on the other"),
    ("5", "fp8 is e4m3fn on one side and e4m3fnuz on the other: values are off by 2"),
    (
        "6",
        "TurboQuant slots are arrays of structures on one side and structures of arrays on the other, or keys are coded otherwise",
    ),
    ("7", "CPU_ATTN packs pages by instruction set, and the sets differ"),
    ("8", "pages of unequal length are joined as if they were packed, and they are not"),
    ("9", "Mamba-2 groups that tensor parallelism does not divide: C is read as B"),
    ("10", "convolution states have unequal rows"),
    ("11", "context-parallel ranks deal tokens in runs of unequal length"),
    ("12", "a later layer's backend differs, and only the first is compared"),
    ("13", "a Mamba hybrid with more remote ranks than heads: whether heads are contiguous is not checked"),
    ("14", "in push mode the decoder checks no region"),
    ("15", "ROCM_ATTN with and without the fused cache pass order V otherwise"),
];

/// What the local side's pair with the remote side falls into. Both sides are stock.
pub fn audit(local: (&StockHandshake, &Facts), remote: (&StockHandshake, &Facts)) -> Report {
    let mut audit = Audit { local, remote, report: Report::default() };
    audit.backends();
    audit.encodings();
    audit.states();
    audit.parallelism();
    audit.report
}

type SideOf<'a> = (&'a StockHandshake, &'a Facts);

struct Audit<'a> {
    local: SideOf<'a>,
    remote: SideOf<'a>,
    report: Report,
}

/// How sure a row is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sure {
    Yes,
    Maybe,
}

const TAG: &str = "have both sides send their page formats, and plan from them";

impl Audit<'_> {
    fn add(&mut self, sure: Sure, row: &'static str, field: &str, sides: (String, String), remedy: &str) {
        let severity = if sure == Sure::Yes { Severity::Error } else { Severity::Warning };
        let what = ROWS.iter().find(|(name, _)| *name == row).map_or("", |(_, what)| what);
        let cause = Error::Incompatible {
            layer: None,
            field: field.to_owned(),
            local: sides.0,
            remote: sides.1,
            remedy: Some(format!("{what}; {remedy}")),
        };
        self.report.add_row(severity, cause, Some(row));
    }

    /// The backends layer by layer, the first from the handshake where the operator lists none.
    fn backends(&mut self) {
        let names = |(handshake, facts): SideOf<'_>| -> Vec<String> {
            if facts.backends.is_empty() { vec![handshake.backend().to_owned()] } else { facts.backends.clone() }
        };
        let (ours, theirs) = (names(self.local), names(self.remote));
        for (index, name) in ours.iter().enumerate() {
            let other = theirs.get(index).or_else(|| theirs.last()).map_or("", String::as_str);
            self.backend(index, name, other);
        }
        if self.local.1.backends.is_empty() || self.remote.1.backends.is_empty() {
            let sides = (ours.join(", "), theirs.join(", "));
            self.add(Sure::Maybe, "12", "backends of later layers", sides, "list the backend of every layer");
        }
    }

    fn backend(&mut self, index: usize, ours: &str, theirs: &str) {
        let names = (format!("{ours} of layer {index}"), format!("{theirs} of layer {index}"));
        let hashed = index == 0 && self.local.1.hash_enforced && self.remote.1.hash_enforced;
        if ours != theirs && hashed {
            let cause = Error::Incompatible {
                layer: None,
                field: "first backend".to_owned(),
                local: ours.to_owned(),
                remote: theirs.to_owned(),
                remedy: Some("stock peers refuse the pair by its hash".to_owned()),
            };
            self.report.add(Severity::Note, cause);
            return;
        }
        let local = Interior::of(ours, self.local.1);
        let remote = Interior::of(theirs, self.remote.1);
        let later = |row: &'static str| if index > 0 { "12" } else { row };
        let mut open: BTreeSet<&'static str> = BTreeSet::new();
        for one in &local {
            for other in &remote {
                open.extend(self.row_of(ours == theirs, *one, *other));
            }
        }
        let certain = local.len() == 1 && remote.len() == 1;
        for row in open {
            let shown = |name: &str, set: &[Interior]| {
                let all: Vec<&str> = set.iter().map(|interior| interior.name()).collect();
                format!("{name} ({})", all.join(" or "))
            };
            let sides = (shown(&names.0, &local), shown(&names.1, &remote));
            let (sure, remedy) = if certain {
                (Sure::Yes, TAG)
            } else {
                (Sure::Maybe, "say which it is, or have both sides send their page formats")
            };
            self.add(sure, later(row), "pages", sides, remedy);
        }
    }

    /// The row that two interiors make, if any.
    fn row_of(&self, same_name: bool, one: Interior, other: Interior) -> Option<&'static str> {
        use Interior as I;
        let ((ours, our_facts), (theirs, their_facts)) = (self.local, self.remote);
        let pair = |a: I, b: I| (one, other) == (a, b) || (one, other) == (b, a);
        if one != other {
            return Some(match () {
                () if !same_name => "1c",
                () if pair(I::Packed, I::Shuffle) => {
                    let planes = ours.layout_name() == "LHBNC" && theirs.layout_name() == "LHBNC";
                    let two = our_facts.heads_held() == Some(2) && their_facts.heads_held() == Some(2);
                    if planes && two { "3" } else { "1a" }
                }
                () if pair(I::Nvfp4Linear, I::Nvfp4Swizzled) => "4",
                () if pair(I::TurboStructures, I::TurboArrays) => "6",
                () if one.is_cpu() && other.is_cpu() => "7",
                () if pair(I::RocmAttn, I::RocmAttnFused) => "15",
                () => "1b",
            });
        }
        if one.is_two_slot() && our_facts.heads_held() != their_facts.heads_held() {
            return Some("2");
        }
        (one.is_woven() && ours.block_size() != theirs.block_size()).then_some("8")
    }

    /// Element encodings that share a name.
    fn encodings(&mut self) {
        let (ours, theirs) = (self.local.1, self.remote.1);
        let shown = |facts: &Facts| {
            let platform = facts.platform.as_deref().unwrap_or("a device that is not known");
            format!("{} on {platform}", facts.cache_dtype)
        };
        let sides = (shown(ours), shown(theirs));
        let both = |is: fn(&Facts) -> bool| is(ours) && is(theirs);
        let differs = |of: fn(&Facts) -> Option<bool>| match (of(ours), of(theirs)) {
            (Some(one), Some(other)) if one == other => None,
            (Some(_), Some(_)) => Some(Sure::Yes),
            _ => Some(Sure::Maybe),
        };
        let device = "name the device of both sides";
        if both(Facts::is_fp8) {
            if let Some(sure) = differs(Facts::has_fnuz) {
                self.add(sure, "5", "fp8 encoding", sides.clone(), if sure == Sure::Yes { TAG } else { device });
            }
        }
        if both(|facts| facts.cache_dtype == "turboquant_k8v4") {
            if let Some(sure) = differs(Facts::has_native_fp8) {
                self.add(
                    sure,
                    "6",
                    "encoding of fp8 keys",
                    sides.clone(),
                    if sure == Sure::Yes { TAG } else { device },
                );
            }
        }
        if both(|facts| facts.sparse_indexer) {
            if let Some(sure) = differs(|facts| facts.platform.as_ref().map(|name| name.starts_with("sm10"))) {
                self.add(sure, "4a", "encoding of indexer scales", sides, if sure == Sure::Yes { TAG } else { device });
            }
        }
    }

    /// Mamba states.
    fn states(&mut self) {
        let (ours, theirs) = (self.local.1, self.remote.1);
        let sizes = |(handshake, _): SideOf<'_>| handshake.ssm_sizes();
        let has_state = |side: SideOf<'_>| sizes(side) != (0, 0) || side.1.mamba_groups.is_some();
        if !has_state(self.local) && !has_state(self.remote) {
            return;
        }
        let (mine, other) = (ours.tp.size(), theirs.tp.size());
        if mine != other {
            let divides =
                |facts: &Facts| facts.mamba_groups.map(|groups| groups.checked_rem(facts.tp.size()) == Some(0));
            let shown = |facts: &Facts| {
                let groups = facts.mamba_groups.map_or_else(|| "an unknown number of".to_owned(), |g| g.to_string());
                format!("{groups} groups on {} ranks", facts.tp.size())
            };
            let sides = (shown(ours), shown(theirs));
            match (divides(ours), divides(theirs)) {
                (Some(true), Some(true)) => {}
                (Some(_), Some(_)) => self.add(Sure::Yes, "9", "Mamba-2 groups", sides, TAG),
                _ => self.add(Sure::Maybe, "9", "Mamba-2 groups", sides, "say how many groups the model has"),
            }
            // Every rank sends its own share of a state, so only equal ranks can be compared by size.
        } else if sizes(self.local) != sizes(self.remote) {
            let shown = |side| format!("{:?} bytes of convolution and scan", sizes(side));
            self.add(Sure::Yes, "10", "state sizes", (shown(self.local), shown(self.remote)), TAG);
        }
        if ours.conv_rows != theirs.conv_rows {
            let shown = |facts: &Facts| facts.conv_rows.map_or_else(|| "unknown".to_owned(), |rows| rows.to_string());
            let sure = if ours.conv_rows.is_some() && theirs.conv_rows.is_some() { Sure::Yes } else { Sure::Maybe };
            let remedy = "give both sides the same number of speculative tokens";
            self.add(sure, "10", "rows of the convolution", (shown(ours), shown(theirs)), remedy);
        }
        if theirs.heads.is_some_and(|heads| other > heads) {
            let sides = (format!("{mine} ranks"), format!("{other} ranks"));
            self.add(Sure::Maybe, "13", "ranks for heads", sides, TAG);
        }
    }

    /// Token dealing and the direction.
    fn parallelism(&mut self) {
        let ((ours, our_facts), (theirs, their_facts)) = (self.local, self.remote);
        if ours.dcp_size() > 1 || theirs.dcp_size() > 1 {
            let shown = |handshake: &StockHandshake, facts: &Facts| {
                let run = facts.cp_interleave.map_or_else(|| "an unknown number of".to_owned(), |run| run.to_string());
                format!("{} ranks, {run} tokens in turn", handshake.dcp_size())
            };
            let sides = (shown(ours, our_facts), shown(theirs, their_facts));
            match (our_facts.cp_interleave, their_facts.cp_interleave) {
                (Some(one), Some(other)) if one == other => {}
                (Some(_), Some(_)) => self.add(Sure::Yes, "11", "context-parallel interleave", sides, TAG),
                _ => {
                    self.add(Sure::Maybe, "11", "context-parallel interleave", sides, "say cp_interleave of both sides")
                }
            }
        }
        if our_facts.push || their_facts.push {
            let shown = |facts: &Facts| if facts.push { "push" } else { "pull" }.to_owned();
            self.add(Sure::Maybe, "14", "transfer mode", (shown(our_facts), shown(their_facts)), TAG);
        }
    }
}
