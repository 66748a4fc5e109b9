//! The ring protocol with more peers, slots and requests than can be explored: random ways through a hostile world, then a calm one
//! in which everything must come to rest.
#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod ring_world;

use std::rc::Rc;

use kvreshard::ring::{Config, Flow};
use proptest::collection::vec;
use proptest::prelude::*;
use ring_world::{Budget, CHUNK, Job, Life, Setup};

fn config(slots: u32, minimum: u32, resend: u32) -> Config {
    Config { slots, slot_bytes: CHUNK, minimum, requests: 3, resend }
}

fn setups() -> impl Strategy<Value = Setup> {
    let shape = (prop::bool::ANY, 1_usize..=3, 1_usize..=3, 1_u32..=2, 1_u32..=3);
    shape.prop_flat_map(|(push, receivers, senders, minimum, resend)| {
        let job = (0..receivers, 0..senders, 1_u64..=6).prop_map(|(receiver, sender, chunks)| Job {
            receiver,
            sender,
            chunks,
        });
        let slots = minimum * 3..=minimum * 3 + 3;
        let unkind = vec(0_u8..=2, 13);
        (vec(job, 1..=8), slots.clone(), slots, unkind).prop_map(move |(jobs, ring, staging, unkind)| Setup {
            budget: Budget {
                drops: unkind[0] * 8,
                doubles: unkind[1] * 8,
                early_ticks: unkind[2] * 4,
                receivers_killed: unkind[3] / 2,
                senders_killed: unkind[4] / 2,
                senders_suspected: unkind[5],
                receivers_suspected: unkind[6],
                cancels: unkind[7],
                withdrawals: unkind[8],
                failures: unkind[9],
                reconnects: unkind[10],
                rings_registered: unkind[11] / 2,
                stagings_registered: unkind[12] / 2,
            },
            ring: config(ring, minimum, resend),
            staging: config(staging, minimum, resend),
            jobs: jobs.clone(),
            ..Setup::new(if push { Flow::Push } else { Flow::Pull }, receivers, senders, (1, 1), &[])
        })
    })
}

fn kind(setup: Setup) -> Setup {
    let Budget { drops, doubles, early_ticks, .. } = setup.budget;
    Setup { budget: Budget { drops, doubles, early_ticks, ..Budget::default() }, ..setup }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_everything_comes_to_rest(setup in setups(), choices in vec(any::<u16>(), 0..400)) {
        let setup = Rc::new(setup);
        let mut world = setup.start();
        world.wander(&setup, &choices).map_err(TestCaseError::fail)?;
        world.come_to_rest(&setup).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn a_bad_network_fails_no_request(setup in setups(), choices in vec(any::<u16>(), 0..400)) {
        let setup = Rc::new(kind(setup));
        let mut world = setup.start();
        world.wander(&setup, &choices).map_err(TestCaseError::fail)?;
        world.come_to_rest(&setup).map_err(TestCaseError::fail)?;
        for (at, &(receiver, sender, _)) in world.lives.iter().enumerate() {
            prop_assert_eq!((receiver, sender), (Life::Finished, Life::Finished), "request {}", at);
        }
    }
}
