//! A simulation of the router's policies in virtual time: the router's own planner and fleet, and models of
//! pd-sim's engines in the place of sockets. The same seed gives the same numbers, digit for digit.

pub mod bed;
pub mod report;
pub mod run;
pub mod stats;
pub mod suite;
pub mod workload;

/// Why a simulation could not be run: a fault of this code or of a file, never of a policy.
pub type Error = Box<dyn std::error::Error>;
