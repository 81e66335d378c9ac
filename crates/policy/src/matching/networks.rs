//! Networks of clients, and the address lists of a policy.

use crate::model::{Network, Policy};
use arc_swap::ArcSwap;
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    sync::Arc,
};
use tidegate_access::{AccessList, AccessListBuilder, AccessMatch, ListAction, Prefix};
use tidegate_core::SettingError;

/// The address lists of a policy. Lists from files can be reloaded. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    lists: Arc<BTreeMap<String, NamedList>>,
}

#[derive(Debug)]
struct NamedList {
    networks: Vec<Prefix>,
    files: Vec<PathBuf>,
    content: Arc<ArcSwap<ListContent>>,
}

/// The content of a list: a table for lookups, and its prefixes for inclusion in other lists.
#[derive(Debug, Default)]
pub(crate) struct ListContent {
    access_list: AccessList,
    prefixes: Vec<(ListAction, Prefix)>,
}

/// The name of the list of all addresses.
const ALL_LIST: &str = "all";

impl Lists {
    /// Reads the lists of a policy and their files, which are relative to `base`. Returns all errors.
    pub fn read(policy: &Policy, base: &Path) -> Result<Self, Vec<SettingError>> {
        let (lists, errors) = Self::read_all(policy, base);
        if errors.is_empty() { Ok(lists) } else { Err(errors.into_iter().map(|(_, error)| error).collect()) }
    }

    /// Like [`Lists::read`], with an empty list for each invalid one, so that references to it cause no further errors.
    pub(crate) fn read_all(policy: &Policy, base: &Path) -> (Self, Vec<(String, SettingError)>) {
        let (mut named, mut errors) = (BTreeMap::new(), Vec::new());
        for (name, list) in &policy.lists {
            let files: Vec<_> = list.files.iter().map(|file| base.join(file)).collect();
            let content = load_list(name, &list.networks, &files).unwrap_or_else(|error| {
                errors.push((name.clone(), error));
                ListContent::default()
            });
            let now = Arc::new(ArcSwap::from_pointee(content));
            named.insert(name.clone(), NamedList { networks: list.networks.clone(), files, content: now });
        }
        (Self { lists: Arc::new(named) }, errors)
    }

    /// Reloads all files. A list with an invalid file keeps its content, and its error is returned.
    pub fn reload(&self) -> Result<(), Vec<SettingError>> {
        let mut errors = Vec::new();
        for (name, list) in self.lists.iter().filter(|(_, list)| !list.files.is_empty()) {
            match load_list(name, &list.networks, &list.files) {
                Ok(content) => list.content.store(Arc::new(content)),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// The files to watch for changes.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.lists.values().flat_map(|list| list.files.iter().map(PathBuf::as_path))
    }

    fn get(&self, name: &str) -> Result<&Arc<ArcSwap<ListContent>>, SettingError> {
        self.lists.get(name).map(|list| &list.content).ok_or_else(|| {
            let known: Vec<_> = self.lists.keys().map(String::as_str).chain([ALL_LIST]).collect();
            SettingError::new(format!("unknown list `{name}`"), format!("use one of {}", known.join(", ")))
        })
    }

    /// Expands networks and lists to entries of a table.
    pub(crate) fn entries(
        &self,
        networks: &[Network],
        action: ListAction,
    ) -> Result<Vec<(ListAction, Prefix)>, SettingError> {
        let mut entries = Vec::new();
        for network in networks {
            match network {
                Network::Prefix(prefix) => entries.push((action, *prefix)),
                Network::List(name) if name == ALL_LIST => {
                    entries.extend(all_prefixes().map(|prefix| (action, prefix)));
                }
                Network::List(name) => {
                    let list = self.get(name)?.load();
                    // Exclusions of a list (`!`) are not included.
                    let allowed = list.prefixes.iter().filter(|(listed, _)| *listed == ListAction::Allow);
                    entries.extend(allowed.map(|(_, prefix)| (action, *prefix)));
                }
            }
        }
        Ok(entries)
    }
}

fn all_prefixes() -> impl Iterator<Item = Prefix> {
    let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    all.into_iter().filter_map(|first| Prefix::new(first, 0).ok())
}

/// Builds a list from its networks and its files, which have one network per line.
fn load_list(name: &str, networks: &[Prefix], files: &[PathBuf]) -> Result<ListContent, SettingError> {
    let mut prefixes: Vec<_> = networks.iter().map(|prefix| (ListAction::Allow, *prefix)).collect();
    for file in files {
        let shown = file.display();
        let text = read_file(file).map_err(|error| {
            SettingError::new(
                format!("list `{name}`: cannot read `{shown}`: {error}"),
                "check the path and its permissions",
            )
        })?;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let (action, network) = match line.strip_prefix('!') {
                Some(network) => (ListAction::Deny, network.trim()),
                None => (ListAction::Allow, line),
            };
            let prefix = network.parse::<Prefix>().map_err(|error| {
                let problem = format!("list `{name}`: {shown}, line {number}: {}", error.problem());
                SettingError::new(problem, error.fix())
            })?;
            prefixes.push((action, prefix));
        }
    }
    let table = access_list_from_entries(prefixes.iter().copied());
    let table = table
        .map_err(|error| SettingError::new(format!("list `{name}`: {}", error.problem()), error.fix()))?;
    Ok(ListContent { access_list: table, prefixes })
}

/// The maximum size of a list file.
const MAX_LIST_FILE_BYTES: u64 = 64 << 20;

/// Reads a regular file up to the maximum size. Devices and pipes could block or never end.
fn read_file(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_LIST_FILE_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_LIST_FILE_BYTES {
        true => Err(io::Error::other("file larger than 64 MiB")),
        false => Ok(text),
    }
}

/// Builds a table from entries. The longest prefix wins.
pub(crate) fn access_list_from_entries(
    entries: impl IntoIterator<Item = (ListAction, Prefix)>,
) -> Result<AccessList, SettingError> {
    let add = |list: AccessListBuilder, (action, prefix)| match action {
        ListAction::Allow => list.allow(prefix),
        ListAction::Deny => list.deny(prefix),
    };
    let built = entries.into_iter().fold(AccessList::builder(), add).build();
    built.map_err(|error| to_setting_error(&error.to_string(), "remove one of them"))
}

/// Converts the message of an error, which often contains its fix; otherwise uses this fix.
pub(crate) fn to_setting_error(text: &str, fix: &str) -> SettingError {
    let text = text.replace('\n', "; ");
    match text.rsplit_once("; ") {
        Some((problem, fix)) => SettingError::new(problem, fix),
        None => SettingError::new(text, fix),
    }
}

/// The networks of a `client` condition.
#[derive(Clone, Debug)]
pub(crate) struct Networks {
    inline: Option<Arc<AccessList>>,
    lists: Vec<Arc<ArcSwap<ListContent>>>,
}

impl Networks {
    pub(crate) fn new(networks: &[Network], lists: &Lists) -> Result<Self, SettingError> {
        let (mut inline, mut named) = (Vec::new(), Vec::new());
        for network in networks {
            match network {
                Network::List(name) if name != ALL_LIST => named.push(lists.get(name)?.clone()),
                network => inline.extend(lists.entries(std::slice::from_ref(network), ListAction::Allow)?),
            }
        }
        let inline = if inline.is_empty() { None } else { Some(Arc::new(access_list_from_entries(inline)?)) };
        Ok(Self { inline, lists: named })
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let is_in = |table: &AccessList| table.check(address) == AccessMatch::Allowed;
        self.inline.as_deref().is_some_and(is_in)
            || self.lists.iter().any(|list| is_in(&list.load().access_list))
    }
}
