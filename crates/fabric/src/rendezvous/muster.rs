//! Who gathers when the survivors of a group form a new one, and who belongs to it: pure, so that sockets and simulation
//! drive the same.
//!
//! Each survivor knows from its lifelines who is lost and who has left. The lowest of those that are there gathers, the
//! others call it. As news of losses reaches all, they soon agree; a rank that is still of another opinion finds out
//! when the rank that it calls is found lost as well.

use std::time::Duration;

use crate::liveness::Standing;

/// What a survivor has to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Call this rank, which gathers.
    Call(usize),
    /// Let the others come.
    Await,
    /// Form a group of these, in order.
    Form(Vec<usize>),
    /// The others have given this rank up.
    Stay,
    /// Too few are left; so many.
    GiveUp(usize),
}

/// One survivor's view of the gathering.
#[derive(Debug)]
pub(crate) struct Muster {
    rank: usize,
    /// The fewest ranks that are worth a group.
    least: usize,
    /// Who does not come by then is left out.
    patient_until: Duration,
    /// By rank.
    came: Vec<bool>,
}

impl Muster {
    /// The view of `rank` out of `size`.
    pub(crate) fn new(rank: usize, size: usize, least: usize, patient_until: Duration) -> Self {
        let mut came = vec![false; size];
        came[rank] = true;
        Self { rank, least, patient_until, came }
    }

    /// What to do, given what is known of each rank.
    pub(crate) fn aim(&self, standing: impl Fn(usize) -> Standing, now: Duration) -> Aim {
        if standing(self.rank) != Standing::Here {
            return Aim::Stay;
        }
        let here: Vec<usize> = (0..self.came.len()).filter(|&rank| standing(rank) == Standing::Here).collect();
        if here.len() < self.least {
            return Aim::GiveUp(here.len());
        }
        if here[0] != self.rank {
            return Aim::Call(here[0]);
        }
        let present: Vec<usize> = here.iter().copied().filter(|&rank| self.came[rank]).collect();
        if present.len() == here.len() || now >= self.patient_until && present.len() >= self.least {
            return Aim::Form(present);
        }
        Aim::Await
    }

    /// A rank has come.
    ///
    /// # Errors
    /// Why it is not welcome.
    pub(crate) fn admit(&mut self, rank: usize, standing: impl Fn(usize) -> Standing) -> Result<(), String> {
        if rank >= self.came.len() || rank == self.rank {
            return Err(format!("there is no other rank {rank} in a group of {}", self.came.len()));
        }
        if standing(rank) == Standing::Lost {
            return Err(format!("the others have given rank {rank} up"));
        }
        // One that comes again has lost patience with its first connection.
        self.came[rank] = true;
        Ok(())
    }

    /// A rank that had come has gone again.
    pub(crate) fn dismiss(&mut self, rank: usize) {
        self.came[rank] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Standing::{Here, Left, Lost};

    const PATIENCE: Duration = Duration::from_secs(1);

    #[test]
    fn the_lowest_that_is_there_gathers_the_others() {
        let standings = [Lost, Here, Left, Here, Here];
        let standing = |rank: usize| standings[rank];
        let at = |rank| Muster::new(rank, 5, 2, PATIENCE);
        assert_eq!(at(3).aim(standing, Duration::ZERO), Aim::Call(1));
        assert_eq!(at(0).aim(standing, Duration::ZERO), Aim::Stay);
        let mut gatherer = at(1);
        assert_eq!(gatherer.aim(standing, Duration::ZERO), Aim::Await);
        gatherer.admit(4, standing).unwrap();
        assert!(gatherer.admit(0, standing).is_err() && gatherer.admit(1, standing).is_err());
        assert!(gatherer.admit(5, standing).is_err());
        assert_eq!(gatherer.aim(standing, PATIENCE), Aim::Form(vec![1, 4]), "rank 3 took too long");
        gatherer.admit(3, standing).unwrap();
        assert_eq!(gatherer.aim(standing, Duration::ZERO), Aim::Form(vec![1, 3, 4]));
        gatherer.dismiss(4);
        assert_eq!(gatherer.aim(standing, Duration::ZERO), Aim::Await);
    }

    #[test]
    fn too_few_are_not_worth_a_group() {
        let standing = |rank: usize| if rank < 2 { Here } else { Lost };
        assert_eq!(Muster::new(0, 4, 3, PATIENCE).aim(standing, Duration::ZERO), Aim::GiveUp(2));
        let mut pair = Muster::new(0, 4, 2, PATIENCE);
        assert_eq!(pair.aim(standing, PATIENCE * 2), Aim::Await, "one alone is too few");
        pair.admit(1, standing).unwrap();
        assert_eq!(pair.aim(standing, Duration::ZERO), Aim::Form(vec![0, 1]));
    }
}
