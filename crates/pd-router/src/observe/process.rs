//! The process itself, read from /proc when somebody asks. The prometheus crate's own collector counts whole
//! seconds of CPU only and brings two more crates.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{Counter, Gauge, IntGauge, Registry};

/// Clock ticks a second in /proc/self/stat: `USER_HZ`, 100 on every Linux that Rust runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// The families that Prometheus names `process_*`.
#[derive(Debug)]
pub struct Process {
    cpu: Counter,
    resident: IntGauge,
    virtual_memory: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
    threads: IntGauge,
    started: Gauge,
}

impl Process {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| -> prometheus::Result<IntGauge> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let process = Self {
            cpu: Counter::new("process_cpu_seconds_total", "CPU time used, user and system.")?,
            resident: gauge("process_resident_memory_bytes", "Memory in RAM.")?,
            virtual_memory: gauge("process_virtual_memory_bytes", "Memory reserved.")?,
            open_fds: gauge("process_open_fds", "File descriptors open.")?,
            max_fds: gauge("process_max_fds", "File descriptors that may be open.")?,
            threads: gauge("process_threads", "Threads.")?,
            started: Gauge::new("process_start_time_seconds", "When the process started, in Unix time.")?,
        };
        registry.register(Box::new(process.cpu.clone()))?;
        registry.register(Box::new(process.started.clone()))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        process.started.set(now.as_secs_f64());
        Ok(process)
    }

    /// Reads /proc again; what cannot be read keeps its value. Not to be called twice at once.
    pub(super) fn read(&self) {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        if let Some(cpu) = cpu_seconds(&stat) {
            self.cpu.inc_by((cpu - self.cpu.get()).max(0.0));
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = |name: &str| number_after(&status, name);
        for (gauge, value) in [
            (&self.resident, line("VmRSS:").map(|kib| kib.saturating_mul(1024))),
            (&self.virtual_memory, line("VmSize:").map(|kib| kib.saturating_mul(1024))),
            (&self.threads, line("Threads:")),
            (&self.open_fds, open_fds()),
            (
                &self.max_fds,
                number_after(&fs::read_to_string("/proc/self/limits").unwrap_or_default(), "Max open files"),
            ),
        ] {
            if let Some(value) = value {
                gauge.set(value);
            }
        }
    }
}

/// Fields 14 and 15; the second field is the command's name in parentheses and may hold anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / TICKS_PER_SECOND)
}

fn number_after(text: &str, name: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Linux from 6.2 says how many there are as the folder's size; on older ones they are counted.
fn open_fds() -> Option<i64> {
    const FOLDER: &str = "/proc/self/fd";
    let size = fs::metadata(FOLDER).map_or(0, |folder| folder.len());
    let count = if size > 0 { size } else { fs::read_dir(FOLDER).ok()?.count() as u64 };
    i64::try_from(count).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_is_passed_over() {
        let stat = "7 (a) b) (c) S 1 1 1 0 -1 4194304 9 0 0 0 150 50 0 0 20 0 4 0 100 1000 10";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds(""), None);
        assert_eq!(number_after("A: 1\nMax open files  1024 4096 files\n", "Max open files"), Some(1024));
    }

    #[test]
    fn this_process_can_be_read() {
        let process = Process::register(&Registry::new()).unwrap();
        process.read();
        assert!(process.resident.get() > 100_000 && process.threads.get() >= 1);
        assert!(process.open_fds.get() >= 3 && process.max_fds.get() >= process.open_fds.get());
    }
}
