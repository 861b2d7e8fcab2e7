//! The client's body as a view: spans over its bytes, which stay as they came.

pub mod api;
pub mod edit;
pub mod scan;
pub mod view;
