//! Which names from outside may become paths here.

/// Longest relative path that is accepted, in bytes. The file systems in use allow no more than 255 a component.
const LONGEST_PATH: usize = 512;
const LONGEST_COMPONENT: usize = 255;

/// Whether `text` is a plain relative path: components joined by `/`, none of which leads elsewhere.
///
/// Errors say what is wrong with it, to be put after "the file name".
pub(crate) fn check_relative(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.len() > LONGEST_PATH {
        return Err("is too long");
    }
    if text.chars().any(char::is_control) {
        return Err("has control characters");
    }
    // A colon is a drive or stream on Windows, and what separates the file in a MODEL.
    if text.contains(['\\', ':']) {
        return Err("has `\\` or `:`");
    }
    if text.starts_with('/') {
        return Err("is an absolute path");
    }
    for component in text.split('/') {
        if matches!(component, "" | "." | "..") {
            return Err("has an empty, `.` or `..` component");
        }
        if component.len() > LONGEST_COMPONENT {
            return Err("has a component that is too long");
        }
    }
    Ok(())
}

/// The last component of a path that [`check_relative`] accepted.
pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_paths_pass() {
        for good in
            ["a", "model.gguf", "Q4_K_M/model-00001-of-00002.gguf", "..a", "a..b", "with space.gguf", "模型.gguf"]
        {
            assert_eq!(check_relative(good), Ok(()), "{good}");
        }
        assert_eq!(base_name("a/b/c.gguf"), "c.gguf");
        assert_eq!(base_name("c.gguf"), "c.gguf");
    }

    #[test]
    fn paths_that_lead_elsewhere_do_not() {
        let long = "x".repeat(256);
        let deep = "x/".repeat(300);
        for bad in [
            "",
            "/",
            "/etc/passwd",
            "..",
            ".",
            "a/../../b",
            "../x",
            "a//b",
            "a/",
            "a\\b",
            "c:x",
            "a\nb",
            "a\0",
            &long,
            &deep,
        ] {
            assert!(check_relative(bad).is_err(), "{bad:?}");
        }
    }
}
