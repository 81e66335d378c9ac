//! Descriptor files, and the limits that apply to a request.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

mod errors;
mod files;
mod matching;
mod properties;

use tidegate_policy::descriptors::{
    DescriptorEntry, DescriptorError, DescriptorFile, DescriptorSet, DomainMerge,
};

/// Reads one file.
fn read(text: &str) -> Result<DescriptorSet, DescriptorError> {
    read_all(&[("a.yaml", text)], DomainMerge::Reject)
}

fn read_all(files: &[(&str, &str)], merge: DomainMerge) -> Result<DescriptorSet, DescriptorError> {
    let files: Vec<_> = files
        .iter()
        .map(|(name, text)| DescriptorFile { name: (*name).to_owned(), text: (*text).to_owned() })
        .collect();
    DescriptorSet::read(&files, merge)
}

/// Parses `path=/a user=alice`.
fn entries(text: &str) -> Vec<DescriptorEntry> {
    let entry = |word: &str| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        DescriptorEntry { key: key.to_owned(), value: value.to_owned() }
    };
    text.split_whitespace().map(entry).collect()
}

fn format_entries(entries: &[DescriptorEntry]) -> String {
    entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect::<Vec<_>>().join(" ")
}
