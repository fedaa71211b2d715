//! The HTTP APIs that clients already speak.
#![forbid(unsafe_code)]
