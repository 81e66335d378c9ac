//! The measured cases.

use crate::{BenchResult, Measurement, load, median};
use std::{
    env,
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{self, Command},
    time::Instant,
};
use tidegate_bench::process::{BenchProcess, LOAD_CORE, MEASURED_CORE, free_address};

/// Rounds of one second per load.
const ROUNDS: usize = 9;

pub(crate) const GRPC_ABOUT: &str =
    "one descriptor in memory, over a tonic server that responds without a decision";

pub(crate) fn measure_grpc() -> BenchResult<Measurement> {
    let limits = LimitsFolder::write(1, 1)?;
    let (ours, theirs) = (start_service(&limits, "")?, start_stub("stub-grpc")?);
    compare(|| grpc_rate(&ours, 1), || grpc_rate(&theirs, 1), "calls/s")
}

pub(crate) const GRPC_1000_ABOUT: &str = "1,000 descriptors, three levels deep, over one descriptor";

pub(crate) fn measure_grpc_1000() -> BenchResult<Measurement> {
    let (many, one) = (LimitsFolder::write(1_000, 3)?, LimitsFolder::write(1, 1)?);
    let (many, one) = (start_service(&many, "")?, start_service(&one, "")?);
    compare(|| grpc_rate(&many, 3), || grpc_rate(&one, 1), "calls/s")
}

pub(crate) const GRPC_REDIS_ABOUT: &str =
    "one descriptor in Redis, over the store's own decisions/s, 64 concurrent";

pub(crate) fn measure_grpc_redis() -> BenchResult<Measurement> {
    let (limits, redis) = (LimitsFolder::write(1, 1)?, BenchProcess::start_redis()?);
    let url = format!("redis://{}", redis.address);
    let ours = start_service(&limits, &url)?;
    compare(
        || grpc_rate(&ours, 1),
        || parse_number(&run_self(MEASURED_CORE, &["store", &url])?),
        "decisions/s",
    )
}

pub(crate) const HTTP_ABOUT: &str =
    "/v1/check in memory, over an axum server that responds without a decision";

pub(crate) fn measure_http() -> BenchResult<Measurement> {
    let (ours, theirs) = (start_policy()?, start_stub("stub-http")?);
    compare(|| wrk_rate(ours.address, 1), || wrk_rate(theirs.address, 1), "requests/s")
}

pub(crate) const HTTP_BATCH_ABOUT: &str = "decisions/s with 100 checks per call, over one check per call";

pub(crate) fn measure_http_batch() -> BenchResult<Measurement> {
    let ours = start_policy()?;
    compare(|| Ok(wrk_rate(ours.address, 100)? * 100.0), || wrk_rate(ours.address, 1), "decisions/s")
}

pub(crate) const START_ABOUT: &str = "seconds to the first response with 10,000 descriptors, over 10";

pub(crate) fn measure_start() -> BenchResult<Measurement> {
    let (many, few) = (LimitsFolder::write(10_000, 1)?, LimitsFolder::write(10, 1)?);
    compare(|| time_to_first_answer(&many), || time_to_first_answer(&few), "s")
}

/// Measures `ours` over `theirs`; the value is the median of the ratios per round.
fn compare(
    ours: impl Fn() -> BenchResult<f64>,
    theirs: impl Fn() -> BenchResult<f64>,
    unit: &str,
) -> BenchResult<Measurement> {
    let (mut ratios, mut our_rates, mut their_rates) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        // Each run of ours is between two of theirs, so that a drift of the machine cancels out.
        let (before, own, after) = (theirs()?, ours()?, theirs()?);
        // The first round warms up.
        if round > 0 {
            ratios.push(own * 2.0 / (before + after));
            our_rates.push(own);
            their_rates.extend([before, after]);
        }
    }
    let figures = format!("{:.3} over {:.3} {unit}", median(&our_rates), median(&their_rates));
    Ok(Measurement::from_rounds(&ratios, figures))
}

/// A folder with a limits file, deleted on drop.
struct LimitsFolder(PathBuf);

