//! What the kernel's files say, on machines made of a few files each.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::{fs, path::Path};
use tempfile::TempDir;
use tidegate_core::{Micros, Percent};
use tidegate_overload::load::{Cpu, Descriptors, Host, Memory, Probe, Stall};

/// A machine of files: `proc/...` and `cgroup/...`.
struct Machine {
    root: TempDir,
}

impl Machine {
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

    fn host(&self) -> Host {
        Host::at(self.root.path().join("proc"), self.root.path().join("cgroup"))
    }
}

fn second(second: u64) -> Micros {
    Micros::from_secs(second)
}

fn percent(percent: f64) -> Option<Percent> {
    Some(Percent::new(percent).unwrap())
}

const STAT_1: &str =
    "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 50 0 50 400 0 0 0 0 0 0\ncpu1 50 0 50 400 0 0 0 0 0 0\nintr 1 2\n";
/// In a hundred ticks more: one processor busy for 30 and robbed of 20, the other idle but for 10 of waiting for disks.
const STAT_2: &str = "cpu  120 0 110 940 10 0 0 20 0 0\ncpu0 70 0 60 450 0 0 0 20 0 0\ncpu1 50 0 50 490 10 0 0 0 0 0\nintr 1 2\n";

#[test]
fn the_processor_of_a_machine_without_cgroups() {
    let machine = Machine::new(&[("proc/stat", STAT_1)]);
    let mut cpu = Cpu::of(machine.host());
    assert_eq!(cpu.read(second(0)), None, "the first reading starts the count");
    machine.write(&[("proc/stat", STAT_2)]);
    assert_eq!(cpu.read(second(1)), percent(25.0));
    assert_eq!(cpu.read(second(2)), None, "no tick has passed");
}

#[test]
fn only_the_processors_count_that_the_process_may_run_on() {
    for (allowed, share) in
        [("0", 50.0), ("1", 0.0), ("0-1", 25.0), ("0,1", 25.0), ("0-63", 25.0), ("7", 25.0), ("?", 25.0)]
    {
        let status = format!("Name:\tserver\nCpus_allowed:\t3\nCpus_allowed_list:\t{allowed}\n");
        let machine = Machine::new(&[("proc/stat", STAT_1), ("proc/self/status", &status)]);
        let mut cpu = Cpu::of(machine.host());
        cpu.read(second(0));
        machine.write(&[("proc/stat", STAT_2)]);
        assert_eq!(cpu.read(second(1)), percent(share), "{allowed}");
    }
}

#[test]
fn a_quota_of_version_two_and_the_fullest_of_those_around_it() {
    let machine = Machine::new(&[
        ("proc/stat", STAT_1),
        ("proc/self/cgroup", "0::/app/worker\n"),
        ("cgroup/cgroup.controllers", "cpu memory\n"),
        ("cgroup/cpu.stat", "usage_usec 1\n"),
        ("cgroup/app/cpu.max", "50000 100000\n"),
        ("cgroup/app/cpu.stat", "usage_usec 1000000\nuser_usec 1\n"),
        ("cgroup/app/worker/cpu.max", "200000 100000\n"),
        ("cgroup/app/worker/cpu.stat", "usage_usec 1000000\n"),
    ]);
    let mut cpu = Cpu::of(machine.host());
    assert_eq!(cpu.read(second(0)), None);
    // The worker used 0.4 of 2 seconds; with its siblings, 0.45 of the half second that all may use.
    machine.write(&[
        ("cgroup/app/cpu.stat", "usage_usec 1450000\n"),
        ("cgroup/app/worker/cpu.stat", "usage_usec 1400000\n"),
    ]);
    assert_eq!(cpu.read(second(1)), percent(90.0));
    machine.write(&[("cgroup/app/cpu.max", "max 100000\n")]);
    assert_eq!(cpu.read(second(2)), percent(0.0), "only the worker's own is left, and idle");
    // A counter that starts anew says nothing; a broken file says nothing either.
    machine.write(&[("cgroup/app/worker/cpu.stat", "usage_usec 5\n")]);
    assert_eq!(cpu.read(second(3)), None);
    machine.write(&[("cgroup/app/worker/cpu.stat", "usage_usec many\n")]);
    assert_eq!(cpu.read(second(4)), None);
    machine.write(&[("cgroup/app/worker/cpu.stat", "usage_usec 600005\n")]);
    assert_eq!(cpu.read(second(5)), None, "starts anew");
    machine.write(&[("cgroup/app/worker/cpu.stat", "usage_usec 1600005\n")]);
    assert_eq!(cpu.read(second(6)), percent(50.0));
}

