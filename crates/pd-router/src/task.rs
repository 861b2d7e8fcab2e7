//! Tracked tasks: the only place that spawns, so that drain can wait for all that serves a client.

use std::future::Future;

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// The tasks that serve clients. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
}

impl Tasks {
    /// Runs a task on `runtime`; [`Tasks::drained`] waits for it.
    pub fn spawn_on<F>(&self, runtime: &Handle, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        drop(self.tracker.spawn_on(task, runtime));
    }

    /// How many tasks run.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    /// Whether none runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }

    /// Waits until every task has ended.
    pub async fn drained(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Runs a task of the router itself, which ends with its runtime: an engine connection, a probe loop.
#[allow(
    clippy::disallowed_methods,
    reason = "this is the tracked spawn's counterpart for what drain must not wait for"
)]
pub fn background<F>(task: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    drop(tokio::spawn(task));
}
