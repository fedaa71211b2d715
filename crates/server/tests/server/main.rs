//! The server over a scripted engine, through real loopback connections.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod anthropic;
mod bad_requests;
mod chat;
mod completions;
mod constraints;
mod disconnects;
mod embeddings;
mod failures;
mod harness;
mod hosts;
mod keys;
mod limits;
mod listening;
mod models;
mod ollama;
mod openapi;
mod operation;
mod page;
mod random_bodies;
mod refusals;
mod rerank;
mod responses;
mod script;
mod shutdown;
mod tls;
mod tokenization;
mod tool_dialects;
mod tools;
mod traces;
