//! What the tests of pd-router's promises share.
