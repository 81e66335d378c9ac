//! The report as one self-contained HTML page that fetches nothing.

use super::{
    HumanDuration, ReplayReport, TOP_KEYS, count_denials, describe_episodes, describe_log, format_percent,
    format_timestamp,
};
use crate::{
    compare::PolicyDifference,
    run::{PolicyStats, RuleStats, Timeline, TimelineBin},
};
use std::fmt::{self, Write as _};
use tidegate_core::Micros;
use tidegate_limiter::TopKey;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2330;--faint:#5d6778;--paper:#fdfdfc;--line:#d9dde4;--go:#2f7fb8;--wait:#b9831a;\
--no:#c2402f;--shade:#8a6bb5}\
@media(prefers-color-scheme:dark){:root{--ink:#e7e9ee;--faint:#a0a9b8;--paper:#14171c;--line:#333a45;--go:#5aaee6;\
--wait:#e0ad4a;--no:#f07665;--shade:#b99be6}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;\
padding:0 1rem;overflow-wrap:anywhere}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}p{margin:.4rem 0}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:.25rem .5rem;\
border-bottom:1px solid var(--line);white-space:nowrap}th{color:var(--faint);font-weight:500}\
tr>:first-child{text-align:left;min-width:9rem;white-space:normal}\
tbody th{color:inherit;font-weight:inherit}.scroll{overflow-x:auto}.bar{width:40%;min-width:6rem}\
figure{margin:.6rem 0}figure svg{width:100%;height:11rem;display:block;border-bottom:1px solid var(--line)}\
.bar svg{width:100%;height:.8rem;display:block}.ends{display:flex;justify-content:space-between;font-size:.8rem}\
figcaption{text-align:right;font-size:.8rem}.go{fill:var(--go)}.wait{fill:var(--wait)}.no{fill:var(--no)}.shade{fill:var(--shade)}\
.faint,.ends,figcaption{color:var(--faint)}.named{margin-right:1rem;white-space:nowrap}.key{display:inline-block;width:.8em;height:.8em;margin-right:.35em}";

/// Returns the report as an HTML page.
pub fn to_html(report: &ReplayReport<'_>) -> String {
    let mut page = String::new();
    let title = format!("{} on {}", report.policy, report.result.log.names.join(", "));
    // Writing to a string does not fail. The CSP forbids requests, even if text of a log is not escaped.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{title}</title><style>{STYLE}</style></head><body><main>\n\
         <h1>{title}</h1>\n",
        title = HtmlEscaped(&title),
    );
    for line in describe_log(report) {
        let _ = writeln!(page, "<p class=\"faint\">{}</p>", HtmlEscaped(&line));
    }
    write_table(&mut page, "all rules", (report.policy, &report.result.stats));
    page.push_str("<h2>Timeline</h2>\n");
    write_legend(&mut page);
    let axis = TimeAxis::of(&report.result.stats.timeline);
    write_chart(&mut page, "requests over time", &report.result.stats.timeline, axis);
    for rule in &report.result.stats.rules {
        write_rule(&mut page, rule, axis);
    }
    if let (Some(name), Some((stats, difference))) = (report.baseline, &report.result.comparison) {
        let _ = writeln!(page, "<h2>Compared with {}</h2>", HtmlEscaped(name));
        write_table(&mut page, "all rules of the other policy", (name, stats));
        write_difference(&mut page, difference);
    }
    page.push_str("</main></body></html>\n");
    page
}

/// Begins a table that scrolls horizontally if it is too wide. The label describes it to assistive technology.
fn begin_table(page: &mut String, label: &str, columns: &[&str]) {
    let _ = write!(
        page,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table><thead><tr>",
        HtmlEscaped(label)
    );
    columns.iter().for_each(|column| _ = write!(page, "<th scope=\"col\">{}</th>", HtmlEscaped(column)));
    page.push_str("</tr></thead><tbody>\n");
}

const TABLE_END: &str = "</tbody></table></div>\n";

fn write_table(page: &mut String, label: &str, (name, stats): (&str, &PolicyStats)) {
    begin_table(page, label, &[name, "requests", "admitted", "delayed", "denied", "shadow", "share"]);
    let mut row = |name: &str, numbers: [u64; 5]| {
        let _ = write!(page, "<tr><th scope=\"row\">{}</th>", HtmlEscaped(name));
        numbers.iter().for_each(|number| _ = write!(page, "<td>{number}</td>"));
        let _ = writeln!(page, "<td>{}</td></tr>", format_percent(numbers[3] + numbers[4], numbers[0]));
    };
    row("all", [stats.requests(), stats.admitted, stats.delayed, stats.denied, stats.shadow]);
    for rule in &stats.rules {
        row(&rule.name, [rule.requests, rule.admitted, rule.delayed, rule.denied, rule.shadow]);
    }
    page.push_str(TABLE_END);
    for rule in stats.rules.iter().filter(|rule| rule.requests == 0) {
        let name = HtmlEscaped(&rule.name);
        let _ = writeln!(page, "<p class=\"faint\">Rule {name} matched no request.</p>");
    }
}

fn write_legend(page: &mut String) {
    page.push_str("<p class=\"faint\">");
    for (name, colour) in
        [("admitted", "--go"), ("delayed", "--wait"), ("denied", "--no"), ("shadow", "--shade")]
    {
        let key = format!("<span class=\"key\" style=\"background:var({colour})\"></span>");
        let _ = write!(page, "<span class=\"named\">{key}{name}</span> ");
    }
    page.push_str("</p>\n");
}

const CHART_WIDTH: f64 = 960.0;
const CHART_HEIGHT: f64 = 180.0;

