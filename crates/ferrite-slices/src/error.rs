//! Errors of requests: the place, the cause, and the mend.

use thiserror::Error;

/// Errors of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such object.
    #[error("{0} does not exist")]
    NotFound(String),
    /// An object of this name has other bytes.
    #[error("{0} exists already, with other bytes")]
    Exists(String),
    /// The bytes of an object are not those that were stored.
    #[error("{0}")]
    Damaged(String),
    /// The request was refused, and will be until somebody mends the cause.
    #[error("{0}")]
    Refused(String),
    /// The request failed, and may succeed later.
    #[error("{0}")]
    Failed(String),
}

/// The result of requests.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether asking again later cannot help unless somebody mends the cause.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Error::Refused(_) | Error::Exists(_) | Error::Damaged(_))
    }
}

/// Causes that the text of an answer shows, and their mends. The first that fits counts.
const KNOWN: [(&str, &str); 9] = [
    (
        "NoSuchBucket",
        "there is no such bucket; make it, or mend its name in the pool's file",
    ),
    (
        "RequestTimeTooSkewed",
        "the clock of this machine differs from that of the service; set the clock",
    ),
    (
        "ExpiredToken",
        "the credentials have expired; renew them in the file or the environment that has them",
    ),
    (
        "InvalidAccessKeyId",
        "the service does not know the access key; mend AWS_ACCESS_KEY_ID, or the profile in ~/.aws/credentials",
    ),
    (
        "SignatureDoesNotMatch",
        "the secret key is not that of the access key; mend AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials",
    ),
    (
        "AuthorizationHeaderMalformed",
        "the bucket is in another region; name its `region` in the pool's file",
    ),
    (
        "PermanentRedirect",
        "the bucket is in another region; name its `region` in the pool's file",
    ),
    (
        "QuotaExceeded",
        "the bucket is full; raise its quota, or delete something",
    ),
    (
        "XMinioStorageFull",
        "the service has no space left; give it more, or delete something",
    ),
];

/// An error of `object_store`, about an object or a request at a place.
pub(crate) fn of_store(place: &str, what: &str, error: &object_store::Error) -> Error {
    let text = chain(error);
    if let Some((_, mend)) = KNOWN.iter().find(|(word, _)| text.contains(word)) {
        return Error::Refused(format!("{place}: {mend} ({what})"));
    }
    match error {
        object_store::Error::NotFound { .. } => Error::NotFound(format!("{place}/{what}")),
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => {
            Error::Exists(format!("{place}/{what}"))
        }
        object_store::Error::Unauthenticated { .. } => Error::Refused(format!(
            "{place}: the service does not accept the credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
             or a profile in ~/.aws/credentials ({text})"
        )),
        object_store::Error::PermissionDenied { .. } => Error::Refused(format!(
            "{place}: the service refuses access; the credentials need s3:GetObject, s3:PutObject, s3:DeleteObject and \
             s3:ListBucket there ({text})"
        )),
        _ => Error::Failed(format!("{place}: {text}")),
    }
}

/// Whether a request for a range failed because the object has no such range, or (`Some(true)`) because the service
/// answers with something else.
pub(crate) fn refused_range(error: &object_store::Error) -> Option<bool> {
    let is_known = matches!(
        error,
        object_store::Error::NotFound { .. }
            | object_store::Error::Unauthenticated { .. }
            | object_store::Error::PermissionDenied { .. }
    );
    if is_known {
        return None;
    }
    // In the words of S3, of directories, and of memory.
    let too_short = [
        "InvalidRange",
        "Range Not Satisfiable",
        "Out of range",
        "range was invalid",
        "Wanted range",
    ];
    // In the words of the client.
    let other_answer = [
        "non-partial response",
        "Content-Range",
        "CONTENT_RANGE",
        "NotImplemented",
    ];
    let text = chain(error);
    let has = |words: &[&str]| words.iter().any(|words| text.contains(words));
    let is_other_range = text.contains("Requested ") && text.contains(", got ");
    match (has(&too_short), has(&other_answer) || is_other_range) {
        (true, _) => Some(false),
        (false, true) => Some(true),
        (false, false) => None,
    }
}

/// An error with its causes, those that say something new, in one line.
fn chain(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects readers from services without ranges, which are read whole, and tells other failures from those.
    #[test]
    fn refused_ranges_are_known() {
        let refused = |text: &str| {
            refused_range(&object_store::Error::Generic {
                store: "S3",
                source: text.to_string().into(),
            })
        };
        assert_eq!(refused("416: <Code>InvalidRange</Code>"), Some(false));
        assert_eq!(
            refused("Received non-partial response when range requested"),
            Some(true)
        );
        assert_eq!(refused("Requested 0..5, got 0..3"), Some(true));
        assert_eq!(refused("503: SlowDown, got it"), None);
    }

    #[test]
    fn causes_are_named_with_their_mends() {
        let generic = |text: &str| object_store::Error::Generic {
            store: "S3",
            source: text.to_string().into(),
        };
        let skewed = of_store("s3://b", "x", &generic("403: <Code>RequestTimeTooSkewed</Code>"));
        assert!(
            skewed.is_refusal() && skewed.to_string().contains("set the clock"),
            "{skewed}"
        );
        let missing = object_store::Error::NotFound {
            path: "x".into(),
            source: "404: <Code>NoSuchBucket</Code>".into(),
        };
        let missing = of_store("s3://b", "x", &missing);
        assert!(
            missing.is_refusal() && missing.to_string().contains("no such bucket"),
            "{missing}"
        );
        let busy = of_store("s3://b", "x", &generic("503: SlowDown"));
        assert!(!busy.is_refusal() && busy.to_string().contains("SlowDown"), "{busy}");
    }
}
