//! What the system knows of a process: CPU time and memory, from `/proc`.

use std::fs;
use std::io;

/// Ticks a second in `/proc/PID/stat`: 100 on every Linux that this runs on (proc(5), USER_HZ).
const TICKS: f64 = 100.0;

/// User and system time of a process, all its threads, in seconds; steps of 10 ms.
///
/// # Errors
/// The process is gone.
pub fn cpu_seconds(pid: u32) -> io::Result<f64> {
    parse_cpu(&fs::read_to_string(format!("/proc/{pid}/stat"))?)
        .ok_or_else(|| io::Error::other("an unknown form of /proc/PID/stat"))
}

fn parse_cpu(stat: &str) -> Option<f64> {
    // The name in parentheses may hold anything; fields are counted behind it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / TICKS)
}

/// Resident memory now and at its peak since [`reset_peak`], in KiB.
///
/// # Errors
/// The process is gone.
pub fn memory_kib(pid: u32) -> io::Result<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name| parse_kib(&status, name);
    field("VmRSS:").zip(field("VmHWM:")).ok_or_else(|| io::Error::other("no memory in /proc/PID/status"))
}

fn parse_kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// Begins a new peak of resident memory.
pub fn reset_peak(pid: u32) {
    // Where it is not allowed the peak is that since the start, which is never too low.
    fs::write(format!("/proc/{pid}/clear_refs"), "5").ok();
}

/// Idle time and all time of the whole machine, in seconds of one core.
#[must_use]
pub fn machine_seconds() -> Option<(f64, f64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().next()?;
    let ticks: Vec<f64> = line.split_ascii_whitespace().skip(1).take(8).flat_map(str::parse).collect();
    Some(((ticks.get(3)? + ticks.get(4)?) / TICKS, ticks.iter().sum::<f64>() / TICKS))
}

#[cfg(test)]
mod tests {
    use super::{cpu_seconds, memory_kib, parse_cpu, parse_kib};

    #[test]
    fn a_name_may_hold_spaces_and_parentheses() {
        let stat = "7 (a ) (b) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 9 9 20 0 4 0 100 1 1";
        assert_eq!(parse_cpu(stat), Some(2.0));
        assert_eq!(parse_kib("VmHWM:\t  123 kB\nVmRSS:\t 45 kB\n", "VmRSS:"), Some(45));
    }

    #[test]
    fn this_process_is_seen() {
        assert!(cpu_seconds(std::process::id()).unwrap() >= 0.0);
        let (now, peak) = memory_kib(std::process::id()).unwrap();
        assert!(now > 0 && peak >= now / 2);
    }
}
