//! One HTTP exchange with one engine: connection, head, body, deadlines, and failure as data.

pub mod aside;
pub mod body;
pub mod decode;
pub mod dial;
pub mod head;
pub mod key;
pub mod pool;
pub mod prefill;
pub mod verdict;
