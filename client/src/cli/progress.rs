//! A progress bar on standard error, when a person watches.

use std::{fmt, io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::output::{grouped, note};

/// How far something has come. Silent when nobody watches.
pub(super) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Of so many bytes, if that is known.
    pub(super) fn bytes(total: Option<u64>, quiet: bool) -> Self {
        Self::new(
            total,
            quiet,
            "{bytes} of {total_bytes}  {bytes_per_sec}",
            "{bytes}  {bytes_per_sec}",
        )
    }

    /// Of so many records.
    pub(super) fn records(total: u64, quiet: bool) -> Self {
        let text = "{human_pos} of {human_len} records  {rate}";
        Self::new(Some(total), quiet, text, text)
    }

    fn new(total: Option<u64>, quiet: bool, known: &str, unknown: &str) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let template = match total {
            Some(_) => format!("{{bar:30}} {{percent:>3}} %  {known}  ETA {{eta}}"),
            None => format!("{{spinner}} {unknown}"),
        };
        let style = ProgressStyle::with_template(&template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
                // More a second than a u64 holds is not to be expected.
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a rate"
                )]
                let rate = state.per_sec() as u64;
                let _ = write!(out, "{}/s", grouped(rate));
            });
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(8));
        bar.set_style(style.progress_chars("=> "));
        bar.enable_steady_tick(Duration::from_millis(250));
        Self(Some(bar))
    }

    /// So far.
    pub(super) fn at(&self, position: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(position);
        }
    }

    /// Tells a person something, above the bar.
    pub(super) fn note(&self, text: fmt::Arguments<'_>) {
        match &self.0 {
            Some(bar) => bar.suspend(|| note(text)),
            None => note(text),
        }
    }

    /// Done: the bar goes, what follows tells.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
