//! Limits by descriptors: what files may say, and what is found for a request.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

mod errors;
mod files;
mod law;
mod matching;

use tidegate_policy::descriptors::{DescriptorError, DescriptorFile, DescriptorSet, Entry, Merge};

/// Reads one file.
fn read(text: &str) -> Result<DescriptorSet, DescriptorError> {
    read_all(&[("a.yaml", text)], Merge::Refuse)
}

fn read_all(files: &[(&str, &str)], merge: Merge) -> Result<DescriptorSet, DescriptorError> {
    let files: Vec<_> = files
        .iter()
        .map(|(name, text)| DescriptorFile { name: (*name).to_owned(), text: (*text).to_owned() })
        .collect();
    DescriptorSet::read(&files, merge)
}

/// `path=/a user=alice`
fn entries(text: &str) -> Vec<Entry> {
    let entry = |word: &str| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        Entry { key: key.to_owned(), value: value.to_owned() }
    };
    text.split_whitespace().map(entry).collect()
}

fn shown(entries: &[Entry]) -> String {
    entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect::<Vec<_>>().join(" ")
}
