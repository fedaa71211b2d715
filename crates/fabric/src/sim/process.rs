//! A simulated process: what it does is a future, polled whenever something may have happened, and so are its lifelines.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::letters::{Body, Letter, Post};
use super::wires::End;
use super::world::{Shared, lock};
use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::liveness::Watch;

/// A rank that waits for one that does not move waits so long.
pub(super) const WAIT_DEADLINE: Duration = Duration::from_secs(2);

/// What the code of a process holds on to.
#[derive(Clone)]
pub(super) struct Handle {
    /// The number of the process.
    pub(super) id: usize,
    pub(super) world: Shared,
    pub(super) post: Post,
    watches: Rc<RefCell<Vec<Watch<End>>>>,
    /// Stands for the simulation's beginning, where code wants to be told the time.
    epoch: Instant,
}

impl Handle {
    pub(super) fn new(id: usize, world: &Shared, post: &Post) -> Self {
        Self { id, world: world.clone(), post: post.clone(), watches: Rc::default(), epoch: Instant::now() }
    }

    pub(super) fn now(&self) -> Duration {
        lock(&self.world).now
    }

    /// Keeps the lifelines of a group until it ends.
    pub(super) fn watch_over(&self, watch: Watch<End>) {
        self.watches.borrow_mut().push(watch);
    }

    pub(super) fn send(&self, to: usize, body: Body) {
        self.post.send(&mut lock(&self.world), self.id, to, body);
    }

    /// The first letter that has come and is wanted, or `None` when none has at `until`.
    pub(super) async fn letter(&self, until: Duration, wanted: impl Fn(&Letter) -> bool) -> Option<Letter> {
        poll_fn(|_| {
            let mut world = lock(&self.world);
            let letter = self.post.take(&mut world, self.id, &wanted);
            if letter.is_some() || world.now >= until {
                return Poll::Ready(letter);
            }
            world.wake(self.id, until);
            Poll::Pending
        })
        .await
    }

    pub(super) async fn sleep(&self, time: Duration) {
        let until = self.now() + time;
        self.letter(until, |_| false).await;
    }

    /// Drives an operation to its end.
    pub(super) async fn complete(
        &self,
        fabric: &mut Fabric,
        mut operation: crate::collectives::Operation<'_>,
    ) -> Result<(), FabricError> {
        poll_fn(|_| {
            loop {
                let now = self.now();
                let before = lock(&self.world).moves;
                match fabric.poll_at(&mut operation, self.epoch + now) {
                    Ok(true) => return Poll::Ready(Ok(())),
                    Err(error) => return Poll::Ready(Err(error)),
                    Ok(false) => {}
                }
                // What has moved may have made room for more.
                if lock(&self.world).moves == before {
                    lock(&self.world).wake(self.id, now + WAIT_DEADLINE);
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

/// A process as the simulation sees it.
pub(super) struct Process {
    handle: Handle,
    main: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Process {
    pub(super) fn new(handle: Handle, main: impl Future<Output = ()> + 'static) -> Self {
        Self { handle, main: Some(Box::pin(main)) }
    }

    /// Whether it has come to its end.
    pub(super) fn is_done(&self) -> bool {
        self.main.is_none()
    }

    /// Does what there is to do now.
    pub(super) fn step(&mut self) {
        self.turn();
        if let Some(main) = &mut self.main
            && main.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        {
            self.main = None;
        }
        // The data path may have found something, or have ended.
        self.turn();
        let Handle { id, world, post, watches, .. } = &self.handle;
        let mut world = lock(world);
        let now = world.now;
        for watch in watches.borrow().iter() {
            let next = watch.next_turn(now);
            world.wake(*id, next);
        }
        post.wake_for_letters(&mut world, *id);
        world.wake_for_arrivals(*id);
    }

    /// Lets the lifelines have their turn, until they have heard everything.
    fn turn(&self) {
        let now = self.handle.now();
        self.handle.watches.borrow_mut().retain_mut(|watch| {
            let mut ready: Vec<usize> = (0..watch.size()).collect();
            while !ready.is_empty() {
                if watch.turn(&mut ready, now) {
                    return false;
                }
            }
            true
        });
    }
}
