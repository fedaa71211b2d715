//! Of which trace a request is a part: the header `traceparent` of [W3C](https://www.w3.org/TR/trace-context/).

use axum::http::HeaderMap;

const HEADER: &str = "traceparent";
/// Length of the header in version 0. Later versions may add to it.
const LENGTH: usize = 55;

/// The span on whose behalf a request comes, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parent {
    pub(crate) trace: String,
    pub(crate) span: String,
    /// Whether the parent is recorded. If not, neither are its children.
    pub(crate) sampled: bool,
}

impl Parent {
    /// The parent that the headers of a request name, if they do so as they should.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(HEADER).into_iter();
        let value = values.next()?.to_str().ok()?;
        // Of two it could not be known which one is meant.
        values.next().is_none().then(|| Self::parse(value))?
    }

    fn parse(text: &str) -> Option<Self> {
        let (known, more) = text.split_at_checked(LENGTH)?;
        let mut parts = known.split('-');
        let [version, trace, span, flags] = [2, 32, 16, 2].map(|length| hexadecimal(parts.next(), length));
        let (version, trace, span, flags) = (version?, trace?, span?, flags?);
        let fits = if version == "00" { more.is_empty() } else { more.is_empty() || more.starts_with('-') };
        let zero = |digits: &str| digits.bytes().all(|digit| digit == b'0');
        if version == "ff" || !fits || parts.next().is_some() || zero(trace) || zero(span) {
            return None;
        }
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        Some(Self { trace: trace.to_owned(), span: span.to_owned(), sampled })
    }
}

/// So many digits in lower case.
fn hexadecimal(text: Option<&str>, length: usize) -> Option<&str> {
    let lower = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    text.filter(|text| text.len() == length && text.bytes().all(lower))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn parents_are_read_as_the_standard_says() {
        let parent = |sampled| Some(Parent { trace: TRACE.to_owned(), span: SPAN.to_owned(), sampled });
        assert_eq!(Parent::parse(&format!("00-{TRACE}-{SPAN}-01")), parent(true));
        assert_eq!(Parent::parse(&format!("00-{TRACE}-{SPAN}-02")), parent(false));
        assert_eq!(Parent::parse(&format!("cc-{TRACE}-{SPAN}-03")), parent(true));
        assert_eq!(Parent::parse(&format!("cc-{TRACE}-{SPAN}-01-what-will-be")), parent(true));
        let zeros = "0".repeat(32);
        for wrong in [
            String::new(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("cc-{TRACE}-{SPAN}-01."),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-0x"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{SPAN}-{TRACE}-01"),
        ] {
            assert_eq!(Parent::parse(&wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read(text in "(00|cc)-[0-9a-f]{32}-[0-9a-f]{15,16}-[0-9a-f]{2}.?|.{0,70}") {
            if let Some(parent) = Parent::parse(&text) {
                let named = ["", &parent.trace, &parent.span, ""].join("-");
                prop_assert!(text.contains(&named), "{}", text);
            }
        }
    }
}
