//! The signals that ask the command to stop.

use std::{fmt, fs, io};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

use super::output::note;

/// A signal that asks for an orderly stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Hangup,
    Interrupt,
    Terminate,
}

impl Stop {
    const ALL: [Self; 3] = [Self::Hangup, Self::Interrupt, Self::Terminate];

    const fn number(self) -> u8 {
        match self {
            Self::Hangup => 1,
            Self::Interrupt => 2,
            Self::Terminate => 15,
        }
    }

    /// The exit code of a command that a signal ended: 128 and the signal's number.
    pub(super) const fn exit_code(self) -> u8 {
        128 + self.number()
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hangup => "SIGHUP",
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// Listens for signals. From its first use on they do not end the process by themselves.
#[derive(Debug)]
pub(super) struct Signals(Vec<(Stop, Signal)>);

impl Signals {
    /// Starts to listen. A signal that the process was started to ignore, as `nohup` does with
    /// SIGHUP, stays ignored.
    pub(super) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let listened = Stop::ALL
            .into_iter()
            .filter(|stop| ignored & (1 << (stop.number() - 1)) == 0)
            .map(|stop| Ok((stop, signal(SignalKind::from_raw(stop.number().into()))?)));
        Ok(Self(listened.collect::<io::Result<_>>()?))
    }

    /// Waits for the next signal. May be dropped before it returns: no signal is lost.
    pub(super) async fn next(&mut self) -> Stop {
        std::future::poll_fn(|cx| {
            for (stop, signal) in &mut self.0 {
                if signal.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*stop);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// The signals that this process ignores, as bits from signal 1 on; none where that is not known.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// Tells the command that it is to stop. A second signal ends the process at once, also while the
/// command waits for something that takes no notice, such as a pipe that nobody reads.
#[derive(Clone, Debug)]
pub(super) struct Stopping(watch::Receiver<Option<Stop>>);

impl Stopping {
    pub(super) fn listen() -> io::Result<Self> {
        let mut signals = Signals::listen()?;
        let (told, stopping) = watch::channel(None);
        drop(crate::env::spawn(async move {
            told.send_replace(Some(signals.next().await));
            let stop = signals.next().await;
            note(format_args!(
                "esker: ended at once by a second signal, {stop}"
            ));
            std::process::exit(stop.exit_code().into());
        }));
        Ok(Self(stopping))
    }

    /// Waits for a signal; returns it again and again from then on.
    pub(super) async fn stopped(&mut self) -> Stop {
        let stopped = self.0.wait_for(Option::is_some).await;
        match stopped.as_deref() {
            Ok(Some(stop)) => *stop,
            // The task that listens ends with the process only.
            _ => std::future::pending().await,
        }
    }
}
