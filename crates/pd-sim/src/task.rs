//! Tracked spawn: every task of a sim starts here, so that stopping one waits for all of them.

use std::future::Future;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A group of tasks with one end.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    token: CancellationToken,
    runtime: Handle,
}

impl Tasks {
    /// An empty group on `runtime`.
    pub(crate) fn new(runtime: Handle) -> Tasks {
        Tasks { tracker: TaskTracker::new(), token: CancellationToken::new(), runtime }
    }

    /// Starts a task that is dropped when the group is cancelled. Works outside the runtime too.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let token = self.token.clone();
        let tracked = async move {
            tokio::select! {
                () = token.cancelled() => {}
                () = work => {}
            }
        };
        self.tracker.spawn_on(tracked, &self.runtime);
    }

    /// The runtime that the tasks run on.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Whether the group was cancelled.
    pub(crate) fn ended(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Drops every task of the group soon.
    pub(crate) fn cancel(&self) {
        self.token.cancel();
    }

    /// Drops every task of the group and waits until all are gone.
    pub(crate) async fn stop(&self) {
        self.token.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}
