//! What a prefill/decode router costs: mock engines that are fast enough not to be the limit, a floor proxy
//! that does the least a router can do, and a load generator that compares routers side by side.
//!
//! The generator speaks hyper and not reqwest: it has to hold 8,000 streams and send 90,000 requests a second
//! from a few threads beside what it measures, and reqwest takes about 20 µs more a request.

pub mod api;
pub mod body;
pub mod check;
pub mod dial;
pub mod edges;
pub mod engines;
pub mod floor;
pub mod load;
pub mod proc;
pub mod report;
pub mod run;
pub mod sample;
pub mod stats;
pub mod subject;
pub mod workers;
pub mod works;
