//! What users are told when their store refuses.

use super::*;

fn reply(status: u16, body: &str) -> object_store::Error {
    let text = format!(
        "Error performing GET http://x in 1ms - Server returned non-2xx status code: {status} X: {body}"
    );
    object_store::Error::Generic {
        store: "S3",
        source: text.into(),
    }
}

fn xml(code: &str, rest: &str) -> String {
    format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>m</Message>{rest}</Error>")
}

const ELSEWHERE: &str = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region \
                         'us-east-1' is wrong; expecting 'eu-west-1'</Message></Error>";

/// Status, error code or whole body, and what becomes of it.
const REFUSALS: [(u16, &str, ErrorKind, &str); 14] = [
    (404, "NoSuchBucket", ErrorKind::Invalid, "no such bucket"),
    (301, "PermanentRedirect", ErrorKind::Invalid, "set region="),
    (400, ELSEWHERE, ErrorKind::Invalid, "set region=eu-west-1"),
    (403, "AccessDenied", ErrorKind::Forbidden, "access denied"),
    (403, "<html>", ErrorKind::Forbidden, "access denied"),
    (
        403,
        "InvalidAccessKeyId",
        ErrorKind::Forbidden,
        "AWS_ACCESS",
    ),
    (403, "SignatureDoesNotMatch", ErrorKind::Forbidden, "secret"),
    (400, "ExpiredToken", ErrorKind::Forbidden, "expired"),
    (403, "RequestTimeTooSkewed", ErrorKind::Unavailable, "clock"),
    (503, "SlowDown", ErrorKind::Unavailable, "fewer requests"),
    (500, "InternalError", ErrorKind::Unavailable, "failed"),
    (502, "<html>", ErrorKind::Unavailable, "failed"),
    (
        400,
        "InvalidBucketName",
        ErrorKind::Invalid,
        "InvalidBucket",
    ),
    (501, "NotImplemented", ErrorKind::Invalid, "cannot do"),
];

#[test]
fn each_refusal_names_the_setting_to_mend() {
    for (status, code, kind, says) in REFUSALS {
        let body = if code.starts_with('<') {
            code.to_owned()
        } else {
            xml(code, "")
        };

        let fault = Fault::of(&reply(status, &body));

        assert_eq!(fault.kind(), kind, "{status} {body}");
        assert!(fault.to_string().contains(says), "{fault} lacks {says}");
    }
}

#[test]
fn a_full_disk_is_unavailable_and_a_read_only_one_forbidden() {
    let error = |kind: io::ErrorKind| object_store::Error::Generic {
        store: "LocalFileSystem",
        source: Box::new(io::Error::from(kind)),
    };

    assert_eq!(
        Fault::of(&error(io::ErrorKind::StorageFull)),
        Fault::DiskFull
    );
    assert_eq!(
        Fault::of(&error(io::ErrorKind::StorageFull)).kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(
        Fault::of(&error(io::ErrorKind::PermissionDenied)).kind(),
        ErrorKind::Forbidden
    );
    assert_eq!(
        Fault::of(&error(io::ErrorKind::ReadOnlyFilesystem)).kind(),
        ErrorKind::Forbidden
    );
}

#[test]
fn only_refusals_before_the_write_are_free_of_side_effects() {
    let refused = Fault::of(&reply(403, &xml("AccessDenied", "")));
    let failed = Fault::of(&reply(500, &xml("InternalError", "")));
    let throttled = Fault::of(&reply(503, &xml("SlowDown", "")));

    assert!(refused.has_no_side_effects());
    assert!(!failed.has_no_side_effects());
    assert!(!throttled.has_no_side_effects());
    assert!(!Fault::Timeout.has_no_side_effects());
}

#[test]
fn missing_credentials_are_told_from_those_that_are_late() {
    let error = |is_lasting| {
        let source = NoCredentials {
            is_lasting,
            source: "no provider".into(),
        };
        object_store::Error::Generic {
            store: "S3",
            source: source.into(),
        }
    };

    assert_eq!(Fault::of(&error(true)).kind(), ErrorKind::Forbidden);
    assert!(
        Fault::of(&error(true))
            .to_string()
            .contains("AWS_ACCESS_KEY_ID")
    );
    assert_eq!(Fault::of(&error(false)).kind(), ErrorKind::Unavailable);
    assert!(Fault::of(&error(false)).has_no_side_effects());
}
