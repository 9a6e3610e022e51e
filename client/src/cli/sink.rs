//! Where a replay is written to. A file has its name once it is complete, and not before; one that is
//! to be resumed has it from the start, with the positions it reaches to in a file of their own.

use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;

use super::{
    files,
    positions::{Checkpoint, Positions},
};

/// Bytes written between two notes of how far the output reaches.
const CHECKPOINT_BYTES: u64 = 64 << 20;

/// An output.
pub(super) struct Sink {
    out: Box<dyn Write>,
    bytes: u64,
    kind: Kind,
}

enum Kind {
    /// A pipe, a terminal or a device: it holds what was written to it.
    Stream,
    /// Written beside its name.
    Whole {
        file: File,
        partial: PathBuf,
        path: PathBuf,
    },
    Resumed {
        file: File,
        path: PathBuf,
        notes: PathBuf,
        noted_bytes: u64,
    },
}

impl Sink {
    /// Opens an output that is complete or not there.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::new(files::stdout(), Kind::Stream));
        }
        // A file that a link names is replaced, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
            return Ok(Self::new(files::output(&path)?, Kind::Stream));
        }
        let mut partial = path.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = files::create(&partial)?;
        let out = files::buffered(file.try_clone()?);
        let kind = Kind::Whole {
            file,
            partial,
            path,
        };
        Ok(Self::new(out, kind))
    }

    /// Opens an output to write on where an earlier replay stopped, or a new one.
    pub(super) fn resume(
        path: &Path,
        notes: &Path,
        reached: Option<&Checkpoint>,
    ) -> anyhow::Result<Self> {
        let failed = || format!("{} cannot be written", path.display());
        let mut options = OpenOptions::new();
        options.write(true);
        let options = match reached {
            Some(_) => &mut options,
            None => options.create_new(true),
        };
        let mut file = options.open(path).with_context(|| match reached {
            Some(_) => failed(),
            None => format!(
                "{} must not exist without {}, which says how far it reaches",
                path.display(),
                notes.display()
            ),
        })?;
        let bytes = reached.map_or(0, |reached| reached.output_bytes);
        anyhow::ensure!(
            file.metadata().with_context(failed)?.len() >= bytes,
            "{} is shorter than {} says: it was changed since",
            path.display(),
            notes.display()
        );
        file.set_len(bytes)
            .and_then(|()| file.seek(SeekFrom::Start(bytes)))
            .with_context(failed)?;
        // What the notes speak of must be found under its name.
        files::sync_directory_of(path)?;
        let out = files::buffered(file.try_clone().with_context(failed)?);
        let kind = Kind::Resumed {
            file,
            path: path.to_owned(),
            notes: notes.to_owned(),
            noted_bytes: bytes,
        };
        Ok(Self { out, bytes, kind })
    }

    fn new(out: Box<dyn Write>, kind: Kind) -> Self {
        Self {
            out,
            bytes: 0,
            kind,
        }
    }

    /// Writes a value, and a line feed behind it if it was one line of many.
    pub(super) fn write(&mut self, value: &[u8], is_terminated: bool) -> anyhow::Result<()> {
        let feed: &[u8] = if is_terminated { b"\n" } else { b"" };
        self.bytes += value.len() as u64 + feed.len() as u64;
        let written = self.out.write_all(value);
        written
            .and_then(|()| self.out.write_all(feed))
            .context("cannot write the output")
    }

    /// Notes the positions once in a while.
    pub(super) fn reached(&mut self, positions: &Positions) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Resumed { noted_bytes, .. } if self.bytes >= noted_bytes + CHECKPOINT_BYTES => {
                self.note(positions)
            }
            _ => Ok(()),
        }
    }

    /// Notes the positions that the output reaches to.
    pub(super) fn note(&mut self, positions: &Positions) -> anyhow::Result<()> {
        self.out.flush().context("cannot write the output")?;
        if let Kind::Resumed {
            file,
            path,
            notes,
            noted_bytes,
        } = &mut self.kind
        {
            // The note must not outlast what it speaks of.
            file.sync_data()
                .with_context(|| format!("cannot sync {}", path.display()))?;
            *noted_bytes = self.bytes;
            let checkpoint = Checkpoint {
                output_bytes: self.bytes,
                positions: positions.saved(),
            };
            checkpoint.write(notes)?;
        }
        Ok(())
    }

    /// Everything is written: the file gets its name.
    pub(super) fn complete(mut self, positions: &Positions) -> anyhow::Result<()> {
        self.note(positions)?;
        if let Kind::Whole {
            file,
            partial,
            path,
        } = &self.kind
        {
            files::put_in_place(file, partial, path)?;
        }
        Ok(())
    }

    /// Something ended the replay; returns what there is now, for people.
    pub(super) fn abandon(
        mut self,
        positions: &Positions,
        is_final: bool,
    ) -> anyhow::Result<String> {
        self.note(positions)?;
        let what = match &self.kind {
            Kind::Whole { partial, .. } => format!(
                "the output is not complete, {} holds what was written",
                partial.display()
            ),
            _ => "the output is not complete".to_owned(),
        };
        Ok(match &self.kind {
            _ if is_final => what,
            Kind::Resumed { notes, .. } => {
                let notes = notes.display();
                format!("{what}; the same command continues it from what {notes} says")
            }
            _ => format!("{what}; the rest begins at --from-offsets {positions}"),
        })
    }
}
