//! What can be wrong with the weights or sizes that a caller hands in.

use crate::DType;

/// Why an operation refused its input.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The number of columns does not fill whole blocks of the format.
    #[error("{columns} columns do not fit {dtype}, which stores blocks of {block} values; use another format for it")]
    RowLength {
        /// The format.
        dtype: DType,
        /// Columns asked for.
        columns: usize,
        /// Values in a block of that format.
        block: usize,
    },
    /// The bytes handed in are not as many as the shape needs.
    #[error("{dtype} data for {values} values must be {expected} bytes, but there are {found}; the file is damaged")]
    DataLength {
        /// The format.
        dtype: DType,
        /// Values in the tensor.
        values: usize,
        /// Bytes that this many values take.
        expected: usize,
        /// Bytes handed in.
        found: usize,
    },
    /// The size of the tensor does not fit this machine's addresses.
    #[error("a {dtype} tensor of {rows} rows and {columns} columns is too large for this machine's address space")]
    TooLarge {
        /// The format.
        dtype: DType,
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        columns: usize,
    },
    /// A pool needs one thread at least.
    #[error("a thread pool needs at least 1 and at most {maximum} threads, not {threads}")]
    ThreadCount {
        /// Threads asked for.
        threads: usize,
        /// The most that a pool can have.
        maximum: usize,
    },
    /// The system refused to start a thread.
    #[error("cannot start worker thread {worker}: {source}; use fewer threads or raise the process limit")]
    Spawn {
        /// Which worker it was.
        worker: usize,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// There is no memory for packed weights.
    #[error(
        "cannot get {bytes} bytes of memory for the weights: {source}; use more ranks, or leave the weights in the file"
    )]
    Memory {
        /// What was asked for.
        bytes: usize,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Weights could not be read from their file.
    #[error("cannot read weights from the model's file: {source}; check that the file is still there and whole")]
    Read {
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Vector instructions compute something else than plain code.
    #[error(
        "this machine multiplies {dtype} weights wrongly: its vector instructions give {found}, plain code gives {expected}; \
         if this is no emulated processor, suspect the hardware, else run on another machine"
    )]
    WrongProduct {
        /// The format of the weights.
        dtype: DType,
        /// By vector instructions.
        found: f32,
        /// By plain code.
        expected: f32,
    },
}