/// The time axis that all charts of a report share, in microseconds.
#[derive(Clone, Copy)]
struct TimeAxis {
    start: u64,
    end: u64,
}

impl TimeAxis {
    fn of(timeline: &Timeline) -> Self {
        let start = timeline.start().get();
        Self { start, end: start + timeline.width().get() * timeline.bins().len().max(1) as u64 }
    }

    /// The position of a time in a chart.
    fn place(self, at: u64) -> f64 {
        let length = (self.end - self.start).max(1) as f64;
        at.clamp(self.start, self.end).saturating_sub(self.start) as f64 * CHART_WIDTH / length
    }
}

/// Writes stacked bars, one for each bin. The text is outside of the SVG, which scales with the screen.
fn write_chart(page: &mut String, about: &str, timeline: &Timeline, axis: TimeAxis) {
    let bins = timeline.bins();
    let height = |bin: &TimelineBin| bin.requests() + bin.shadow;
    let most = bins.iter().map(height).max().unwrap_or(0).max(1);
    let _ = write!(
        page,
        "<figure><figcaption>at most {most} in {span}</figcaption><svg viewBox=\"0 0 {CHART_WIDTH} {CHART_HEIGHT}\" \
         preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}, at most {most} in {span}\">",
        HtmlEscaped(about),
        span = HumanDuration(timeline.width())
    );
    let step = timeline.width().get();
    for (index, bin) in (0..).zip(bins) {
        let from = timeline.start().get() + index * step;
        let (left, right) = (axis.place(from), axis.place(from + step));
        let mut top = CHART_HEIGHT;
        for (class, count) in
            [("go", bin.admitted), ("wait", bin.delayed), ("shade", bin.shadow), ("no", bin.denied)]
        {
            if count == 0 {
                continue;
            }
            let high = count as f64 * CHART_HEIGHT / most as f64;
            top -= high;
            let wide = (right - left - 0.5).max(0.5);
            let _ = write!(
                page,
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\"/>"
            );
        }
    }
    let _ = writeln!(
        page,
        "</svg><div class=\"ends\"><span>{}</span><span>{}</span></div></figure>",
        format_timestamp(Micros::new(axis.start)),
        format_timestamp(Micros::new(axis.end)),
    );
}

fn write_rule(page: &mut String, rule: &RuleStats, axis: TimeAxis) {
    let all = count_denials(rule);
    if all + rule.delayed == 0 {
        return;
    }
    let name = HtmlEscaped(&rule.name);
    let _ = writeln!(
        page,
        "<section aria-label=\"{name}\"><h2>{name}</h2>\n<p>{all} of {} ({}) denied{}.</p>",
        rule.requests,
        format_percent(all, rule.requests),
        if rule.shadow > 0 { ", or would have been" } else { "" }
    );
    if rule.delayed > 0 {
        let _ = writeln!(
            page,
            "<p>{} delayed, by at most {}.</p>",
            rule.delayed,
            HumanDuration(rule.longest_wait)
        );
    }
    if rule.denied_by_other_rules() > 0 {
        let _ = writeln!(
            page,
            "<p>{} admitted by this rule were denied by other rules.</p>",
            rule.denied_by_other_rules()
        );
    }
    write_chart(page, &format!("rule {} over time", rule.name), &rule.timeline, axis);
    let mut top = rule.keys.top();
    top.truncate(TOP_KEYS);
    if !top.is_empty() {
        write_key_table(page, &rule.name, &top, all);
    }
    if let Some(episodes) = describe_episodes(rule) {
        let _ = writeln!(page, "<p>Denial episodes: {}.</p>", HtmlEscaped(&episodes));
    }
    page.push_str("</section>\n");
}

/// Writes a row for each key.
fn write_key_table(page: &mut String, rule: &str, top: &[TopKey], all: u64) {
    begin_table(page, &format!("keys denied by {rule}"), &["key", "denied", "share", "bar"]);
    for key in top {
        let wide = key.min_count() as f64 * 100.0 / all.max(1) as f64;
        let _ = writeln!(
            page,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td class=\"bar\"><svg viewBox=\"0 0 100 4\" \
             preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\"no\" width=\"{wide:.1}\" \
             height=\"4\"/></svg></td></tr>",
            HtmlEscaped(&key.name),
            key.min_count(),
            format_percent(key.min_count(), all)
        );
    }
    page.push_str(TABLE_END);
}

fn write_difference(page: &mut String, difference: &PolicyDifference) {
    if difference.is_empty() {
        page.push_str("<p>Both policies make the same decision for every request.</p>\n");
        return;
    }
    let _ = writeln!(
        page,
        "<p>{} newly denied, {} no longer denied, {} denied by both, {} newly delayed, {} no longer delayed.</p>",
        difference.newly_denied,
        difference.no_longer_denied,
        difference.denied_by_both,
        difference.newly_delayed,
        difference.no_longer_delayed
    );
    begin_table(page, "changes by key", &["rule and key", "newly denied", "no longer denied"]);
    for key in &difference.keys {
        let (newly, no_longer) = (key.newly_denied, key.no_longer_denied);
        let key = HtmlEscaped(&key.key);
        let _ = writeln!(page, "<tr><th scope=\"row\">{key}</th><td>{newly}</td><td>{no_longer}</td></tr>");
    }
    page.push_str(TABLE_END);
}

/// Escapes text from a log or a file.
struct HtmlEscaped<'a>(&'a str);

impl fmt::Display for HtmlEscaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for sign in self.0.chars() {
            match sign {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                sign if sign.is_control() => f.write_str("\u{fffd}")?,
                sign => f.write_char(sign)?,
            }
        }
        Ok(())
    }
}
