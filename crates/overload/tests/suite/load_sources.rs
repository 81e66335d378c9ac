//! The probes on fake hosts of a few files each.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{fs, path::Path};
use tempfile::TempDir;
use tidegate_core::{Micros, Percent};
use tidegate_overload::load::{CpuLoad, FileDescriptorLoad, HostPaths, LoadSource, MemoryLoad, PressureLoad};

/// A host of files: `proc/...` and `cgroup/...`.
struct FakeHost {
    root: TempDir,
}

impl FakeHost {
    fn new(files: &[(&str, &str)]) -> Self {
        let machine = Self { root: tempfile::tempdir().unwrap() };
        machine.write(files);
        machine
    }

    fn write(&self, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn paths(&self) -> HostPaths {
        HostPaths::new(self.root.path().join("proc"), self.root.path().join("cgroup"))
    }
}

fn seconds(second: u64) -> Micros {
    Micros::from_secs(second)
}

fn percent(percent: f64) -> Option<Percent> {
    Some(Percent::new(percent).unwrap())
}

const STAT_1: &str =
    "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 50 0 50 400 0 0 0 0 0 0\ncpu1 50 0 50 400 0 0 0 0 0 0\nintr 1 2\n";
/// A hundred ticks later: one CPU was busy for 30 and stolen for 20, the other idle except for 10 of I/O
/// wait.
const STAT_2: &str = "cpu  120 0 110 940 10 0 0 20 0 0\ncpu0 70 0 60 450 0 0 0 20 0 0\ncpu1 50 0 50 490 10 0 0 0 0 0\nintr 1 2\n";

#[test]
fn cpu_without_cgroups() {
    let machine = FakeHost::new(&[("proc/stat", STAT_1)]);
    let mut cpu = CpuLoad::with_host(machine.paths());
    assert_eq!(cpu.read(seconds(0)), None, "the first reading sets the baseline");
    machine.write(&[("proc/stat", STAT_2)]);
    assert_eq!(cpu.read(seconds(1)), percent(25.0));
    assert_eq!(cpu.read(seconds(2)), None, "no tick has passed");
}

#[test]
fn cpu_counts_allowed_cpus_only() {
    for (allowed, share) in
        [("0", 50.0), ("1", 0.0), ("0-1", 25.0), ("0,1", 25.0), ("0-63", 25.0), ("7", 25.0), ("?", 25.0)]
    {
        let status = format!("Name:\tserver\nCpus_allowed:\t3\nCpus_allowed_list:\t{allowed}\n");
        let machine = FakeHost::new(&[("proc/stat", STAT_1), ("proc/self/status", &status)]);
        let mut cpu = CpuLoad::with_host(machine.paths());
        cpu.read(seconds(0));
        machine.write(&[("proc/stat", STAT_2)]);
        assert_eq!(cpu.read(seconds(1)), percent(share), "{allowed}");
    }
}

#[test]
fn cpu_quota_of_cgroup_v2_uses_fullest_ancestor() {
    let machine = FakeHost::new(&[
        ("proc/stat", STAT_1),
        ("proc/self/cgroup", "0::/app/worker\n"),
        ("cgroup/cgroup.controllers", "cpu memory\n"),
        ("cgroup/cpu.stat", "usage_usec 1\n"),
        ("cgroup/app/cpu.max", "50000 100000\n"),
        ("cgroup/app/cpu.stat", "usage_usec 1000000\nuser_usec 1\n"),
        ("cgroup/app/worker/cpu.max", "200000 100000\n"),
        ("cgroup/app/worker/cpu.stat", "usage_usec 1000000\n"),
    ]);
    let mut cpu = CpuLoad::with_host(machine.paths());
    assert_eq!(cpu.read(seconds(0)), None);
    // The worker used 0.4 of 2 seconds; with its siblings, 0.45 of the half second that all may use.
    machine.write(&[
        ("cgroup/app/cpu.stat", "usage_usec 1450000\n"),
        ("cgroup/app/worker/cpu.stat", "usage_usec 1400000\n"),
    ]);
    assert_eq!(cpu.read(seconds(1)), percent(90.0));
    machine.write(&[("cgroup/app/cpu.max", "max 100000\n")]);
    assert_eq!(cpu.read(seconds(2)), percent(0.0), "only the worker's own quota is left, and it is idle");
    // A counter that restarts gives no reading; neither does a malformed file.
    machine.write(&[("cgroup/app/worker/cpu.stat", "usage_usec 5\n")]);
    assert_eq!(cpu.read(seconds(3)), None);
    machine.write(&[("cgroup/app/worker/cpu.stat", "usage_usec many\n")]);
    assert_eq!(cpu.read(seconds(4)), None);
    machine.write(&[("cgroup/app/worker/cpu.stat", "usage_usec 600005\n")]);
    assert_eq!(cpu.read(seconds(5)), None, "a new baseline");
    machine.write(&[("cgroup/app/worker/cpu.stat", "usage_usec 1600005\n")]);
    assert_eq!(cpu.read(seconds(6)), percent(50.0));
}

#[test]
fn cpu_quota_is_capped_by_cpu_count() {
    let machine = FakeHost::new(&[
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/status", "Cpus_allowed_list:\t0\n"),
        ("cgroup/cgroup.controllers", ""),
        ("cgroup/cpu.max", "400000 100000"),
        ("cgroup/cpu.stat", "usage_usec 0\n"),
    ]);
    let mut cpu = CpuLoad::with_host(machine.paths());
    cpu.read(seconds(0));
    machine.write(&[("cgroup/cpu.stat", "usage_usec 900000\n")]);
    assert_eq!(cpu.read(seconds(1)), percent(90.0));
}

#[test]
fn cpu_quota_of_cgroup_v1_finds_any_mount_name() {
    for (cpu_mount, acct_mount) in
        [("cpu", "cpuacct"), ("cpu,cpuacct", "cpu,cpuacct"), ("cpuacct,cpu", "cpuacct,cpu")]
    {
        let names = if cpu_mount == "cpu" { "3:cpuacct:/app\n2:cpu:/app\n" } else { "2:cpu,cpuacct:/app\n" };
        let file = |mount: &str, name: &str| format!("cgroup/{mount}/{name}");
        let usage = file(acct_mount, "app/cpuacct.usage");
        let machine = FakeHost::new(&[
            ("proc/self/cgroup", &format!("4:memory:/\n{names}0::/\n")),
            (&file(cpu_mount, "cpu.cfs_quota_us"), "-1\n"),
            (&file(cpu_mount, "cpu.cfs_period_us"), "100000\n"),
            (&file(cpu_mount, "app/cpu.cfs_quota_us"), "50000\n"),
            (&file(cpu_mount, "app/cpu.cfs_period_us"), "100000\n"),
            (&usage, "1000000000\n"),
        ]);
        let mut cpu = CpuLoad::with_host(machine.paths());
        assert_eq!(cpu.read(seconds(0)), None);
        machine.write(&[(&usage, "1250000000\n")]);
        assert_eq!(cpu.read(seconds(1)), percent(50.0), "{cpu_mount}");
    }
}

const MEMINFO: &str = "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     400 kB\n";

#[test]
fn memory_without_limit() {
    let bare = FakeHost::new(&[("proc/meminfo", MEMINFO)]);
    assert_eq!(MemoryLoad::with_host(bare.paths()).read(seconds(0)), percent(60.0));
    let unlimited = FakeHost::new(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "4:memory:/app\n0::/\n"),
        ("cgroup/memory/app/memory.limit_in_bytes", "9223372036854771712\n"),
        ("cgroup/memory/app/memory.usage_in_bytes", "1\n"),
    ]);
    assert_eq!(MemoryLoad::with_host(unlimited.paths()).read(seconds(0)), percent(60.0));
}

