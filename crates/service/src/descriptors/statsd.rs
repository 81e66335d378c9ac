//! Sends metrics over statsd and DogStatsD: every few seconds, the counts since the previous flush.

use super::{
    DescriptorService,
    environment::{Mogrifier, StatsdProtocol, StatsdSettings},
    exposition::{Exposition, RESPONSE_TIME_STAT},
};
use crate::events;
use cadence::{Counted as _, Gauged as _, MetricSink, StatsdClient};
use regex::Regex;
use std::{
    borrow::Cow,
    collections::HashMap,
    future::Future,
    io,
    net::{Ipv6Addr, SocketAddr},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tidegate_http_server::MetricKind;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpStream, UdpSocket, lookup_host},
    time::{self, MissedTickBehavior},
};

/// The size of a UDP packet that most networks do not fragment.
const MAX_PACKET_SIZE: usize = 1_432;
/// The timeout of one flush.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends the metrics of a service.
pub(super) struct StatsdSender {
    service: Arc<DescriptorService>,
    settings: StatsdSettings,
    mogrifiers: Vec<(Regex, Mogrifier)>,
    client: StatsdClient,
    lines: StatsdLines,
    /// The value of each counter at the last successful flush.
    sent_counts: HashMap<String, u64>,
    connection: Option<TcpStream>,
    /// Whether the last flush failed.
    is_unavailable: bool,
}

/// Lines that are not sent yet.
#[derive(Clone, Default)]
struct StatsdLines(Arc<Mutex<Vec<String>>>);

impl StatsdLines {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl MetricSink for StatsdLines {
    fn emit(&self, line: &str) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        Ok(line.len())
    }
}

impl StatsdSender {
    pub(super) fn new(service: Arc<DescriptorService>, settings: StatsdSettings) -> Self {
        let lines = StatsdLines::default();
        // The environment has validated the patterns.
        let compiled = |it: &Mogrifier| Some((Regex::new(&it.pattern).ok()?, it.clone()));
        Self {
            mogrifiers: settings.mogrifiers.iter().filter_map(compiled).collect(),
            client: StatsdClient::from_sink("", lines.clone()),
            service,
            settings,
            lines,
            sent_counts: HashMap::new(),
            connection: None,
            is_unavailable: false,
        }
    }

