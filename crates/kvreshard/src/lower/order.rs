//! Page ids in ascending order, and whether any occurs twice. Ids are not negative.

/// Whether every id is above the one before it.
pub(super) fn ascends(ids: &[i32]) -> bool {
    let steps = ids.iter().zip(ids.iter().skip(1));
    // The sign of any `next - id - 1`, for all pairs at once; it cannot wrap, since ids are not negative.
    steps.fold(0, |signs, (id, next)| signs | next.wrapping_sub(*id).wrapping_sub(1)) >= 0
}

/// Sorts `keys` and moves `values` with them.
pub(super) fn sort(keys: &mut [i32], values: &mut [i32]) {
    if let Some(table) = table(keys, values) {
        // Every pair is written out and one of an empty slot then overwritten: no branch depends on the ids.
        let mut at = 0_usize;
        for (key, value) in (0..).zip(table) {
            let (Some(first), Some(second)) = (keys.get_mut(at), values.get_mut(at)) else { return };
            (*first, *second) = (key, value);
            at = at.wrapping_add(usize::from(value != ABSENT));
        }
        return;
    }
    let mut pairs: Vec<(i32, i32)> = keys.iter().copied().zip(values.iter().copied()).collect();
    pairs.sort_unstable();
    for ((key, value), pair) in keys.iter_mut().zip(values).zip(pairs) {
        (*key, *value) = pair;
    }
}

/// The lowest id that occurs twice.
pub(super) fn repeated(ids: &[i32]) -> Option<i32> {
    if ascends(ids) || table(ids, ids).is_some() {
        return None;
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.iter().zip(sorted.iter().skip(1)).find(|(id, next)| id == next).map(|(id, _)| *id)
}

/// What a slot of a [`table`] holds that no key fills.
const ABSENT: i32 = -1;

/// The value of every key up to the highest; `None` when a key occurs twice, or keys are too sparse for a table.
fn table(keys: &[i32], values: &[i32]) -> Option<Vec<i32>> {
    let highest = keys.iter().copied().max().and_then(|highest| usize::try_from(highest).ok())?;
    if highest > keys.len().saturating_mul(8) {
        return None;
    }
    let mut table = vec![ABSENT; highest.checked_add(1)?];
    // Stays negative while every slot was empty before it was filled.
    let mut before = ABSENT;
    for (key, value) in keys.iter().zip(values) {
        let slot = table.get_mut(usize::try_from(*key).ok()?)?;
        before &= *slot;
        *slot = *value;
    }
    (before == ABSENT).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::{ascends, repeated, sort, table};

    #[test]
    fn order_and_repetition() {
        assert!(ascends(&[]) && ascends(&[7]) && ascends(&[0, 1, i32::MAX]));
        assert!(!ascends(&[1, 1]) && !ascends(&[0, i32::MAX, 0]) && !ascends(&[i32::MAX, 0]));
        for scale in [1, 1000] {
            // Dense enough for a table, and too sparse for one.
            let mut keys = [5, 0, 3, 9, 4].map(|key| key * scale);
            let mut values = [50, 0, 30, 90, 40];
            assert_eq!(repeated(&keys), None);
            sort(&mut keys, &mut values);
            assert_eq!(keys, [0, 3, 4, 5, 9].map(|key| key * scale));
            assert_eq!(values, [0, 30, 40, 50, 90]);
            assert_eq!(repeated(&[4, 3, 9, 3, 9].map(|key| key * scale)), Some(3 * scale));
            let (mut keys, mut values) = ([2, 1, 2].map(|key| key * scale), [7, 8, 6]);
            sort(&mut keys, &mut values);
            assert_eq!((keys, values), ([1, 2, 2].map(|key| key * scale), [8, 6, 7]));
        }
    }

    #[test]
    fn a_table_is_made_of_different_keys_that_are_dense_enough() {
        let of = |keys: [i32; 2]| table(&keys, &[7, 1]);
        assert_eq!(of([2, 0]), Some(vec![1, -1, 7]));
        assert_eq!(of([1, 1]), None);
        // Of two keys, up to 16 times as many slots, and one for key 0.
        assert_eq!(of([0, 16]).map(|table| table.len()), Some(17));
        assert_eq!(of([0, 17]), None);
        assert_eq!(table(&[], &[]), None);
    }
}
