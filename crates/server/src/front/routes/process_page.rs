//! The part of the metrics page about this process: the names are those of Prometheus' own client
//! libraries, so dashboards for any program show them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use rustix::time::{ClockId, clock_gettime};

use crate::metrics::Metrics;
use crate::metrics::process::ProcessFigures;

const NS_PER_SECOND: f64 = 1e9;

/// The figures that every program exports, without the prefix of this one.
#[derive(Debug)]
pub(crate) struct ProcessScrape {
    started: SystemTime,
}

impl ProcessScrape {
    pub(crate) fn of(metrics: &Metrics) -> Self {
        Self { started: metrics.started }
    }
}

impl Collector for ProcessScrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        let spent = spent.tv_sec as f64 + spent.tv_nsec as f64 / NS_PER_SECOND;
        encoder
            .encode_descriptor(
                "process_cpu",
                "Processor time that all threads of this process have used, user and system. Nodes \
                 in one process, as in `epicepoch dev`, report the same values of process metrics.",
                Some(&Unit::Seconds),
                MetricType::Counter,
            )?
            .encode_counter::<NoLabelSet, _, u64>(&spent, None)?;
        let mut gauge = |name, help, unit: Option<&Unit>, value: f64| {
            encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?.encode_gauge(&value)
        };
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        gauge(
            "process_start_time",
            "When this node was started, Unix time by its wall clock.",
            Some(&Unit::Seconds),
            started.as_secs_f64(),
        )?;
        // Only Linux tells the rest.
        let Ok(process) = ProcessFigures::read() else { return Ok(()) };
        let bytes = Some(&Unit::Bytes);
        let resident = process.resident_bytes as f64;
        gauge("process_resident_memory", "Memory of this process in RAM.", bytes, resident)?;
        let size = process.virtual_bytes as f64;
        gauge("process_virtual_memory", "Address space of this process.", bytes, size)?;
        let open = process.open_fds as f64;
        gauge("process_open_fds", "Open file descriptors of this process.", None, open)?;
        let max = process.max_fds.map_or(f64::INFINITY, |max| max as f64);
        gauge("process_max_fds", "The limit of open file descriptors.", None, max)
    }
}
