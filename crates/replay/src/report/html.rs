//! A report as one file: no other file is needed, and nothing is fetched.

use super::{Report, Span, TOP, about_log, denials, percent, stamp, stayed_denied};
use crate::{
    compare::Difference,
    run::{Bin, RuleTally, Tally, Timeline},
};
use std::fmt::{self, Write as _};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2330;--faint:#5d6778;--paper:#fdfdfc;--line:#d9dde4;--go:#2f7fb8;--wait:#b9831a;\
--no:#c2402f;--shade:#8a6bb5}\
@media(prefers-color-scheme:dark){:root{--ink:#e7e9ee;--faint:#a0a9b8;--paper:#14171c;--line:#333a45;--go:#5aaee6;\
--wait:#e0ad4a;--no:#f07665;--shade:#b99be6}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;\
padding:0 1rem}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}p{margin:.4rem 0}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:.25rem .5rem;\
border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}\
th{color:var(--faint);font-weight:500}svg{width:100%;height:auto;display:block;margin:.6rem 0}\
.go{fill:var(--go)}.wait{fill:var(--wait)}.no{fill:var(--no)}.shade{fill:var(--shade)}.axis{stroke:var(--line)}\
text{fill:var(--faint);font:12px system-ui,sans-serif}.faint{color:var(--faint)}\
.key{display:inline-block;width:.8em;height:.8em;margin-right:.35em}.scroll{overflow-x:auto}";

/// The report as a page.
pub fn html(report: &Report<'_>) -> String {
    let mut page = String::new();
    let title = format!("{} on {}", report.policy, report.play.log.names.join(", "));
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{}</title><style>{STYLE}</style></head><body>\n<h1>{}</h1>\n",
        Escaped(&title),
        Escaped(&title)
    );
    for line in about_log(report) {
        let _ = writeln!(page, "<p class=\"faint\">{}</p>", Escaped(&line));
    }
    table(&mut page, report.policy, &report.play.tally);
    page.push_str("<h2>When</h2>\n");
    legend(&mut page);
    chart(&mut page, "requests over time", &report.play.tally.all);
    for rule in &report.play.tally.rules {
        about_rule(&mut page, rule);
    }
    if let (Some(name), Some((tally, difference))) = (report.against, &report.play.against) {
        let _ = writeln!(page, "<h2>Against {}</h2>", Escaped(name));
        table(&mut page, name, tally);
        compared(&mut page, difference);
    }
    page.push_str("</body></html>\n");
    page
}

fn table(page: &mut String, name: &str, tally: &Tally) {
    let _ = write!(
        page,
        "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">{}</th><th scope=\"col\">requests</th><th \
         scope=\"col\">admitted</th><th scope=\"col\">delayed</th><th scope=\"col\">denied</th><th \
         scope=\"col\">shadow</th><th scope=\"col\">share</th></tr></thead><tbody>",
        Escaped(name)
    );
    let mut row = |name: &str, numbers: [u64; 5]| {
        let _ = write!(page, "<tr><td>{}</td>", Escaped(name));
        numbers.iter().for_each(|number| _ = write!(page, "<td>{number}</td>"));
        let _ = writeln!(page, "<td>{}</td></tr>", percent(numbers[3] + numbers[4], numbers[0]));
    };
    row("all", [tally.requests(), tally.admitted, tally.delayed, tally.denied, 0]);
    for rule in &tally.rules {
        row(&rule.name, [rule.asked, rule.admitted, rule.delayed, rule.denied, rule.shadow]);
    }
    page.push_str("</tbody></table></div>\n");
}

fn legend(page: &mut String) {
    page.push_str("<p class=\"faint\">");
    for (name, colour) in
        [("admitted", "--go"), ("delayed", "--wait"), ("denied", "--no"), ("shadow", "--shade")]
    {
        let _ = write!(page, "<span class=\"key\" style=\"background:var({colour})\"></span>{name} &nbsp; ");
    }
    page.push_str("</p>\n");
}

const WIDE: f64 = 960.0;
const HIGH: f64 = 180.0;

