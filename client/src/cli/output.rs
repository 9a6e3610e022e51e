//! Tables for people, JSON for scripts.

use std::{
    fmt,
    io::{self, Write},
};

use bytesize::ByteSize;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::HumanCount;
use serde::Serialize;

/// Prints one JSON value on a line of its own.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    write_json(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Writes one JSON value. A failed write is told as such, not as a fault of the value.
pub(super) fn write_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(out, value).map_err(io::Error::from)
}

/// Prints a line; a closed pipe is an error, where `println` would panic.
pub(super) fn line(text: fmt::Arguments<'_>) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Tells a person something on standard error. If that is closed, nobody wants to know.
pub(super) fn note(text: fmt::Arguments<'_>) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// A table without lines; the columns named in `numbers` are set to the right.
pub(super) fn table(headings: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(headings.to_vec());
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Prints a table, without the blanks that fill its last column.
pub(super) fn print(table: &Table) -> io::Result<()> {
    let mut out = io::stdout().lock();
    table
        .lines()
        .try_for_each(|line| writeln!(out, "{}", line.trim_end()))
}

/// A size for people.
pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// A limit for people: -1 is none.
pub(super) fn limit(limit: i64, show: impl Fn(u64) -> String) -> String {
    u64::try_from(limit).map_or_else(|_| "unlimited".to_owned(), show)
}

/// A number with a comma before each third digit.
pub(super) fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A number of records.
pub(super) fn records(number: u64) -> String {
    count(number, "record")
}

/// A number of something whose name takes an s.
pub(super) fn count(number: u64, one: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {one}{s}", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(count(1, "segment"), "1 segment");
        assert_eq!(count(2000, "segment"), "2,000 segments");
    }
}