#[test]
fn a_quota_cannot_give_more_processors_than_there_are() {
    let machine = Machine::new(&[
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/status", "Cpus_allowed_list:\t0\n"),
        ("cgroup/cgroup.controllers", ""),
        ("cgroup/cpu.max", "400000 100000"),
        ("cgroup/cpu.stat", "usage_usec 0\n"),
    ]);
    let mut cpu = Cpu::of(machine.host());
    cpu.read(second(0));
    machine.write(&[("cgroup/cpu.stat", "usage_usec 900000\n")]);
    assert_eq!(cpu.read(second(1)), percent(90.0));
}

#[test]
fn a_quota_of_version_one_whatever_the_mounts_are_called() {
    for (cpu_mount, acct_mount) in
        [("cpu", "cpuacct"), ("cpu,cpuacct", "cpu,cpuacct"), ("cpuacct,cpu", "cpuacct,cpu")]
    {
        let names = if cpu_mount == "cpu" { "3:cpuacct:/app\n2:cpu:/app\n" } else { "2:cpu,cpuacct:/app\n" };
        let file = |mount: &str, name: &str| format!("cgroup/{mount}/{name}");
        let usage = file(acct_mount, "app/cpuacct.usage");
        let machine = Machine::new(&[
            ("proc/self/cgroup", &format!("4:memory:/\n{names}0::/\n")),
            (&file(cpu_mount, "cpu.cfs_quota_us"), "-1\n"),
            (&file(cpu_mount, "cpu.cfs_period_us"), "100000\n"),
            (&file(cpu_mount, "app/cpu.cfs_quota_us"), "50000\n"),
            (&file(cpu_mount, "app/cpu.cfs_period_us"), "100000\n"),
            (&usage, "1000000000\n"),
        ]);
        let mut cpu = Cpu::of(machine.host());
        assert_eq!(cpu.read(second(0)), None);
        machine.write(&[(&usage, "1250000000\n")]);
        assert_eq!(cpu.read(second(1)), percent(50.0), "{cpu_mount}");
    }
}

const MEMINFO: &str = "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     400 kB\n";

#[test]
fn the_memory_of_a_machine_without_a_limit() {
    let bare = Machine::new(&[("proc/meminfo", MEMINFO)]);
    assert_eq!(Memory::of(bare.host()).read(second(0)), percent(60.0));
    let unlimited = Machine::new(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "4:memory:/app\n0::/\n"),
        ("cgroup/memory/app/memory.limit_in_bytes", "9223372036854771712\n"),
        ("cgroup/memory/app/memory.usage_in_bytes", "1\n"),
    ]);
    assert_eq!(Memory::of(unlimited.host()).read(second(0)), percent(60.0));
}

#[test]
fn the_tightest_memory_limit_counts_without_cached_files() {
    let machine = Machine::new(&[
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
    let mut memory = Memory::of(machine.host());
    assert_eq!(memory.read(second(0)), percent(80.0));
    machine.write(&[("cgroup/app/worker/memory.current", "95000\n")]);
    assert_eq!(memory.read(second(1)), percent(95.0));
    machine.write(&[("cgroup/app/worker/memory.stat", "inactive_file 99999999\n")]);
    assert_eq!(memory.read(second(2)), percent(80.0), "no less than nothing is used");
}

#[test]
fn memory_of_version_one_in_a_container_that_sees_itself_as_the_root() {
    let machine = Machine::new(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "4:memory:/docker/0123\n0::/\n"),
        ("cgroup/memory/memory.limit_in_bytes", "100000\n"),
        ("cgroup/memory/memory.usage_in_bytes", "90000\n"),
        (
            "cgroup/memory/memory.stat",
            "inactive_file 1\ntotal_inactive_file 20000\ntotal_active_file 10000\n",
        ),
    ]);
    assert_eq!(Memory::of(machine.host()).read(second(0)), percent(60.0));
    machine.write(&[("proc/self/cgroup", "4:memory:/../../elsewhere\n")]);
    assert_eq!(Memory::of(machine.host()).read(second(0)), percent(60.0));
}