/// Bars on top of each other, one for each bin.
fn chart(page: &mut String, about: &str, timeline: &Timeline) {
    let bins = timeline.bins();
    let height = |bin: &Bin| bin.requests() + bin.shadow;
    let most = bins.iter().map(height).max().unwrap_or(0).max(1);
    let width = WIDE / bins.len().max(1) as f64;
    let _ = write!(
        page,
        "<svg viewBox=\"0 0 {WIDE} {}\" role=\"img\" aria-label=\"{}, at most {most} in {}\">",
        HIGH + 20.0,
        Escaped(about),
        Span(timeline.width())
    );
    for (place, bin) in bins.iter().enumerate() {
        let mut top = HIGH;
        for (class, count) in
            [("go", bin.admitted), ("wait", bin.delayed), ("shade", bin.shadow), ("no", bin.denied)]
        {
            if count == 0 {
                continue;
            }
            let high = count as f64 * HIGH / most as f64;
            top -= high;
            let (left, wide) = (place as f64 * width, (width - 0.5).max(0.5));
            let _ = write!(
                page,
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\"/>"
            );
        }
    }
    let end = tidegate_core::Micros::new(timeline.start().get() + timeline.width().get() * bins.len() as u64);
    let _ = writeln!(
        page,
        "<line class=\"axis\" x1=\"0\" x2=\"{WIDE}\" y1=\"{HIGH}\" y2=\"{HIGH}\"/><text x=\"0\" y=\"{base}\">{}</text><text \
         x=\"{WIDE}\" y=\"{base}\" text-anchor=\"end\">{}</text><text x=\"{WIDE}\" y=\"12\" text-anchor=\"end\">{most} in \
         {}</text></svg>",
        stamp(timeline.start()),
        stamp(end),
        Span(timeline.width()),
        base = HIGH + 15.0,
    );
}

fn about_rule(page: &mut String, rule: &RuleTally) {
    let all = denials(rule);
    if all + rule.delayed == 0 {
        return;
    }
    let _ = writeln!(
        page,
        "<h2>{}</h2>\n<p>{all} of {} ({}) denied{}.</p>",
        Escaped(&rule.name),
        rule.asked,
        percent(all, rule.asked),
        if rule.shadow > 0 { ", or would have been" } else { "" }
    );
    if rule.delayed > 0 {
        let _ = writeln!(page, "<p>{} waited, at most {}.</p>", rule.delayed, Span(rule.longest_wait));
    }
    chart(page, &format!("rule {} over time", rule.name), &rule.timeline);
    let top = rule.keys.top(TOP);
    if !top.is_empty() {
        bars(page, &top, all);
    }
    if let Some(stayed) = stayed_denied(rule) {
        let _ = writeln!(page, "<p>Stayed denied {}.</p>", Escaped(&stayed));
    }
}

/// A row for each key.
fn bars(page: &mut String, top: &[crate::Counted], all: u64) {
    let most = top.first().map_or(1, |key| key.count).max(1);
    page.push_str(
        "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">who</th><th scope=\"col\">denied</th><th \
         scope=\"col\">share</th><th scope=\"col\" style=\"width:40%\"></th></tr></thead><tbody>",
    );
    for key in top {
        let wide = key.count as f64 * 100.0 / most as f64;
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td><svg viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" \
             style=\"height:.8rem\" aria-hidden=\"true\"><rect class=\"no\" width=\"{wide:.1}\" height=\"4\"/></svg></td></tr>",
            Escaped(&key.key),
            key.count,
            percent(key.count, all)
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn compared(page: &mut String, difference: &Difference) {
    if difference.is_none() {
        page.push_str("<p>Both do the same to every request.</p>\n");
        return;
    }
    let _ = writeln!(
        page,
        "<p>{} are denied now, {} no longer; {} by both. {} wait now, {} no longer.</p>",
        difference.newly_denied,
        difference.no_longer_denied,
        difference.denied_by_both,
        difference.newly_delayed,
        difference.no_longer_delayed
    );
    page.push_str(
        "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">rule and key</th><th scope=\"col\">denied now</th><th \
         scope=\"col\">no longer</th></tr></thead><tbody>",
    );
    for key in &difference.keys {
        let (newly, no_longer) = (key.newly_denied, key.no_longer_denied);
        let _ = writeln!(page, "<tr><td>{}</td><td>{newly}</td><td>{no_longer}</td></tr>", Escaped(&key.key));
    }
    page.push_str("</tbody></table></div>\n");
}

/// Text that came from a log or a file.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
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
