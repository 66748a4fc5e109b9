//! Taking turns.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// Whose turn it is after `last`: the next key that is `ready`, round and round.
///
/// What is shared is slots, and a turn is a slot, so turns alone are fair: a request of one chunk waits for at most one slot of
/// each of the others, however long they are.
pub(super) fn next<K: Ord + Copy, V>(
    all: &BTreeMap<K, V>,
    last: Option<K>,
    mut ready: impl FnMut(K, &V) -> bool,
) -> Option<K> {
    let after = all.range((last.map_or(Unbounded, Excluded), Unbounded));
    let mut turns = after.chain(last.iter().flat_map(|last| all.range(..=*last)));
    turns.find(|&(&key, value)| ready(key, value)).map(|(&key, _)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ready_key_has_its_turn() {
        let all = BTreeMap::from([(1, true), (4, false), (7, true), (9, true)]);
        let mut last = None;
        let mut order = Vec::new();
        for _ in 0..6 {
            last = next(&all, last, |_, &ready| ready);
            order.extend(last);
        }
        assert_eq!(order, [1, 7, 9, 1, 7, 9]);
        assert_eq!(next(&all, Some(4), |_, &ready| !ready), Some(4));
        assert_eq!(next(&all, Some(9), |_, _| false), None);
    }
}
