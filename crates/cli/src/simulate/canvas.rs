//! The canvas of all SVG images: a card with captions on the left, plots on the right, and colors for light and dark
//! themes.

use super::axis::Axis;
use std::fmt::{Arguments, Write};
use tidegate_core::Micros;

const WIDTH: f64 = 900.0;
/// The left and right edges of the plots.
pub(crate) const PLOT_LEFT: f64 = 246.0;
pub(crate) const PLOT_RIGHT: f64 = 850.0;

const STYLE: &str = "\
text{font-family:ui-sans-serif,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:12px;fill:#59636e}\
.quota{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-weight:600;\
fill:#1f2328}\
.strong{font-weight:600;fill:#1f2328}.over{font-weight:600;fill:#c1121f}\
.card{fill:#ffffff;stroke:#d1d9e0}.grid{stroke:#e6eaef}.base{stroke:#9aa4af}.edge{stroke:#aab4bf}\
.asked{fill:#dde3ea}.went{fill:#2a9db5}.waited{fill:#e3a21a}\
.sum{fill:none;stroke:#23405e;stroke-width:1.8;stroke-linejoin:round}\
.rate{stroke:#59636e;stroke-dasharray:3 4}.excess{fill:#e5383b;fill-opacity:.32}\
.worst{fill:#2a9db5;fill-opacity:.08}.worst.bad{fill:#e5383b;fill-opacity:.08}\
@media(prefers-color-scheme:dark){text{fill:#9198a1}.quota,.strong{fill:#f0f6fc}.over{fill:#ff7b72}\
.card{fill:#0d1117;stroke:#3d444d}.grid{stroke:#21262d}.base{stroke:#656c76}.edge{stroke:#4a525c}.asked{fill:#2d333b}\
.went{fill:#2a9db5}.sum{stroke:#c9dcf0}.rate{stroke:#9198a1}.excess{fill:#f85149;fill-opacity:.4}}";

/// An SVG image under construction.
pub(crate) struct SvgCanvas {
    text: String,
}

impl SvgCanvas {
    /// Creates an empty card.
    pub(crate) fn new(title: &str, height: f64) -> Self {
        let mut canvas = Self { text: String::new() };
        canvas.push(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\"><title>{}</title><style>{STYLE}</style>",
            escape(title)
        ));
        let (inner_width, inner_height) = (WIDTH - 1.0, height - 1.0);
        canvas.push(format_args!(
            "<rect class=\"card\" x=\".5\" y=\".5\" width=\"{inner_width}\" height=\"{inner_height}\" rx=\"8\"/>"
        ));
        canvas
    }

    /// Returns the complete image.
    pub(crate) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    /// Adds markup.
    pub(crate) fn push(&mut self, markup: Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{markup}");
    }

    /// Adds a text.
    pub(crate) fn label(&mut self, class: &str, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escape(text);
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    /// Adds a path, unless it is empty.
    pub(crate) fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            self.push(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
        }
    }

    /// Adds a legend: a sample of each class with its meaning.
    pub(crate) fn legend(&mut self, entries: &[(&str, String)]) {
        let width = |class: &str, text: &str| indent(class) + 6.4 * text.chars().count() as f64 + 18.0;
        let whole: f64 = entries.iter().map(|(class, text)| width(class, text)).sum();
        let mut x = PLOT_LEFT.min(PLOT_RIGHT - whole);
        for (class, text) in entries {
            match *class {
                "sum" | "rate" => self.path(class, &format!("M{x:.1} 26h18")),
                _ => self.path(class, &format!("M{x:.1} 20h12v12h-12z")),
            }
            self.label("", x + indent(class), 30.0, "start", text);
            x += width(class, text);
        }
    }

    /// Adds lines from `top` to below `base` at round times, and their labels.
    pub(crate) fn draw_times(&mut self, axis: &Axis, top: f64, base: f64) {
        for tick in axis.ticks(8) {
            let x = x_on(axis, tick.at);
            self.push(format_args!("<path class=\"grid\" d=\"M{x:.1} {top}V{:.1}\"/>", base + 5.0));
            self.label("", x, base + 20.0, "middle", &tick.label);
        }
    }

    /// Adds a shaded range between two x coordinates that is `height` high and ends at `base`.
    pub(crate) fn shade(&mut self, class: &str, (x, end): (f64, f64), base: f64, height: f64) {
        let top = base - height;
        let width = (end - x).max(1.0);
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height}\"/>"
        ));
    }

    /// Adds a name and lines below it, each with its class, to the left of a plot. Returns the position of the last line.
    pub(crate) fn caption(
        &mut self,
        name: &str,
        size: f64,
        (mut y, pitch): (f64, f64),
        lines: &[(&str, String)],
    ) -> f64 {
        let name = escape(name);
        self.push(format_args!(
            "<text class=\"quota\" x=\"24\" y=\"{y:.1}\" style=\"font-size:{size:.1}px\">{name}</text>"
        ));
        for (class, line) in lines {
            y += pitch;
            self.label(class, 24.0, y, "start", line);
        }
        y
    }

    /// Adds a horizontal line across the plots.
    pub(crate) fn level(&mut self, class: &str, y: f64) {
        self.path(class, &format!("M{PLOT_LEFT} {y:.1}H{PLOT_RIGHT}"));
    }
}

/// The x coordinate of a time.
pub(crate) fn x_on(axis: &Axis, at: Micros) -> f64 {
    PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * axis.fraction(at)
}

/// The distance from a sample in the legend to its text.
fn indent(class: &str) -> f64 {
    if matches!(class, "sum" | "rate") { 24.0 } else { 18.0 }
}

/// Escapes text for XML.
fn escape(text: &str) -> String {
    let visible = text.chars().filter(|c| !c.is_control()).collect::<String>();
    visible.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
