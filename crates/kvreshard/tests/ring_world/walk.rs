//! One way through a world, instead of all.

use std::rc::Rc;

use super::host::Checked;
use super::{Move, Setup, World};

impl World {
    /// Makes `choices.len()` moves, each picked by its number.
    pub fn wander(&mut self, setup: &Rc<Setup>, choices: &[u16]) -> Checked {
        for &choice in choices {
            let moves = self.moves(setup);
            if moves.is_empty() {
                break;
            }
            self.apply(setup, &moves[usize::from(choice) % moves.len()])?;
        }
        Ok(())
    }

    /// Lets everything go its good way until all is over: messages arrive, what was started ends, hosts notice what they must, and
    /// clocks tick when nothing else happens. Returns the rounds of ticks that it took.
    pub fn come_to_rest(&mut self, setup: &Rc<Setup>) -> Result<usize, String> {
        for round in 0..200 {
            while let Some(step) = self.next_good(setup) {
                self.apply(setup, &step)?;
            }
            if self.settled(setup) {
                return Ok(round);
            }
            for step in self.moves(setup).into_iter().filter(|step| matches!(step, Move::Tick(_))).collect::<Vec<_>>() {
                self.apply(setup, &step)?;
                while let Some(step) = self.next_good(setup) {
                    self.apply(setup, &step)?;
                }
            }
        }
        Err(format!("no rest: {self:?}"))
    }

    /// The first good move that is not a tick.
    pub fn next_good(&self, setup: &Setup) -> Option<Move> {
        self.moves(setup).into_iter().find(|step| step.is_fair(self) && !matches!(step, Move::Tick(_)))
    }
}
