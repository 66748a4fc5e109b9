//! Any two layouts: planning and checking agree, and no row leaves its region.
#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use kvreshard::check::{Options, Severity, check, check_engines};
use kvreshard::engine::Engine;
use kvreshard::plan::{Direction, Plan};
use kvreshard::route::Route;
use kvreshard::verify;
use kvreshard_fuzz::{AnyPair, Stage, assert_inside, pulse, turn};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    pair: AnyPair,
    write: bool,
}

fuzz_target!(|data: &[u8]| {
    pulse(Stage::Begun);
    // Bytes that are missing read as 0, so that short inputs are inputs too.
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) else { return };
    // One input in 32 is large, one in 64 looks at every rank of both engines, one in 16 verifies.
    let turn = turn(data);
    let Ok((local, remote)) = input.pair.build(turn % 32 == 31) else { return };
    pulse(Stage::Valid);
    let direction = if input.write { Direction::Write } else { Direction::Read };
    let options = Options { direction, ..Options::default() };
    match Plan::new(&local, &remote, direction) {
        Ok(plan) => {
            pulse(Stage::Accepted);
            assert_inside(&plan);
            plan.digest();
            // Verification writes out every element, so it is for small pages.
            if turn % 16 == 6 && plan.summary().is_ok_and(|summary| summary.bytes < 1 << 12) {
                let _ = verify::plan(&plan);
            }
            if turn % 8 == 3 {
                check(&local, &remote, &options);
            }
        }
        Err(error) => {
            let report = check(&local, &remote, &options);
            assert!(report.of(Severity::Error).next().is_some(), "{error}\n{report}");
        }
    }
    if turn % 64 != 30 {
        return;
    }
    if let (Ok(here), Ok(there)) = (Engine::uniform(&local), Engine::uniform(&remote)) {
        let _ = Route::new(&here, &there, direction);
        check_engines(&here, &there, &options);
    }
});