#[test]
fn memory_uses_tightest_limit_without_page_cache() {
    let machine = FakeHost::new(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "0::/app/worker\n"),
        ("cgroup/cgroup.controllers", "memory\n"),
        ("cgroup/app/memory.max", "200000\n"),
        ("cgroup/app/memory.current", "190000\n"),
        ("cgroup/app/memory.stat", "anon 1\ninactive_file 20000\nactive_file 5000\nslab_reclaimable 5000\n"),
        ("cgroup/app/worker/memory.max", "max\n"),
        ("cgroup/app/worker/memory.high", "100000\n"),
        ("cgroup/app/worker/memory.current", "50000\n"),
    ]);
    let mut memory = MemoryLoad::with_host(machine.paths());
    assert_eq!(memory.read(seconds(0)), percent(80.0));
    machine.write(&[("cgroup/app/worker/memory.current", "95000\n")]);
    assert_eq!(memory.read(seconds(1)), percent(95.0));
    machine.write(&[("cgroup/app/worker/memory.stat", "inactive_file 99999999\n")]);
    assert_eq!(memory.read(seconds(2)), percent(80.0), "usage does not go below zero");
}

#[test]
fn memory_of_cgroup_v1_in_container_root() {
    let machine = FakeHost::new(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "4:memory:/docker/0123\n0::/\n"),
        ("cgroup/memory/memory.limit_in_bytes", "100000\n"),
        ("cgroup/memory/memory.usage_in_bytes", "90000\n"),
        (
            "cgroup/memory/memory.stat",
            "inactive_file 1\ntotal_inactive_file 20000\ntotal_active_file 10000\n",
        ),
    ]);
    assert_eq!(MemoryLoad::with_host(machine.paths()).read(seconds(0)), percent(60.0));
    machine.write(&[("proc/self/cgroup", "4:memory:/../../elsewhere\n")]);
    assert_eq!(MemoryLoad::with_host(machine.paths()).read(seconds(0)), percent(60.0));
}

