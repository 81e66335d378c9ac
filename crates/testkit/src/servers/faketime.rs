use std::{
    fs,
    path::{Path, PathBuf},
};

/// The path of libfaketime, if it is installed. A program that loads it with `LD_PRELOAD` has the clock that the variable
/// `FAKETIME` or a file declares.
///
/// The library creates shared memory that is named after its process. A process that is killed leaves it behind, and a
/// later process with the same number cannot create it. So this function removes that of processes that have ended.
pub fn faketime_library() -> Option<PathBuf> {
    remove_shared_memory_of_ended_processes();
    let folders = fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    folders.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|library| library.exists())
}

fn remove_shared_memory_of_ended_processes() {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix("sem.faketime_sem_").or_else(|| name.strip_prefix("faketime_shm_"));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another test may have removed it.
            let _ignored = fs::remove_file(entry.path());
        }
    }
}
