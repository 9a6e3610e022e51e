//! The commands that people are told to run. They run as they stand when pasted into a shell.

use std::fmt;

use esker_proto::types::TopicPartition;

/// The command that shows what can be repaired in a partition. `store` is the store's URL.
pub fn repair_command(store: impl fmt::Display, at: TopicPartition) -> String {
    format!(
        "esker bucket repair --store {} --partition {at}",
        quoted(&store.to_string())
    )
}

/// The command that compares a bucket with its manifests. `store` is the store's URL.
pub fn verify_command(store: impl fmt::Display) -> String {
    format!("esker bucket verify --store {}", quoted(&store.to_string()))
}

/// Quotes a word for a shell, if it needs that.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use esker_proto::types::{PartitionId, TopicId};

    use super::*;
    use crate::store::StoreUrl;

    const AT: TopicPartition = TopicPartition {
        topic_id: TopicId::from_bytes([7; 16]),
        partition: PartitionId::new(3),
    };

    /// The words that a shell makes of a command.
    fn words(command: &str) -> Vec<String> {
        let command = command.replacen("esker", r"printf '%s\n'", 1);
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn shell_reads_the_store_as_it_is() {
        for text in [
            "s3://bucket/prefix",
            "s3://bucket/p?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=true",
            "file:///var/lib/esker/bucket",
            "file:///a%20b/it's%20$HOME",
        ] {
            let store: StoreUrl = text.parse().unwrap();
            let printed = words(&repair_command(&store, AT));
            let (front, store_arg) = (&printed[..3], printed[3].as_str());
            assert_eq!(front, ["bucket", "repair", "--store"]);
            assert_eq!(store_arg.parse::<StoreUrl>().unwrap(), store);
            assert_eq!(printed[4..], ["--partition", AT.to_string().as_str()]);
            let printed = words(&verify_command(&store));
            assert_eq!(printed[..3], ["bucket", "verify", "--store"]);
            assert_eq!(printed[3], store_arg);
        }
    }
}