fn pressure_file(total: u64) -> String {
    format!(
        "some avg10=99.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    )
}

#[test]
fn pressure_of_cgroup_then_machine() {
    // Kernels before 5.13 have no second line for the CPU.
    let machine =
        FakeHost::new(&[("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n")]);
    let mut cpu = PressureLoad::cpu().with_host(machine.paths());
    assert_eq!(cpu.read(seconds(0)), None);
    machine.write(&[("proc/pressure/cpu", &pressure_file(251_000))]);
    assert_eq!(cpu.read(seconds(1)), percent(25.0));
    assert_eq!(cpu.read(seconds(1)), None, "no time has passed");
    assert_eq!(PressureLoad::memory().with_host(machine.paths()).read(seconds(0)), None, "no such file");

    for (mount, membership) in [("cgroup", "0::/app\n"), ("cgroup/unified", "1:cpu:/\n0::/app\n")] {
        let own = format!("{mount}/app/io.pressure");
        let machine = FakeHost::new(&[
            ("proc/pressure/io", &pressure_file(0)),
            ("proc/self/cgroup", membership),
            (&format!("{mount}/cgroup.controllers"), ""),
            (&own, &pressure_file(0)),
        ]);
        let mut io = PressureLoad::io().with_host(machine.paths());
        io.read(seconds(0));
        machine.write(&[("proc/pressure/io", &pressure_file(900_000)), (&own, &pressure_file(100_000))]);
        assert_eq!(io.read(seconds(1)), percent(10.0), "{mount}");
    }
}

#[test]
fn file_descriptors_use_soft_limit() {
    let limits = |soft: &str| {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            {soft}                 4096                 files     \n\
             Max nice priority         0                    0                    \n"
        )
    };
    let machine =
        FakeHost::new(&[("proc/self/limits", &limits("8")), ("proc/self/fd/0", ""), ("proc/self/fd/1", "")]);
    let mut descriptors = FileDescriptorLoad::with_host(machine.paths());
    assert_eq!(descriptors.read(seconds(0)), percent(25.0));
    machine.write(&[("proc/self/fd/2", ""), ("proc/self/fd/3", "")]);
    assert_eq!(descriptors.read(seconds(0)), percent(50.0));
    machine.write(&[("proc/self/limits", &limits("unlimited"))]);
    assert_eq!(descriptors.read(seconds(0)), None);
}

