//! Reads the input on a thread of its own, so that a pipe that stays silent blocks nothing else.
//!
//! The thread reads only when it is sure that a read does not block, and only until it is stopped:
//! bytes that were taken from the input are handed out before [`Chunks::next`] says that it was
//! stopped.

use std::{
    fs::File,
    io::{self, PipeReader, PipeWriter, Read},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use tokio::sync::mpsc;

/// Bytes read at a time; a pipe holds as many.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks read ahead of what is sent.
const CHUNKS_AHEAD: usize = 16;

/// Some bytes of the input, or its end.
#[derive(Debug)]
pub(super) enum Chunk {
    Bytes(Vec<u8>),
    End,
    Failed(io::Error),
}

/// What is read.
#[derive(Debug)]
pub(super) struct Chunks(mpsc::Receiver<Chunk>);

/// Stops the reading when dropped.
#[derive(Debug)]
pub(super) struct Stopper(#[expect(dead_code, reason = "its end is the signal")] PipeWriter);

impl Chunks {
    /// Starts to read.
    pub(super) fn read(file: File) -> io::Result<(Self, Stopper)> {
        let (stopped, stopper) = io::pipe()?;
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
        let read = move || read(file, &stopped, &sender);
        thread::Builder::new()
            .name("input".to_owned())
            .spawn(read)?;
        Ok((Self(receiver), Stopper(stopper)))
    }

    /// Returns what comes next; `None`: reading was stopped, and all that was read is handed out.
    pub(super) async fn next(&mut self) -> Option<Chunk> {
        self.0.recv().await
    }
}

fn read(mut file: File, stopped: &PipeReader, chunks: &mpsc::Sender<Chunk>) {
    loop {
        let chunk = match wait(&file, stopped) {
            Ok(true) => read_chunk(&mut file),
            Ok(false) => return,
            Err(error) => Chunk::Failed(error),
        };
        let is_last = !matches!(chunk, Chunk::Bytes(_));
        // Nobody takes chunks any more once the command ends.
        if chunks.blocking_send(chunk).is_err() || is_last {
            return;
        }
    }
}

/// Waits until a read does not block; `false`: reading was stopped.
fn wait(file: &File, stopped: &PipeReader) -> io::Result<bool> {
    loop {
        let mut waited = [
            PollFd::new(stopped, PollFlags::IN),
            PollFd::new(file, PollFlags::IN),
        ];
        match poll(&mut waited, None) {
            Ok(_) if !waited[0].revents().is_empty() => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn read_chunk(file: &mut File) -> Chunk {
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut bytes) {
            Ok(0) => return Chunk::End,
            Ok(read) => {
                bytes.truncate(read);
                return Chunk::Bytes(bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Chunk::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::OwnedFd};

    use super::*;

    #[tokio::test]
    async fn what_was_read_before_a_stop_is_handed_out() {
        let (reader, mut writer) = io::pipe().unwrap();
        let (mut chunks, stopper) = Chunks::read(File::from(OwnedFd::from(reader))).unwrap();
        writer.write_all(b"one\ntwo").unwrap();
        let Some(Chunk::Bytes(bytes)) = chunks.next().await else {
            panic!("nothing was read");
        };
        assert_eq!(bytes, b"one\ntwo");

        drop(stopper);
        assert!(chunks.next().await.is_none(), "an open pipe blocks nothing");
        writer.write_all(b"left in the pipe").unwrap_err();
    }
}
