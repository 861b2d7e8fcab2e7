"""The version, the same as in the workspace's Cargo.toml (a test compares them)."""

__version__ = "0.1.0"
