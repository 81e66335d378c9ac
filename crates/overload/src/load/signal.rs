//! The signals of this machine, by name.

use super::{
    CpuLoad, FileDescriptorLoad, LoadSource, MemoryLoad, NetworkLoad, PressureLoad,
    host::{self, HostPaths},
};
use std::fmt;
use tidegate_core::{Micros, Percent};

/// A signal that the kernel of this machine provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineSignal {
    /// `cpu`: the CPU time in use.
    Cpu,
    /// `memory`: the memory in use.
    Memory,
    /// `descriptors`: the file descriptors of this process.
    Descriptors,
    /// `cpu-stall`: the time in which some task waited for a CPU.
    CpuStall,
    /// `memory-stall`: the time in which some task waited for memory.
    MemoryStall,
    /// `io-stall`: the time in which some task waited for I/O.
    IoStall,
    /// `network`: the throughput of the network interfaces, as a share of this number of bytes per second.
    Network {
        /// The capacity in each direction.
        bytes_per_second: u64,
    },
}

impl MachineSignal {
    /// The signals that need no setting.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::Memory, Self::Descriptors, Self::CpuStall, Self::MemoryStall, Self::IoStall];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Descriptors => "descriptors",
            Self::CpuStall => "cpu-stall",
            Self::MemoryStall => "memory-stall",
            Self::IoStall => "io-stall",
            Self::Network { .. } => "network",
        }
    }

    /// The value that counts as 100 % by default. A machine whose tasks wait all the time is long unusable.
    pub fn default_saturation(self) -> Percent {
        match self {
            Self::Cpu | Self::Memory | Self::Descriptors | Self::Network { .. } => Percent::FULL,
            Self::CpuStall => Percent::from_ratio(60, 100),
            Self::MemoryStall => Percent::from_ratio(20, 100),
            Self::IoStall => Percent::from_ratio(50, 100),
        }
    }

    /// The source that reads it.
    pub fn source(self, host: &HostPaths) -> Box<dyn LoadSource> {
        match self {
            Self::Cpu => Box::new(CpuLoad::with_host(host.clone())),
            Self::Memory => Box::new(MemoryLoad::with_host(host.clone())),
            Self::Descriptors => Box::new(FileDescriptorLoad::with_host(host.clone())),
            Self::CpuStall => Box::new(PressureLoad::cpu().with_host(host.clone())),
            Self::MemoryStall => Box::new(PressureLoad::memory().with_host(host.clone())),
            Self::IoStall => Box::new(PressureLoad::io().with_host(host.clone())),
            Self::Network { bytes_per_second } => {
                Box::new(NetworkLoad::with_host(host.clone(), bytes_per_second))
            }
        }
    }

    /// Whether this machine provides it.
    pub fn is_available(self, host: &HostPaths) -> bool {
        let mut source = self.source(host);
        let first = source.read(Micros::from_secs(1));
        match self {
            // The second reading may show no CPU time at all, because it follows at once.
            Self::Cpu => host::read_text(host.proc("stat")).is_some(),
            _ => first.or_else(|| source.read(Micros::from_secs(2))).is_some(),
        }
    }
}

impl fmt::Display for MachineSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