impl LimitsFolder {
    /// Writes `count` descriptors of this depth; the requested one is in the middle.
    fn write(count: usize, depth: usize) -> BenchResult<Self> {
        let folder = env::temp_dir().join(format!("tidegate-bench-{}-{count}-{depth}", process::id()));
        fs::create_dir_all(&folder)?;
        let mut text = String::from("domain: bench\ndescriptors:\n");
        let limit = "rate_limit: { unit: hour, requests_per_unit: 4000000000 }";
        for number in 0..count {
            let value = if number == count / 2 { 500 } else { 10_000 + number };
            match depth {
                1 if count == 1 => writeln!(text, "  - key: user\n    {limit}")?,
                1 => writeln!(text, "  - key: user\n    value: \"{number}\"\n    {limit}")?,
                _ => writeln!(
                    text,
                    "  - key: level1\n    value: \"{value}\"\n    descriptors:\n      - key: level2\n        value: \"500\"\n        \
                     descriptors:\n          - key: user\n            {limit}"
                )?,
            }
        }
        fs::write(folder.join("limits.yaml"), text)?;
        Ok(Self(folder))
    }
}

impl Drop for LimitsFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn own_command(arguments: &str) -> BenchResult<String> {
    Ok(format!("{} {arguments}", env::current_exe()?.display()))
}

fn start_service(limits: &LimitsFolder, store: &str) -> BenchResult<BenchProcess> {
    let address = free_address()?;
    let arguments = format!("service {} {address} '{store}'", limits.0.display());
    BenchProcess::start(MEASURED_CORE, &own_command(&arguments)?, address)
}

fn start_stub(kind: &str) -> BenchResult<BenchProcess> {
    let address = free_address()?;
    BenchProcess::start(MEASURED_CORE, &own_command(&format!("{kind} {address}"))?, address)
}

/// Starts a server with a policy of one rule and the HTTP decision API.
fn start_policy() -> BenchResult<BenchProcess> {
    let address = free_address()?;
    let file = env::temp_dir().join(format!("tidegate-bench-{}-{}.yaml", process::id(), address.port()));
    let rule = "{ name: each, key: header x-user, quota: 1000000/s burst 100000 }";
    fs::write(&file, format!("decisions: {address}\nrules: {rule}\n"))?;
    let started =
        BenchProcess::start(MEASURED_CORE, &own_command(&format!("policy {}", file.display()))?, address);
    fs::remove_file(&file)?;
    started
}

fn grpc_rate(server: &BenchProcess, depth: usize) -> BenchResult<f64> {
    parse_number(&run_self(LOAD_CORE, &["load", &server.address.to_string(), &depth.to_string()])?)
}

fn time_to_first_answer(limits: &LimitsFolder) -> BenchResult<f64> {
    let address = free_address()?;
    let arguments = format!("service {} {address} ''", limits.0.display());
    let start = Instant::now();
    let _server = BenchProcess::spawn(MEASURED_CORE, &own_command(&arguments)?, address)?;
    load::wait_for_answer(address, 1)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Runs this program with these arguments on a core and returns its output.
fn run_self(core: &str, arguments: &[&str]) -> BenchResult<String> {
    let mut command = Command::new("taskset");
    let output = command.args(["-c", core]).arg(env::current_exe()?).args(arguments).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

fn parse_number(text: &str) -> BenchResult<f64> {
    text.trim().parse().map_err(|_| format!("invalid number: {text}").into())
}

/// Runs wrk with `checks` checks per request and returns the requests per second.
fn wrk_rate(address: SocketAddr, checks: usize) -> BenchResult<f64> {
    let check = |number: usize| format!(r#"{{\"rule\":\"each\",\"key\":\"{number}\"}}"#);
    let body = match checks {
        1 => check(0),
        _ => format!("[{}]", (0..checks).map(check).collect::<Vec<_>>().join(",")),
    };
    let script = env::temp_dir().join(format!("tidegate-bench-{}-{checks}.lua", process::id()));
    let text = format!(
        "wrk.method = \"POST\"\nwrk.body = \"{body}\"\nwrk.headers[\"Content-Type\"] = \"application/json\"\n"
    );
    fs::write(&script, text)?;
    let measured = wrk_with(&script, address);
    fs::remove_file(&script)?;
    measured
}

fn wrk_with(script: &Path, address: SocketAddr) -> BenchResult<f64> {
    let url = format!("http://{address}/v1/check");
    let mut command = Command::new("taskset");
    command.args(["-c", LOAD_CORE, "wrk", "-t1", "-c64", "-d1s", "-s"]).arg(script).arg(url);
    let text = String::from_utf8(command.output()?.stdout)?;
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(format!("unexpected responses: {text}").into());
    }
    let rate = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    parse_number(rate.ok_or_else(|| format!("unexpected wrk output: {text}"))?)
}