fn stalled(total: u64) -> String {
    format!(
        "some avg10=99.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    )
}

#[test]
fn stalls_of_the_cgroup_and_else_of_the_machine() {
    // Kernels before 5.13 have no second line for the processor.
    let machine =
        Machine::new(&[("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n")]);
    let mut cpu = Stall::cpu().of(machine.host());
    assert_eq!(cpu.read(second(0)), None);
    machine.write(&[("proc/pressure/cpu", &stalled(251_000))]);
    assert_eq!(cpu.read(second(1)), percent(25.0));
    assert_eq!(cpu.read(second(1)), None, "no time has passed");
    assert_eq!(Stall::memory().of(machine.host()).read(second(0)), None, "no such file");

    for (mount, membership) in [("cgroup", "0::/app\n"), ("cgroup/unified", "1:cpu:/\n0::/app\n")] {
        let own = format!("{mount}/app/io.pressure");
        let machine = Machine::new(&[
            ("proc/pressure/io", &stalled(0)),
            ("proc/self/cgroup", membership),
            (&format!("{mount}/cgroup.controllers"), ""),
            (&own, &stalled(0)),
        ]);
        let mut io = Stall::io().of(machine.host());
        io.read(second(0));
        machine.write(&[("proc/pressure/io", &stalled(900_000)), (&own, &stalled(100_000))]);
        assert_eq!(io.read(second(1)), percent(10.0), "{mount}");
    }
}

#[test]
fn descriptors_of_the_soft_limit() {
    let limits = |soft: &str| {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            {soft}                 4096                 files     \n\
             Max nice priority         0                    0                    \n"
        )
    };
    let machine =
        Machine::new(&[("proc/self/limits", &limits("8")), ("proc/self/fd/0", ""), ("proc/self/fd/1", "")]);
    let mut descriptors = Descriptors::of(machine.host());
    assert_eq!(descriptors.read(second(0)), percent(25.0));
    machine.write(&[("proc/self/fd/2", ""), ("proc/self/fd/3", "")]);
    assert_eq!(descriptors.read(second(0)), percent(50.0));
    machine.write(&[("proc/self/limits", &limits("unlimited"))]);
    assert_eq!(descriptors.read(second(0)), None);
}

/// Every file that a probe reads, full of every kind of nonsense: no signal, and no panic.
#[test]
fn nonsense_is_no_signal() {
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
                Machine::new(&[("proc/self/cgroup", membership), ("cgroup/cgroup.controllers", "")]);
            for file in files {
                machine.write(&[(file, nonsense)]);
            }
            let host = machine.host();
            let mut probes: [Box<dyn Probe>; 4] = [
                Box::new(Cpu::of(host.clone())),
                Box::new(Memory::of(host.clone())),
                Box::new(Stall::cpu().of(host.clone())),
                Box::new(Descriptors::of(host)),
            ];
            for at in 0..3 {
                for (place, probe) in probes.iter_mut().enumerate() {
                    assert_eq!(probe.read(second(at)), None, "probe {place} of {nonsense:?}");
                }
            }
        }
    }
    let nothing = Machine::new(&[]);
    assert_eq!(Cpu::of(nothing.host()).read(second(0)), None);
    fs::create_dir_all(nothing.root.path().join("proc")).unwrap();
    fs::write(nothing.root.path().join("proc/stat"), [0xff, 0xfe, 0x00]).unwrap();
    assert_eq!(Cpu::of(nothing.host()).read(second(0)), None);
}

/// On whatever machine this runs: a share, or nothing, and the same signals at every reading.
#[test]
fn this_machine_says_something_plausible() {
    let mut probes: Vec<(&str, Box<dyn Probe>)> = vec![
        ("cpu", Box::new(Cpu::new())),
        ("memory", Box::new(Memory::new())),
        ("descriptors", Box::new(Descriptors::new())),
        ("cpu stall", Box::new(Stall::cpu())),
        ("memory stall", Box::new(Stall::memory())),
        ("io stall", Box::new(Stall::io())),
    ];
    for at in 1..4 {
        for (name, probe) in &mut probes {
            let share = probe.read(second(at));
            println!("{name} at {at}: {share:?}");
            assert!(share.is_none_or(|share| share <= Percent::FULL));
        }
    }
    if cfg!(target_os = "linux") {
        let memory = Memory::new().read(second(0)).unwrap();
        let descriptors = Descriptors::new().read(second(0)).unwrap();
        assert!(memory > Percent::ZERO && memory < Percent::FULL, "{memory}");
        assert!(descriptors > Percent::ZERO && descriptors < Percent::FULL, "{descriptors}");
    }
}
