//! What keeps a decision service from starting: one line, and nothing half-started.

use crate::stage::refused;
use std::{fs, net::TcpListener};

#[test]
fn a_start_that_cannot_be_says_why() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), "domain: ''\n").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let fine = tempfile::tempdir().unwrap();
    fs::write(fine.path().join("shop.yaml"), "domain: shop\n").unwrap();

    let cases = [
        (folder.path(), ("LOG_LEVEL", "info"), "shop.yaml: config file cannot have empty domain"),
        (
            &folder.path().join("nowhere"),
            ("LOG_LEVEL", "info"),
            "nowhere cannot be read: No such file or directory",
        ),
        (fine.path(), ("GRPC_PORT", port.as_str()), "is in use: stop what listens there"),
        (fine.path(), ("GRPC_PORT", "many"), "GRPC_PORT"),
        (fine.path(), ("SHADOW_MODE", "perhaps"), "SHADOW_MODE"),
        (fine.path(), ("REDIS_URL", "no address"), "no address"),
        (fine.path(), ("REDIS_TLS_CACERT", "ca.pem"), "REDIS_TLS_CACERT"),
    ];
    for (folder, variable, told) in cases {
        let (code, said) = refused(folder, &[variable]);
        assert_eq!(code, Some(2), "{variable:?} {said}");
        assert!(said.contains(told), "{told} in {said}");
    }
}
