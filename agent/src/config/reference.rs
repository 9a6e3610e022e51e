//! The configuration reference, made from the table of keys.

use std::fmt::Write;

use super::keys::KEYS;

/// Returns `docs/config.md`.
pub fn reference() -> String {
    let mut page = String::from(
        "# Settings of esker-agent\n\n\
         Each can be given as a key of the TOML file (`--config FILE`), as an environment variable \
         or as a flag; a later one of these wins. `esker-agent config` prints this page.\n",
    );
    let mut group = "";
    for key in KEYS {
        if key.group != group {
            group = key.group;
            let _ = write!(
                page,
                "\n## {group}\n\n| key and flag | environment | default | meaning |\n|---|---|---|---|\n"
            );
        }
        let default = if key.default.is_empty() {
            String::new()
        } else {
            format!("`{}`", key.default)
        };
        let doc = key.doc.replace('|', "\\|");
        let _ = writeln!(
            page,
            "| `{}` | `{}` | {default} | {doc} |",
            key.name,
            key.env()
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_the_table_says() {
        let page = include_str!("../../../docs/config.md");
        assert_eq!(
            page,
            reference(),
            "write it anew: esker-agent config > docs/config.md"
        );
    }
}
