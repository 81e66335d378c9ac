//! The generated code is current.

use prost::Message;
use std::{collections::BTreeMap, env, fs, path::Path};

/// The files with services; the others are their imports.
const PROTO_ROOTS: [&str; 3] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/service/discovery/v3/ads.proto",
    "ratelimit/config/ratelimit/v3/rls_conf.proto",
];

#[test]
fn checked_in_code_is_current() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checked_in = crate_root.join("src/generated");
    let now = generate(&crate_root.join("proto"));
    if env::var_os("TIDEGATE_BLESS").is_some() {
        let _ = fs::remove_dir_all(&checked_in);
        fs::create_dir_all(&checked_in).unwrap();
        for (name, content) in &now {
            fs::write(checked_in.join(name), content).unwrap();
        }
    }
    let before = read_files(&checked_in);
    let (now_names, names): (Vec<_>, Vec<_>) = (now.keys().collect(), before.keys().collect());
    assert_eq!(names, now_names, "files under src/generated; TIDEGATE_BLESS=1 writes them");
    for (name, content) in &now {
        assert!(before[name] == *content, "{name} is out of date; TIDEGATE_BLESS=1 writes it");
    }
}

/// The names and contents of all generated files.
fn generate(from: &Path) -> BTreeMap<String, Vec<u8>> {
    let into = tempfile::tempdir().unwrap();
    let all = protox::compile(PROTO_ROOTS, [from]).unwrap();
    let mut messages = prost_build::Config::new();
    messages.enable_type_names().type_name_domain(["."], "type.googleapis.com");
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(into.path())
        .compile_fds_with_config(all, messages)
        .unwrap();
    let mut generated = read_files(into.path());

    // For gRPC reflection: without comments, and only the served files.
    let mut service = protox::compile([PROTO_ROOTS[0]], [from]).unwrap();
    service.file.iter_mut().for_each(|file| file.source_code_info = None);
    generated.insert("rls.bin".to_owned(), service.encode_to_vec());
    generated
}

fn read_files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    // `type` is a keyword and therefore escaped, which file names do not need.
    let name = |file: &fs::DirEntry| file.file_name().into_string().unwrap().replace("r#", "");
    files.map(|file| (name(&file), fs::read(file.path()).unwrap())).collect()
}
