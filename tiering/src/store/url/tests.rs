//! Store URLs as users type them.

use super::*;

fn parse(text: &str) -> Result<StoreUrl, StoreUrlError> {
    text.parse()
}

#[test]
fn every_scheme_reads_back_as_it_was_written() {
    for text in [
        "s3://bucket",
        "s3://bucket/some/prefix",
        "s3://bucket/p?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=true",
        "s3://bucket?checksum=none&bulk_delete=false",
        "s3://bucket?checksum=crc64nvme",
        "s3://bucket?checksum=sha256&request_payer=true&kms_key=1234-abcd",
        "gs://bucket/p",
        "az://container/p?account=name",
        "file:///var/lib/esker/bucket",
        "file:///a%20b/100%25/what%3F/%23/it's",
        "s3://bucket/100%25/what%3F/%23/a%20b",
        "s3://bucket?kms_key=a%26b%25c%23d%2Be%20f",
        "memory://",
    ] {
        let url = parse(text).unwrap();

        assert_eq!(url.to_string(), text);
        assert_eq!(parse(&url.to_string()).unwrap(), url);
    }
}

#[test]
fn secrets_are_refused_and_never_shown() {
    for text in [
        "s3://AKIAEXAMPLE:hunter2@bucket/prefix",
        "s3://bucket?endpoint=http://user:hunter2@127.0.0.1:9000",
        "s3://bucket?secret_access_key=hunter2",
    ] {
        let error = parse(text).unwrap_err();

        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

#[test]
fn faulty_urls_say_what_is_expected() {
    for (text, says) in [
        ("bucket/prefix", "s3://"),
        ("http://bucket", "unknown scheme"),
        ("s3:///prefix", "bucket is missing"),
        ("s3://bucket?regoin=x", "endpoint, region"),
        ("s3://bucket?region=a&region=b", "repeated"),
        ("s3://bucket?path_style=yes", "true or false"),
        ("s3://bucket?checksum=md5", "sha256"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "http://"),
        ("s3://bucket/a//b", "prefix"),
        ("file://relative/dir", "absolute"),
        ("file:///", "absolute"),
        ("memory://?x=1", "none"),
    ] {
        let error = parse(text).unwrap_err().to_string();

        assert!(error.contains(says), "{text}: {error} lacks {says}");
    }
}

#[test]
fn own_endpoints_and_dotted_buckets_get_path_style() {
    let is_path_style = |text: &str| match parse(text).unwrap().place {
        Place::S3(place) => place.is_path_style(),
        place => panic!("{place:?}"),
    };

    assert!(!is_path_style("s3://bucket"));
    assert!(is_path_style("s3://bucket.with.dots"));
    assert!(is_path_style("s3://bucket?endpoint=http://127.0.0.1:1"));
    assert!(!is_path_style(
        "s3://bucket?endpoint=http://127.0.0.1:1&path_style=false"
    ));
}
