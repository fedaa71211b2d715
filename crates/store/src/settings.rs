//! What the environment decides, read once and passed on as values.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::StoreError;

/// How the store reaches the sources of models.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Ways to call pip; the first one that works is used.
    pub pip: Vec<PipCommand>,
    /// How long pip may neither say nor write anything before it is stopped.
    pub pip_stall: Duration,
    /// The Hugging Face hub.
    pub hub: HubSettings,
}

/// One way to call pip. Programs are found by the usual search of `PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipCommand {
    /// As a module of this Python.
    Python(OsString),
    /// As a program of its own, with these arguments before pip's own.
    Program(OsString, Vec<OsString>),
}

/// How the Hugging Face hub is used: as its own Python client would.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// The hub's cache on this machine, which its other clients share; `None` if there is no home folder.
    pub cache: Option<PathBuf>,
    /// The hub's address.
    pub endpoint: String,
    /// What proves who asks.
    pub token: Option<Token>,
    /// Use only what is in the cache.
    pub offline: bool,
    /// How long a connection may stay silent.
    pub stall: Duration,
    /// The pause before the second try; it doubles with each further one.
    pub retry_pause: Duration,
}

/// A secret, which no message ever shows.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Takes the secret; surrounding white space, which files and copied text tend to have, is dropped.
    pub fn new(secret: &str) -> Option<Token> {
        let secret = secret.trim();
        (!secret.is_empty()).then(|| Token(secret.to_owned()))
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(...)")
    }
}

impl Settings {
    /// The settings that this process's environment asks for.
    ///
    /// `HF_HUB_CACHE`, `HF_HOME` and `XDG_CACHE_HOME` decide where the hub's cache lies; `HF_ENDPOINT` is the hub's
    /// address; the token is `HF_TOKEN`, or the content of the file that logging in leaves (`HF_TOKEN_PATH`, else
    /// `token` under `HF_HOME`); `HF_HUB_OFFLINE` turns the hub off. pip reads its own environment.
    pub fn from_env() -> Settings {
        Settings::from_lookup(&|name| env::var_os(name), env::home_dir())
    }

    fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Settings {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).map(|value| value.to_string_lossy().into_owned());
        let hf_home = set("HF_HOME").map(PathBuf::from).or_else(|| {
            let caches = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| home.map(|home| home.join(".cache")));
            caches.map(|caches| caches.join("huggingface"))
        });
        let cache = set("HF_HUB_CACHE").map(PathBuf::from).or_else(|| hf_home.as_ref().map(|home| home.join("hub")));
        let token_file = set("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| hf_home.map(|home| home.join("token")));
        let from_file = || std::fs::read_to_string(token_file?).ok().and_then(|secret| Token::new(&secret));
        Settings {
            pip: PipCommand::usual(),
            pip_stall: Duration::from_secs(300),
            hub: HubSettings {
                cache,
                endpoint: text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned()),
                token: text("HF_TOKEN").and_then(|secret| Token::new(&secret)).or_else(from_file),
                offline: text("HF_HUB_OFFLINE").is_some_and(|value| is_yes(&value)),
                stall: Duration::from_secs(60),
                retry_pause: Duration::from_secs(1),
            },
        }
    }
}

impl PipCommand {
    /// pip as a module of the first Python there is, else as a program of its own.
    fn usual() -> Vec<PipCommand> {
        let python = |name: &str| PipCommand::Python(name.into());
        let program = |name: &str| PipCommand::Program(name.into(), Vec::new());
        vec![python("python3"), python("python"), program("pip3"), program("pip")]
    }
}

impl fmt::Display for PipCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipCommand::Python(python) => write!(f, "{} -m pip", python.to_string_lossy()),
            PipCommand::Program(program, arguments) => {
                write!(f, "{}", program.to_string_lossy())?;
                arguments.iter().try_for_each(|argument| write!(f, " {}", argument.to_string_lossy()))
            }
        }
    }
}

/// The cache folder that the environment asks for: `ROPEWALK_HOME`, else `ropewalk` in the platform's cache folder.
pub(crate) fn default_root() -> Result<PathBuf, StoreError> {
    root_from_lookup(&|name| env::var_os(name), env::home_dir()).ok_or(StoreError::NoHome { variable: "ROPEWALK_HOME" })
}

fn root_from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(root) = set("ROPEWALK_HOME") {
        return Some(root);
    }
    let caches = if cfg!(target_os = "macos") {
        home.map(|home| home.join("Library").join("Caches"))
    } else if cfg!(windows) {
        set("LOCALAPPDATA").or_else(|| home.map(|home| home.join("AppData").join("Local")))
    } else {
        // The XDG standard tells to ignore relative paths.
        set("XDG_CACHE_HOME").filter(|path| path.is_absolute()).or_else(|| home.map(|home| home.join(".cache")))
    };
    caches.map(|caches| caches.join("ropewalk"))
}

/// How the hub's clients read a switch.
fn is_yes(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
    }

    fn settings(variables: &[(&str, &str)]) -> HubSettings {
        Settings::from_lookup(&lookup(variables), Some("/home/me".into())).hub
    }

    #[test]
    fn the_hub_is_used_as_its_own_client_would() {
        let plain = settings(&[]);
        assert_eq!(plain.cache, Some("/home/me/.cache/huggingface/hub".into()));
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert!(!plain.offline && plain.token.is_none());

        let all = [
            ("HF_HOME", "/data/hf"),
            ("HF_TOKEN", " hf_secret\n"),
            ("HF_HUB_OFFLINE", "True"),
            ("HF_ENDPOINT", "http://mirror"),
        ];
        let set = settings(&all);
        assert_eq!(set.cache, Some("/data/hf/hub".into()));
        assert_eq!(set.token.as_ref().unwrap().secret(), "hf_secret");
        assert!(set.offline);
        assert_eq!(set.endpoint, "http://mirror");
        assert!(!format!("{set:?}").contains("secret"));

        assert_eq!(settings(&[("HF_HUB_CACHE", "/x"), ("HF_HOME", "/y")]).cache, Some("/x".into()));
        assert_eq!(settings(&[("XDG_CACHE_HOME", "/c")]).cache, Some("/c/huggingface/hub".into()));
        assert!(!settings(&[("HF_HUB_OFFLINE", "0")]).offline);
        assert!(settings(&[("HF_TOKEN", "")]).token.is_none());
    }

    #[test]
    fn the_token_file_counts_where_no_variable_does() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "from-file\n").unwrap();
        let home = home.path().to_str().unwrap();
        assert_eq!(settings(&[("HF_HOME", home)]).token.unwrap().secret(), "from-file");
        assert_eq!(settings(&[("HF_HOME", home), ("HF_TOKEN", "from-env")]).token.unwrap().secret(), "from-env");
    }

    #[test]
    #[cfg(not(any(target_os = "macos", windows)))]
    fn the_root_is_in_the_cache_folder() {
        let root = |variables: &[(&str, &str)]| root_from_lookup(&lookup(variables), Some("/home/me".into())).unwrap();
        assert_eq!(root(&[]), PathBuf::from("/home/me/.cache/ropewalk"));
        assert_eq!(root(&[("XDG_CACHE_HOME", "/c")]), PathBuf::from("/c/ropewalk"));
        assert_eq!(root(&[("XDG_CACHE_HOME", "relative")]), PathBuf::from("/home/me/.cache/ropewalk"));
        assert_eq!(root(&[("ROPEWALK_HOME", "/r"), ("XDG_CACHE_HOME", "/c")]), PathBuf::from("/r"));
        assert_eq!(root_from_lookup(&lookup(&[]), None), None);
    }
}
