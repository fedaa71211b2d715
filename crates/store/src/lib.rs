//! Model names in, local files out: downloads and the cache folder.
#![forbid(unsafe_code)]