    /// Sends metrics until `shutdown`, then flushes once more.
    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut ticks = time::interval(self.settings.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            let is_over = tokio::select! {
                _ = ticks.tick() => false,
                () = shutdown.as_mut() => true,
            };
            self.flush().await;
            if is_over {
                return;
            }
        }
    }

    async fn flush(&mut self) {
        let metrics = self.service.exposition();
        let lines = self.format_lines(&metrics);
        let sent = match self.settings.protocol {
            StatsdProtocol::Statsd => time::timeout(SEND_TIMEOUT, self.send_tcp(&lines)).await,
            StatsdProtocol::DogStatsd => time::timeout(SEND_TIMEOUT, self.send_udp(&lines)).await,
        };
        let StatsdSettings { host, port, .. } = &self.settings;
        match sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(()) => {
                // Replaced, so that names of removed limits do not accumulate.
                let counters = metrics.stats().into_iter().map(|(name, (_, count))| (name.to_owned(), count));
                self.sent_counts = counters.chain(bucket_counters(&metrics)).collect();
                if std::mem::take(&mut self.is_unavailable) {
                    events::StatsdRecovered { host, port: *port }.emit();
                }
            }
            Err(error) => {
                self.connection = None;
                if !std::mem::replace(&mut self.is_unavailable, true) {
                    events::StatsdUnavailable { host, port: *port, error: &error }.emit();
                }
            }
        }
    }

    /// The lines for everything that changed since the last successful flush, and for all gauges.
    fn format_lines(&self, metrics: &Exposition) -> Vec<String> {
        let delta =
            |name: &str, count: u64| count.saturating_sub(self.sent_counts.get(name).copied().unwrap_or(0));
        for (stat, (kind, value)) in metrics.stats() {
            let (name, tags) = self.name_and_tags(stat);
            // Lines are only collected, which does not fail.
            match (kind, delta(stat, value)) {
                (MetricKind::Gauge, _) => {
                    let metric = self.client.gauge_with_tags(&name, value);
                    let _ = tags.iter().fold(metric, |it, (tag, value)| it.with_tag(tag, value)).try_send();
                }
                (_, 0) => {}
                (_, new) => {
                    let metric = self.client.count_with_tags(&name, i64::try_from(new).unwrap_or(i64::MAX));
                    let _ = tags.iter().fold(metric, |it, (tag, value)| it.with_tag(tag, value)).try_send();
                }
            }
        }
        for ((name, count), (end, _)) in bucket_counters(metrics).into_iter().zip(metrics.response_times()) {
            let new = delta(&name, count);
            if new > 0 {
                // One sample with a sample rate represents all requests of the bucket. statsd times may have fractions.
                let (name, tags) = self.name_and_tags(RESPONSE_TIME_STAT);
                let tags: Vec<_> = tags.iter().map(|(tag, value)| format!("{tag}:{value}")).collect();
                let tags = if tags.is_empty() { String::new() } else { format!("|#{}", tags.join(",")) };
                let rate = if new == 1 { String::new() } else { format!("|@{}", 1.0 / new as f64) };
                let _ = self.lines.emit(&format!("{name}:{}|ms{rate}{tags}", end as f64 / 1_000.0));
            }
        }
        self.lines.take()
    }

    /// Returns the name and the tags of a metric.
    fn name_and_tags<'a>(&self, name: &'a str) -> (Cow<'a, str>, Vec<(String, String)>) {
        let tags = &self.settings.tags;
        match self.settings.protocol {
            StatsdProtocol::Statsd if tags.is_empty() => (name.into(), Vec::new()),
            StatsdProtocol::Statsd => {
                let mut tags: Vec<_> =
                    tags.iter().map(|(tag, value)| format!(".__{tag}={}", sanitize_value(value))).collect();
                tags.sort();
                (format!("{name}{}", tags.concat()).into(), Vec::new())
            }
            StatsdProtocol::DogStatsd => {
                let found = self.mogrifiers.iter().find_map(|(regex, it)| Some((regex.captures(name)?, it)));
                let Some((groups, mogrifier)) = found else { return (name.into(), tags.clone()) };
                let groups: Vec<&str> =
                    groups.iter().map(|group| group.map_or("", |group| group.as_str())).collect();
                let more = mogrifier
                    .tags
                    .iter()
                    .map(|(tag, value)| (tag.clone(), substitute_groups(value, &groups)));
                (
                    substitute_groups(&mogrifier.name, &groups).into(),
                    tags.iter().cloned().chain(more).collect(),
                )
            }
        }
    }

    async fn send_tcp(&mut self, lines: &[String]) -> io::Result<()> {
        let StatsdSettings { host, port, .. } = &self.settings;
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => TcpStream::connect((host.as_str(), *port)).await?,
        };
        let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        connection.write_all(text.as_bytes()).await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn send_udp(&self, lines: &[String]) -> io::Result<()> {
        let StatsdSettings { host, port, .. } = &self.settings;
        let server = lookup_host((host.as_str(), *port)).await?.next().ok_or(io::ErrorKind::NotFound)?;
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        for packet in pack_lines(lines) {
            socket.send_to(packet.as_bytes(), server).await?;
        }
        Ok(())
    }
}

/// Each bucket of response times as a counter.
fn bucket_counters(metrics: &Exposition) -> Vec<(String, u64)> {
    let times = metrics.response_times().into_iter();
    times.map(|(end, count)| (format!("{RESPONSE_TIME_STAT} {end}"), count)).collect()
}

/// Replaces the characters that statsd reserves.
fn sanitize_value(value: &str) -> String {
    value.replace(['.', ':', '|'], "_")
}

/// Replaces `$1` with the first group, and so on. A reference to a missing group stays unchanged.
fn substitute_groups(text: &str, groups: &[&str]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        out.push_str(before);
        let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = behind.split_at(digits);
        match number.parse::<usize>().ok().and_then(|number| groups.get(number)) {
            Some(group) => out.push_str(group),
            None => {
                out.push('$');
                out.push_str(number);
            }
        }
        rest = after;
    }
    out + rest
}

/// Packs lines into packets of at most [`MAX_PACKET_SIZE`].
fn pack_lines(lines: &[String]) -> Vec<String> {
    let mut packets: Vec<String> = Vec::new();
    for line in lines {
        match packets.last_mut() {
            Some(packet) if packet.len() + 1 + line.len() <= MAX_PACKET_SIZE => {
                packet.push('\n');
                packet.push_str(line);
            }
            _ => packets.push(line.clone()),
        }
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mogrifier_name_substitutes_groups() {
        let groups = ["all", "shop", "user_a"];
        for (text, expected) in [
            ("a.$1.$2", "a.shop.user_a"),
            ("$3", "$3"),
            ("$", "$"),
            ("$0x", "allx"),
            ("cost $$1", "cost $shop"),
        ] {
            assert_eq!(substitute_groups(text, &groups), expected);
        }
    }

    #[test]
    fn packets_fit_the_size_limit() {
        let lines: Vec<String> = (0..500).map(|number| format!("a.name.that.is.long.{number}:1|c")).collect();
        let packets = pack_lines(&lines);
        assert!(packets.len() > 1 && packets.iter().all(|packet| packet.len() <= MAX_PACKET_SIZE));
        assert_eq!(packets.join("\n"), lines.join("\n"));
    }
}
