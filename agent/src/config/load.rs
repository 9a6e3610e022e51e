//! Reads the sources, one over the other.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use super::{
    keys::{KEYS, Key},
    settings::{LogFormat, Settings},
    value::{ByteCount, DiskReserve, Millis},
};
use crate::{log::FlushPolicy, partition::TimestampKind};

/// Where settings come from besides the defaults.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// The process's environment: only names that begin with `ESKER_` are looked at.
    pub environment: Vec<(String, String)>,
    /// Flags, by key name.
    pub flags: BTreeMap<String, String>,
}

/// Everything that is wrong with the settings.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// One line each.
    pub faults: Vec<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} settings cannot be used:", self.faults.len())?;
        self.faults
            .iter()
            .try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

/// Loads the settings.
///
/// # Errors
///
/// All faults of all sources together.
pub fn load(sources: &Sources) -> Result<Settings, ConfigError> {
    let mut settings = defaults();
    let mut faults = Vec::new();
    read_file(sources, &mut settings, &mut faults);
    read_environment(sources, &mut settings, &mut faults);
    for (name, text) in &sources.flags {
        apply(&mut settings, name, text, &format!("--{name}"), &mut faults);
    }
    if faults.is_empty() {
        faults = settings.faults();
    }
    if faults.is_empty() {
        Ok(settings)
    } else {
        Err(ConfigError { faults })
    }
}

fn read_file(sources: &Sources, settings: &mut Settings, faults: &mut Vec<String>) {
    let Some(path) = &sources.file else { return };
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return faults.push(format!("{shown}: {error}")),
    };
    let table = match text.parse::<toml::Table>() {
        Ok(table) => table,
        Err(error) => return faults.push(format!("{shown}: {}", error.message())),
    };
    for (name, value) in table {
        let text = match value {
            toml::Value::String(text) => text,
            other => other.to_string(),
        };
        apply(settings, &name, &text, &format!("{shown}: {name}"), faults);
    }
}

fn read_environment(sources: &Sources, settings: &mut Settings, faults: &mut Vec<String>) {
    for (variable, text) in &sources.environment {
        // Other programs have variables of this prefix too, `esker` for one.
        let Some(key) = KEYS.iter().find(|key| key.env() == *variable) else {
            continue;
        };
        // An empty variable is how shells and units say "not set".
        if !text.is_empty() {
            apply(settings, key.name, text, variable, faults);
        }
    }
}

fn apply(settings: &mut Settings, name: &str, text: &str, place: &str, faults: &mut Vec<String>) {
    match KEYS.iter().find(|key| key.name == name) {
        None => faults.push(format!("{place}: no such setting")),
        Some(key) => {
            if let Err(fault) = (key.apply)(settings, text) {
                faults.push(format!("{place}: {fault}"));
            }
        }
    }
}

/// Applies the defaults of the table over placeholders, so that the table is their only source.
fn defaults() -> Settings {
    let mut settings = placeholders();
    for Key {
        name,
        default,
        apply,
        ..
    } in KEYS
    {
        if !default.is_empty() {
            apply(&mut settings, default).unwrap_or_else(|fault| {
                unreachable!("the default of {name} is tested to parse: {fault}")
            });
        }
    }
    settings
}

fn placeholders() -> Settings {
    let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let (no_bytes, no_time) = (ByteCount::new(0), Millis::new(0));
    Settings {
        store: None,
        data_dir: PathBuf::new(),
        listen: any_port,
        advertise: None,
        http_listen: any_port,
        zone: String::new(),
        take_over: Vec::new(),
        flush: FlushPolicy::Ack,
        partitions: 0,
        retention: None,
        retention_bytes: None,
        local_retention_bytes: no_bytes,
        segment_bytes: no_bytes,
        segment_age: no_time,
        batch_bytes_max: no_bytes,
        timestamps: TimestampKind::Create,
        timestamp_before_max: None,
        timestamp_after_max: None,
        check_compressed: true,
        produce_buffer_bytes: no_bytes,
        cache_memory_bytes: no_bytes,
        cache_disk_bytes: no_bytes,
        read_budget_bytes: no_bytes,
        connections_max: 0,
        unuploaded_bytes_max: no_bytes,
        disk_reserve: DiskReserve::Bytes(no_bytes),
        upload_memory_bytes: no_bytes,
        store_requests_max: 0,
        store_stall_timeout: no_time,
        retention_interval: no_time,
        metadata_poll: no_time,
        drain_timeout: no_time,
        log_format: LogFormat::Text,
        log_level: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn every_default_parses() {
        let settings = load(&Sources::default()).unwrap();
        assert_eq!(settings.segment_bytes.get(), 64 << 20);
        assert_eq!(settings.flush, FlushPolicy::Ack);
        assert_eq!(settings.retention, Some(Millis::new(7 * 24 * 3600 * 1000)));
    }

    #[test]
    fn a_flag_beats_the_environment_and_that_beats_the_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(
            file,
            "zone = 'file'\npartitions = 7\nupload-memory-bytes = '3MiB'"
        )
        .unwrap();
        let sources = Sources {
            file: Some(file.path().to_owned()),
            environment: vec![
                ("ESKER_ZONE".to_owned(), "environment".to_owned()),
                ("ESKER_PARTITIONS".to_owned(), "8".to_owned()),
                ("ESKER_BOOTSTRAP".to_owned(), "of the command".to_owned()),
                ("HOME".to_owned(), "/".to_owned()),
            ],
            flags: [("zone".to_owned(), "flag".to_owned())].into(),
        };

        let settings = load(&sources).unwrap();

        assert_eq!((settings.zone.as_str(), settings.partitions), ("flag", 8));
        assert_eq!(settings.upload_memory_bytes, ByteCount::new(3 << 20));
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "segment-bytes = 'many'\nsegmet-age = '10m'").unwrap();
        let sources = Sources {
            file: Some(file.path().to_owned()),
            environment: vec![("ESKER_LISTEN".to_owned(), "nowhere".to_owned())],
            flags: [("partitions".to_owned(), "0".to_owned())].into(),
        };

        let faults = load(&sources).unwrap_err().faults;

        assert_eq!(faults.len(), 4, "{faults:?}");
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let flags = [
            "batch-bytes-max=32MiB",
            "segment-bytes=16MiB",
            "produce-buffer-bytes=8MiB",
        ];
        let flags = flags.map(|flag| flag.split_once('=').unwrap());
        let flags = flags.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let flags = flags.into();
        let faults = load(&Sources {
            flags,
            ..Sources::default()
        })
        .unwrap_err()
        .faults;
        assert_eq!(faults.len(), 2, "{faults:?}");
    }
}
