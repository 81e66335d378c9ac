//! Configuration reloads of the rate limit service.

use crate::common::ServiceProcess;
use std::fs;
use tidegate_testkit::servers::wait_until;

const LIMIT_CONFIG: &str =
    "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: year, requests_per_unit: 2 }\n";

#[test]
fn valid_config_is_reloaded_and_invalid_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.yaml");
    fs::write(&file, LIMIT_CONFIG).unwrap();
    let service = ServiceProcess::start(folder.path(), &[]);
    let check = || service.check(&[("user", "alice")]);
    assert_eq!([check(), check(), check()], ["200", "200", "429"]);

    fs::write(&file, LIMIT_CONFIG.replace("unit: year", "unit: fortnight")).unwrap();
    wait_until("the error is counted", || {
        let stats = service.get_page("stats");
        stats.contains("config_load_error: 1").then_some(()).ok_or(stats)
    })
    .unwrap();
    assert_eq!(check(), "429");

    // Counters survive the reload.
    fs::write(folder.path().join("new"), LIMIT_CONFIG.replace("unit: 2", "unit: 6")).unwrap();
    fs::rename(folder.path().join("new"), &file).unwrap();
    wait_until("the new limit is active", || {
        let limits = service.get_page("rlconfig");
        limits.contains("shop.user: unit=YEAR requests_per_unit=6,").then_some(()).ok_or(limits)
    })
    .unwrap();
    assert_eq!([check(), check(), check()], ["200", "200", "429"], "four were counted before");
}
