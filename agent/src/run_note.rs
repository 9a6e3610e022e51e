//! Whether the data directory is as the agent's last run left it.
//!
//! Local copies of manifests hold what is newest only if nothing was lost or put back since: the last
//! run closed in order, or only its process died, on this very directory and since the machine's last
//! boot. A copy of the directory, a snapshot and a power cut all fail that test. The bucket is then
//! read as if there were no copies.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::Path,
};

use esker_proto::types::AgentEpoch;
use serde::{Deserialize, Serialize};

const FILE: &str = "run";
/// Changes with each boot; Linux has it.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What a run says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RunNote {
    agent_epoch: AgentEpoch,
    is_closed: bool,
    boot_id: Option<String>,
    /// Device and inode of `agent.json`, which is written once: a copy has others.
    directory: (u64, u64),
}

impl RunNote {
    fn of(root: &Path, agent_epoch: AgentEpoch, is_closed: bool) -> io::Result<Self> {
        let identity = fs::metadata(root.join("agent.json"))?;
        Ok(Self {
            agent_epoch,
            is_closed,
            boot_id: fs::read_to_string(BOOT_ID).ok(),
            directory: (identity.dev(), identity.ino()),
        })
    }

    fn write(&self, root: &Path) -> io::Result<()> {
        let temporary = root.join("run.new");
        let mut file = File::create(&temporary)?;
        file.write_all(serde_json::to_string(self)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, root.join(FILE))?;
        File::open(root)?.sync_all()
    }
}

/// Whether the directory is as the run of `last_epoch`, the newest that the metadata know, left it.
pub(crate) fn is_as_left(root: &Path, last_epoch: AgentEpoch) -> bool {
    let text = fs::read_to_string(root.join(FILE));
    let note = text
        .ok()
        .and_then(|text| serde_json::from_str::<RunNote>(&text).ok());
    let (Some(note), Ok(now)) = (note, RunNote::of(root, last_epoch, false)) else {
        return false;
    };
    let is_same_boot = note.boot_id.is_some() && note.boot_id == now.boot_id;
    note.agent_epoch == last_epoch
        && (note.is_closed || (is_same_boot && note.directory == now.directory))
}

/// Notes that a run begins. Must come before the run commits anything.
pub(crate) fn begin(root: &Path, agent_epoch: AgentEpoch) {
    note(root, agent_epoch, false);
}

/// Notes that a run has ended in order. Everything it wrote must be durable before.
pub(crate) fn close(root: &Path, agent_epoch: AgentEpoch) {
    note(root, agent_epoch, true);
}

/// A note that cannot be written costs the next start some requests, nothing more.
fn note(root: &Path, agent_epoch: AgentEpoch, is_closed: bool) {
    let noted = RunNote::of(root, agent_epoch, is_closed).and_then(|note| note.write(root));
    if let Err(error) = noted {
        let path = root.join(FILE);
        tracing::warn!(path = %path.display(), %error, "cannot note the state of the data directory; the next start reads the bucket");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("agent.json"), "{}").unwrap();
        dir
    }

    #[test]
    fn a_directory_is_as_left_after_a_close_or_the_death_of_the_process() {
        let dir = directory();
        assert!(!is_as_left(dir.path(), AgentEpoch::new(0)));
        begin(dir.path(), AgentEpoch::new(1));
        assert!(is_as_left(dir.path(), AgentEpoch::new(1)));
        assert!(
            !is_as_left(dir.path(), AgentEpoch::new(2)),
            "another run came after"
        );
        close(dir.path(), AgentEpoch::new(1));
        assert!(is_as_left(dir.path(), AgentEpoch::new(1)));
    }

    #[test]
    fn a_copy_and_another_boot_count_only_after_a_close() {
        let (dir, copy) = (directory(), directory());
        let epoch = AgentEpoch::new(1);
        for (is_closed, expected) in [(false, false), (true, true)] {
            note(dir.path(), epoch, is_closed);
            fs::copy(dir.path().join(FILE), copy.path().join(FILE)).unwrap();
            assert_eq!(is_as_left(copy.path(), epoch), expected);

            let mut before_boot = RunNote::of(dir.path(), epoch, is_closed).unwrap();
            before_boot.boot_id = Some("another".to_owned());
            before_boot.write(dir.path()).unwrap();
            assert_eq!(is_as_left(dir.path(), epoch), expected);
        }
        fs::write(dir.path().join(FILE), "{\"agent").unwrap();
        assert!(!is_as_left(dir.path(), epoch), "torn");
    }
}
