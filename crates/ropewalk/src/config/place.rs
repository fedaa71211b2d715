//! Where the configuration file lies if nobody says so.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// The places of the configuration file, of which the first that exists is read: `ropewalk/config.toml` in
/// `XDG_CONFIG_HOME`, or in the platform's configuration folders.
pub(crate) fn usual() -> Vec<PathBuf> {
    from_lookup(&|name| env::var_os(name), env::home_dir())
}

fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Vec<PathBuf> {
    // The XDG standard tells to ignore relative paths.
    let set = lookup("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folders = match (set, home) {
        (Some(folder), _) => vec![folder],
        (None, Some(home)) if cfg!(target_os = "macos") => {
            vec![home.join(".config"), home.join("Library").join("Application Support")]
        }
        (None, Some(home)) => vec![home.join(".config")],
        (None, None) => Vec::new(),
    };
    folders.into_iter().map(|folder| folder.join("ropewalk").join("config.toml")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_in_the_configuration_folder() {
        let first = |folder: Option<&str>| {
            let lookup = |name: &str| folder.filter(|_| name == "XDG_CONFIG_HOME").map(OsString::from);
            from_lookup(&lookup, Some("/home/me".into())).into_iter().next().unwrap()
        };
        assert_eq!(first(None), PathBuf::from("/home/me/.config/ropewalk/config.toml"));
        assert_eq!(first(Some("relative")), PathBuf::from("/home/me/.config/ropewalk/config.toml"));
        assert_eq!(first(Some("/etc")), PathBuf::from("/etc/ropewalk/config.toml"));
        assert!(from_lookup(&|_| None, None).is_empty());
    }
}
