//! The store from outside. One program for all, because linking takes longer than running.
#![allow(clippy::unwrap_used, reason = "a failure is a panic here")]

mod hub;
mod local;
mod pip;
mod server;
mod source;
mod support;
