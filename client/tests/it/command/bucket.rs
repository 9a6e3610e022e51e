//! Work on a bucket, with no agent.

use std::fs;

use tempfile::TempDir;

use super::Esker;

#[tokio::test]
async fn closed_pipe_ends_work_on_a_bucket_quietly() {
    let bucket = TempDir::new().unwrap();
    fs::write(bucket.path().join("cluster.json"), "{}").unwrap();
    let url = format!("file://{}", bucket.path().display());
    for args in [&["verify"][..], &["verify", "--json"], &["repair"], &["gc"]] {
        let args = [&["bucket"], args, &["--store", &url]].concat();
        let exit = Esker::start_unread("", &args).ended().await;
        assert_eq!(exit.code, Some(141), "{args:?} {exit:?}");
        assert_eq!(exit.stderr, "", "{args:?}");
    }
}
