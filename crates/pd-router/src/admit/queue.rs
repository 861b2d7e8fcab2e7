//! A true cap on requests in flight, and a bounded FIFO queue in front of it with an honest timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::failure::Fault;

/// The cap and the queue.
#[derive(Debug)]
pub struct Queue {
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    timeout: Duration,
}

struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Queue {
    /// At most `slots` requests in flight and `waiting_max` that wait, each for `timeout` at most.
    #[must_use]
    pub fn new(slots: usize, waiting_max: usize, timeout: Duration) -> Arc<Self> {
        let slots = Arc::new(Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self { slots, waiting: AtomicUsize::new(0), waiting_max, timeout })
    }

    /// How many wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits for a slot, in turn, and says for how long. A request that is dropped while it waits gives its
    /// place back.
    ///
    /// # Errors
    /// [`Fault::QueueFull`] at once, or [`Fault::QueueSlow`] after the timeout.
    pub async fn enter(&self) -> Result<(OwnedSemaphorePermit, Duration), Fault> {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return Ok((slot, Duration::ZERO));
        }
        let since = Instant::now();
        match self.wait(Arc::clone(&self.slots).acquire_owned()).await? {
            Ok(slot) => Ok((slot, since.elapsed())),
            Err(_) => Err(self.slow()),
        }
    }

    /// Waits in the queue for something else than a slot.
    ///
    /// # Errors
    /// [`Fault::QueueFull`] at once, or [`Fault::QueueSlow`] after the timeout.
    pub async fn wait<F: Future>(&self, what: F) -> Result<F::Output, Fault> {
        let place = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
            (waiting < self.waiting_max).then_some(waiting + 1)
        });
        if place.is_err() {
            return Err(Fault::QueueFull);
        }
        let _waiting = Waiting(&self.waiting);
        tokio::time::timeout(self.timeout, what).await.map_err(|_| self.slow())
    }

    const fn slow(&self) -> Fault {
        Fault::QueueSlow { seconds: self.timeout.as_secs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slots_then_places_then_no() {
        let queue = Queue::new(1, 1, Duration::from_secs(5));
        let slot = queue.enter().await.unwrap();
        #[allow(clippy::disallowed_methods, reason = "a test of its own")]
        let second = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.enter().await.map(|_| ()) }
        });
        tokio::task::yield_now().await;
        assert_eq!(queue.waiting(), 1);
        assert!(matches!(queue.enter().await, Err(Fault::QueueFull)));
        drop(slot);
        assert!(second.await.unwrap().is_ok());
        let _slot = queue.enter().await.unwrap();
        let started = Instant::now();
        assert!(matches!(queue.enter().await, Err(Fault::QueueSlow { seconds: 5 })));
        assert_eq!(started.elapsed(), Duration::from_secs(5));
        assert_eq!(queue.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_gives_the_place_back() {
        let queue = Queue::new(1, 1, Duration::from_secs(5));
        let _slot = queue.enter().await.unwrap();
        let left = tokio::time::timeout(Duration::from_millis(10), queue.enter()).await;
        assert!(left.is_err());
        assert_eq!(queue.waiting(), 0);
    }
}