/// Every file that a probe reads, with malformed content: no signal, and no panic.
#[test]
fn malformed_files_give_no_signal() {
    let files = [
        "proc/stat",
        "proc/meminfo",
        "proc/pressure/cpu",
        "proc/self/status",
        "proc/self/limits",
        "cgroup/cpu.max",
        "cgroup/cpu.stat",
        "cgroup/memory.max",
        "cgroup/memory.high",
        "cgroup/memory.current",
        "cgroup/memory.stat",
        "cgroup/cpu.pressure",
    ];
    for nonsense in [
        "",
        "\n",
        "cpu",
        "cpu x y z\n",
        "some total=\n",
        "some total=-1",
        "-1 0",
        "0 0",
        "MemTotal: 0 kB\nMemAvailable: ü",
        "Größe\u{fc} 1",
        ":::",
        "99999999999999999999999 1",
    ] {
        for membership in ["0::/\n", "garbage", "::", "1:cpu,memory:/x\n", "0::/a/../../b\n"] {
            let machine =
                FakeHost::new(&[("proc/self/cgroup", membership), ("cgroup/cgroup.controllers", "")]);
            for file in files {
                machine.write(&[(file, nonsense)]);
            }
            let host = machine.paths();
            let mut sources: [Box<dyn LoadSource>; 4] = [
                Box::new(CpuLoad::with_host(host.clone())),
                Box::new(MemoryLoad::with_host(host.clone())),
                Box::new(PressureLoad::cpu().with_host(host.clone())),
                Box::new(FileDescriptorLoad::with_host(host)),
            ];
            for at in 0..3 {
                for (index, source) in sources.iter_mut().enumerate() {
                    assert_eq!(source.read(seconds(at)), None, "source {index} of {nonsense:?}");
                }
            }
        }
    }
    let nothing = FakeHost::new(&[]);
    assert_eq!(CpuLoad::with_host(nothing.paths()).read(seconds(0)), None);
    fs::create_dir_all(nothing.root.path().join("proc")).unwrap();
    fs::write(nothing.root.path().join("proc/stat"), [0xff, 0xfe, 0x00]).unwrap();
    assert_eq!(CpuLoad::with_host(nothing.paths()).read(seconds(0)), None);
}

/// On the machine of the test: a percentage or no signal at each reading.
#[test]
fn local_host_readings_are_plausible() {
    let mut sources: Vec<(&str, Box<dyn LoadSource>)> = vec![
        ("cpu", Box::new(CpuLoad::new())),
        ("memory", Box::new(MemoryLoad::new())),
        ("descriptors", Box::new(FileDescriptorLoad::new())),
        ("cpu-stall", Box::new(PressureLoad::cpu())),
        ("memory-stall", Box::new(PressureLoad::memory())),
        ("io-stall", Box::new(PressureLoad::io())),
    ];
    for at in 1..4 {
        for (name, source) in &mut sources {
            let share = source.read(seconds(at));
            println!("{name} at {at}: {share:?}");
            assert!(share.is_none_or(|share| share <= Percent::FULL));
        }
    }
    if cfg!(target_os = "linux") {
        let memory = MemoryLoad::new().read(seconds(0)).unwrap();
        let descriptors = FileDescriptorLoad::new().read(seconds(0)).unwrap();
        assert!(memory > Percent::ZERO && memory < Percent::FULL, "{memory}");
        assert!(descriptors > Percent::ZERO && descriptors < Percent::FULL, "{descriptors}");
    }
}
