//! Plans that were made before, as the same collectives come again and again.

use std::ops::Range;
use std::sync::Arc;

use crate::message::Tags;
use crate::plan::{Plan, Request, Seen, Tuning, plan};

/// Plans that are kept.
const PLANS_MAX: usize = 64;

/// The plans of one rank. Looking one up allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    kept: Vec<Kept>,
    /// The one that was used last.
    last: usize,
    /// The one that makes room for the next.
    oldest: usize,
}

#[derive(Debug)]
struct Kept {
    members: Vec<usize>,
    tags: Tags,
    root: usize,
    rows: usize,
    width: usize,
    parts: Vec<Range<usize>>,
    arrivals: Vec<Range<usize>>,
    plan: Arc<Plan>,
}

impl Kept {
    fn new(members: &[usize], request: &Request<'_>, plan: Arc<Plan>) -> Self {
        let &Request { tags, root, rows, width, parts, arrivals } = request;
        let (parts, arrivals) = (parts.to_vec(), arrivals.to_vec());
        Self { members: members.to_vec(), tags, root, rows, width, parts, arrivals, plan }
    }

    #[inline]
    fn is_for(&self, members: &[usize], request: &Request<'_>) -> bool {
        self.width == request.width
            && self.rows == request.rows
            && self.root == request.root
            && self.tags == request.tags
            && self.members == members
            && self.parts == request.parts
            && self.arrivals == request.arrivals
    }
}

impl Plans {
    /// The plan of a request, which is made if it has not been before.
    #[inline]
    pub(crate) fn get(&mut self, seen: &Seen<'_>, request: &Request<'_>, tuning: &Tuning) -> Arc<Plan> {
        match self.kept.get(self.last) {
            Some(kept) if kept.is_for(seen.members, request) => Arc::clone(&kept.plan),
            _ => self.find(seen, request, tuning),
        }
    }

    fn find(&mut self, seen: &Seen<'_>, request: &Request<'_>, tuning: &Tuning) -> Arc<Plan> {
        if let Some(found) = self.kept.iter().position(|kept| kept.is_for(seen.members, request)) {
            self.last = found;
            return Arc::clone(&self.kept[found].plan);
        }
        let made = Arc::new(plan(seen, request, tuning));
        let kept = Kept::new(seen.members, request, Arc::clone(&made));
        if self.kept.len() < PLANS_MAX {
            self.last = self.kept.len();
            self.kept.push(kept);
        } else {
            self.last = self.oldest;
            self.kept[self.oldest] = kept;
            self.oldest = (self.oldest + 1) % PLANS_MAX;
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType;
    use crate::message::Kind;
    use crate::topology::Topology;

    #[test]
    fn plans_are_made_once_and_forgotten_in_turn() {
        let topology = Topology::full_mesh(3);
        let seen = Seen { topology: &topology, members: &[0, 1, 2], index: 1 };
        let tuning = Tuning::default();
        let request = |bytes| Request::flat(Tags::moving(Kind::Broadcast, ElementType::Bytes), bytes);
        let mut plans = Plans::default();
        let first = plans.get(&seen, &request(5), &tuning);
        plans.get(&seen, &request(6), &tuning);
        assert!(Arc::ptr_eq(&first, &plans.get(&seen, &request(5), &tuning)));
        let others = Seen { members: &[2, 1, 0], ..seen };
        assert!(!Arc::ptr_eq(&first, &plans.get(&others, &request(5), &tuning)));
        for bytes in 0..1000 {
            let plan = plans.get(&seen, &request(bytes), &tuning);
            assert!(Arc::ptr_eq(&plan, &plans.get(&seen, &request(bytes), &tuning)));
        }
        assert_eq!(plans.kept.len(), PLANS_MAX);
        assert!(!Arc::ptr_eq(&first, &plans.get(&seen, &request(5), &tuning)));
    }
}
