//! A plan and what is made of it once, shared with the pairings of its requests.

use std::sync::OnceLock;

use kvreshard::layout::MemoryKind;
use kvreshard::lower::Prepared;
use kvreshard::plan::{Plan, Summary};
use kvreshard::{Error, Result};

/// A plan with its counts and rows.
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    pub(crate) summary: Summary,
    /// Rows are made when first asked for: a plan that is only looked at needs none.
    prepared: OnceLock<Result<Vec<Prepared>>>,
}

impl Planned {
    pub(crate) fn new(plan: Plan) -> Result<Self> {
        Ok(Self { summary: plan.summary()?, plan, prepared: OnceLock::new() })
    }

    pub(crate) fn prepared(&self) -> Result<&[Prepared]> {
        self.prepared.get_or_init(|| self.plan.prepare()).as_deref().map_err(Clone::clone)
    }

    /// The prepared list that `part` names; the only one when it names none.
    pub(crate) fn part(&self, part: Option<usize>) -> Result<Option<(usize, &Prepared)>> {
        let lists = self.prepared()?;
        match part {
            None if lists.len() > 1 => Err(Error::Limit {
                what: "lists that this plan needs, one for each pair of memory kinds: pick each in turn with part="
                    .to_owned(),
                found: count(lists.len())?,
                limit: 1,
            }),
            Some(index) if index >= lists.len() => Err(Error::Limit {
                what: "part".to_owned(),
                found: count(index)?,
                limit: count(lists.len())?.saturating_sub(1),
            }),
            part => {
                let index = part.unwrap_or_default();
                Ok(lists.get(index).map(|list| (index, list)))
            }
        }
    }

    /// The memory kind given; the only one of the destination when none is given.
    pub(crate) fn destination_memory(&self, given: Option<&str>) -> Result<MemoryKind> {
        if let Some(name) = given {
            return name.parse();
        }
        let regions = self.plan.side(self.plan.direction().destination()).regions();
        let kind = regions.first().map_or(MemoryKind::Dram, |region| region.memory());
        match regions.iter().all(|region| region.memory() == kind) {
            true => Ok(kind),
            false => Err(Error::Limit {
                what: "memory kinds of the destination: clear each in turn with memory=".to_owned(),
                found: 2,
                limit: 1,
            }),
        }
    }
}

fn count(value: usize) -> Result<u64> {
    u64::try_from(value).map_err(|_| Error::Overflow { term: "count".to_owned() })
}
