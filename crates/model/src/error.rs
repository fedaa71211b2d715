//! Everything that can go wrong between a checkpoint on disk and a runnable shard.

use std::path::PathBuf;

/// A model that cannot be used, or an input that the model cannot take. Each message names the file, tensor, key or
/// template concerned and says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file could not be opened or mapped.
    #[error(transparent)]
    Map(#[from] mapped::MapError),

    /// The bytes of a file break the rules of its format.
    #[error("{file}: {place}, byte {offset}: {problem}; {advice}")]
    Damaged {
        /// The file that was read.
        file: PathBuf,
        /// The part of the file: the header, a key or a tensor, by name.
        place: String,
        /// Where in the file the offending bytes are.
        offset: u64,
        /// What is wrong with them.
        problem: String,
        /// What the reader of the message can do.
        advice: &'static str,
    },

    /// The file is well formed but needs something that this version does not have.
    #[error("{file}: {what} is not supported; {advice}")]
    Unsupported {
        /// The file that was read.
        file: PathBuf,
        /// What it needs.
        what: String,
        /// What is supported, or what the reader of the message can do.
        advice: String,
    },

    /// The parts of a split model do not fit together.
    #[error("{file}: {problem}")]
    Split {
        /// The part that was opened or the part that disagrees.
        file: PathBuf,
        /// What does not fit, and what would.
        problem: String,
    },

    /// A file or folder of a checkpoint in Hugging Face's form cannot be used.
    #[error("{file}: {problem}")]
    Folder {
        /// The file or folder.
        file: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },

    /// A metadata key that is needed is not there.
    #[error("{file} has no metadata key `{key}`; the file is incomplete or of another kind of model, convert it again")]
    MissingKey {
        /// The file that was searched.
        file: PathBuf,
        /// The key that is missing.
        key: String,
    },

    /// A metadata key holds a value that cannot be used.
    #[error("{file}: metadata key `{key}` {problem}")]
    BadKey {
        /// The file that holds the key.
        file: PathBuf,
        /// The key.
        key: String,
        /// What it holds and what was expected, as the end of a sentence that begins with the key.
        problem: String,
    },

    /// A tensor that is needed is not there.
    #[error("{file} has no tensor `{tensor}`; the file is incomplete or of another architecture")]
    MissingTensor {
        /// The file that was searched.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
    },

    /// A tensor is there, but not as the model needs it.
    #[error("{file}: tensor `{tensor}` {problem}; the file is damaged or of another architecture")]
    BadTensor {
        /// The file that holds the tensor.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What is wrong, as the end of a sentence that begins with the tensor.
        problem: String,
    },

    /// The threads or buffers for computing could not be had.
    #[error(transparent)]
    Kernel(#[from] kernels::KernelError),

    /// The ranks of a stage could not exchange their slices. What is inside is the error of whoever made the links.
    #[error(transparent)]
    Exchange(crate::ExchangeError),

    /// The text cannot be turned into tokens.
    #[error("cannot tokenize: {problem}")]
    Tokenize {
        /// What is wrong.
        problem: String,
    },

    /// The chat template called `raise_exception`: the conversation is not one that the model accepts.
    #[error("the model's chat template refuses this conversation: {message}")]
    TemplateRefused {
        /// The template's own words.
        message: String,
    },

    /// The chat template cannot be parsed or run.
    #[error("the chat template `{template}` fails{place}: {problem}", place = line.map(|line| format!(" at line {line}")).unwrap_or_default())]
    Template {
        /// The name of the template, `default` unless the model ships several.
        template: String,
        /// The line of the template, where known.
        line: Option<usize>,
        /// What the template engine said.
        problem: String,
    },
}
