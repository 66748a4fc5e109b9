//! A plan in words, for people.

use std::fmt::Write as _;

use crate::error::Result;
use crate::layout::{GroupKind, RankLayout};
use crate::plan::{Direction, Plan};

/// The most lanes that are listed one by one.
const SHOWN: usize = 12;

impl Plan {
    /// What moves, as text: both sides' formats, runs, and the first lanes.
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::Error::Overflow) when a count does not fit.
    pub fn explain(&self) -> Result<String> {
        let summary = self.summary()?;
        let mut text = String::new();
        let verb = match self.direction() {
            Direction::Read => "reads from",
            Direction::Write => "writes to",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {verb} {}", place(self.local()), place(self.remote()));
        for (side, layout) in [("local ", self.local()), ("remote", self.remote())] {
            for notation in notations(layout) {
                let _ = writeln!(text, "  {side}  {notation}");
            }
        }
        let _ = writeln!(
            text,
            "{} layers, {} runs of {} to {} bytes, {} bytes a period",
            summary.layers, summary.runs, summary.shortest_run, summary.longest_run, summary.bytes
        );
        for pair in self.pairs() {
            let period = &pair.period;
            let _ = match pair.kind {
                GroupKind::State => writeln!(text, "groups {} and {}: states, whole", pair.local, pair.remote),
                GroupKind::Tokens => writeln!(
                    text,
                    "groups {} and {}: {} local and {} remote pages a period of {} states, {} pairs of pages",
                    pair.local,
                    pair.remote,
                    period.local_pages,
                    period.remote_pages,
                    period.states,
                    period.cells.len()
                ),
            };
        }
        for lane in self.lanes().iter().take(SHOWN) {
            for copy in lane.copies.iter().take(SHOWN) {
                let _ = write!(text, "  local {:#x} + {}", lane.local.address, copy.local);
                let _ = write!(text, "  <->  remote {:#x} + {}", lane.remote.address, copy.remote);
                let _ = write!(text, "  {} bytes", copy.run);
                for step in &copy.loops {
                    let _ = write!(text, " x {} (step {} and {})", step.extent, step.local, step.remote);
                }
                text.push('\n');
            }
        }
        let hidden = self.lanes().len().saturating_sub(SHOWN);
        if hidden > 0 {
            let _ = writeln!(text, "  and {hidden} more");
        }
        Ok(text)
    }
}

fn place(layout: &RankLayout) -> String {
    let position = layout.position();
    let mut text = format!("{} (tp {} of {}", layout.engine(), position.tp.rank(), position.tp.size());
    for (name, place) in [("pp", position.pp), ("cp", position.cp.place())] {
        if place.size() > 1 {
            let _ = write!(text, ", {name} {} of {}", place.rank(), place.size());
        }
    }
    text.push(')');
    text
}

/// The different formats, with how many layers use each.
fn notations(layout: &RankLayout) -> Vec<String> {
    let mut found: Vec<(String, usize)> = Vec::new();
    for layer in layout.layers() {
        let mut texts: Vec<String> = layer.segments().iter().map(|segment| segment.format().to_string()).collect();
        texts.dedup();
        let text = texts.join(" + ");
        match found.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count = count.saturating_add(1),
            None => found.push((text, 1)),
        }
    }
    found.into_iter().map(|(text, count)| format!("{text}, {count} layers")).collect()
}
