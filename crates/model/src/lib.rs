//! A checkpoint in, a runnable shard out.
#![forbid(unsafe_code)]
