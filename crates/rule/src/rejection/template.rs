//! Rejections whose text is written once, with holes for their numbers.

use super::RejectionResponse;
use std::{
    any::Any,
    borrow::Cow,
    fmt,
    sync::{Arc, OnceLock},
};
use tidegate_core::{
    Micros, Utc,
    header::{ceil_seconds, write_number},
};

/// The place of a number in the text of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The number that is written.
    index: u8,
    format: HoleFormat,
}

/// How a number is written into its hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoleFormat {
    Digits,
    /// Microseconds, as in `6m0s`.
    Duration,
    /// Seconds since 1970, as in `2000-02-29T12:34:56Z`.
    Date,
}

/// How the numbers of a rejection are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberForm {
    /// Their digits, or those of a duration or a date.
    Digits,
    /// Holes, in the text of a template.
    Holes,
}

/// The numbers of a rejection, by their holes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectionNumbers([u64; NUMBER_COUNT]);

/// The response to rejections that differ only in their numbers.
pub struct RejectionTemplate {
    /// With holes instead of numbers.
    response: RejectionResponse,
    form: NumberForm,
    cache: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// A rejection: the text that it shares with others, and its numbers.
#[derive(Clone, Debug)]
pub struct SharedRejection {
    template: Arc<RejectionTemplate>,
    numbers: RejectionNumbers,
}

/// The maximum number of quotas whose numbers a template has holes for.
pub(crate) const MAX_TEMPLATE_QUOTAS: usize = 4;
/// The seconds to wait, and two numbers of each quota.
const NUMBER_COUNT: usize = 1 + 2 * MAX_TEMPLATE_QUOTAS;
/// The first of the 32 characters that Unicode reserves for the internal use of programs.
const FIRST_HOLE: char = '\u{fdd0}';
/// The formats, in the order of their characters.
const FORMATS: [HoleFormat; 3] = [HoleFormat::Digits, HoleFormat::Duration, HoleFormat::Date];

impl Hole {
    /// The seconds after which a retry may succeed.
    pub const RETRY_AFTER: Self = Self { index: 0, format: HoleFormat::Digits };

    /// The remaining amount of the quota at this index.
    pub(crate) fn remaining(quota: usize) -> Self {
        let index = u8::try_from(quota).map_or(u8::MAX, |quota| quota.saturating_mul(2).saturating_add(1));
        Self { index, format: HoleFormat::Digits }
    }

    /// The seconds until more of the quota at this index is granted.
    pub(crate) fn reset_seconds(quota: usize) -> Self {
        Self { index: Self::remaining(quota).index.saturating_add(1), format: HoleFormat::Digits }
    }

    /// The microseconds until the quota at this index is full.
    pub(crate) fn reset_duration(quota: usize) -> Self {
        Self { format: HoleFormat::Duration, ..Self::reset_seconds(quota) }
    }

    /// The date at which the quota at this index is full, in seconds since 1970.
    pub(crate) fn reset_date(quota: usize) -> Self {
        Self { format: HoleFormat::Date, ..Self::reset_seconds(quota) }
    }

    fn to_char(self) -> char {
        let format = FORMATS.iter().position(|format| *format == self.format).unwrap_or_default();
        let offset = u32::from(self.index) + (format * NUMBER_COUNT) as u32;
        char::from_u32(u32::from(FIRST_HOLE) + offset).unwrap_or(FIRST_HOLE)
    }

    fn from_char(text: char) -> Option<Self> {
        let offset = u32::from(text).checked_sub(FIRST_HOLE.into())? as usize;
        let format = *FORMATS.get(offset / NUMBER_COUNT)?;
        Some(Self { index: u8::try_from(offset % NUMBER_COUNT).ok()?, format })
    }

    fn write(self, out: &mut impl fmt::Write, number: u64) -> fmt::Result {
        match self.format {
            HoleFormat::Digits => write_number(out, number),
            HoleFormat::Duration => write_duration(out, Micros::new(number)),
            HoleFormat::Date => write!(out, "{:.0}", Utc::from(Micros::from_secs(number))),
        }
    }
}

/// Writes a duration as Go does: `6m0s`, `1h0m5s`, or `120ms` below a second. It is rounded up.
fn write_duration(text: &mut impl fmt::Write, duration: Micros) -> fmt::Result {
    if duration.get() < 1_000_000 {
        return match duration.get().div_ceil(1_000) {
            0 => text.write_str("0s"),
            1_000 => text.write_str("1s"),
            milliseconds => write!(text, "{milliseconds}ms"),
        };
    }
    let seconds = ceil_seconds(duration);
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => write!(text, "{seconds}s"),
        (0, minutes, seconds) => write!(text, "{minutes}m{seconds}s"),
        (hours, minutes, seconds) => write!(text, "{hours}h{minutes}m{seconds}s"),
    }
}

impl NumberForm {
    pub(crate) fn write(self, out: &mut impl fmt::Write, hole: Hole, number: u64) -> fmt::Result {
        match self {
            Self::Digits => hole.write(out, number),
            Self::Holes => out.write_char(hole.to_char()),
        }
    }

    /// A number as text.
    pub fn text(self, hole: Hole, number: u64) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text, hole, number);
        text
    }

    /// The parts of a text, each with the hole behind it.
    pub fn split(self, text: &str) -> impl Iterator<Item = (&str, Option<Hole>)> {
        let mut rest = Some(text);
        std::iter::from_fn(move || {
            let text = rest.take()?;
            let hole = |(at, character)| Some((at, Hole::from_char(character)?));
            let found = match self {
                Self::Digits => None,
                Self::Holes => text.char_indices().find_map(hole),
            };
            let Some((at, hole)) = found else { return Some((text, None)) };
            rest = text.get(at + FIRST_HOLE.len_utf8()..);
            Some((text.get(..at).unwrap_or_default(), Some(hole)))
        })
    }

    fn fill(self, text: &str, numbers: &RejectionNumbers) -> String {
        self.split(text).fold(String::with_capacity(text.len()), |mut filled, (part, hole)| {
            filled.push_str(part);
            if let Some(hole) = hole {
                // Writing to a string does not fail.
                let _ = numbers.write(hole, &mut filled);
            }
            filled
        })
    }
}

impl RejectionNumbers {
    /// Writes the number of a hole.
    #[inline]
    pub fn write(&self, hole: Hole, out: &mut impl fmt::Write) -> fmt::Result {
        hole.write(out, self.0.get(usize::from(hole.index)).copied().unwrap_or_default())
    }

    /// Sets the number of a hole.
    #[must_use]
    pub fn with(mut self, hole: Hole, number: u64) -> Self {
        if let Some(place) = self.0.get_mut(usize::from(hole.index)) {
            *place = number;
        }
        self
    }
}

impl RejectionTemplate {
    /// The template of a response that is the same for all requests.
    pub fn fixed(response: RejectionResponse) -> Self {
        Self { response, form: NumberForm::Digits, cache: OnceLock::new() }
    }

    /// The template of a response with these numbers. `None` if the text contains a character that stands for a hole.
    pub fn new(render: impl Fn(NumberForm) -> RejectionResponse, numbers: &RejectionNumbers) -> Option<Self> {
        let (response, expected) = (render(NumberForm::Holes), render(NumberForm::Digits));
        if response == expected {
            return Some(Self::fixed(response));
        }
        let template = Self { response, form: NumberForm::Holes, cache: OnceLock::new() };
        (template.fill(numbers) == expected).then_some(template)
    }

    /// The response, with its numbers in this [form](Self::form).
    pub fn response(&self) -> &RejectionResponse {
        &self.response
    }

    /// Whether the text has holes.
    pub fn form(&self) -> NumberForm {
        self.form
    }

    /// The response with these numbers.
    pub fn fill(&self, numbers: &RejectionNumbers) -> RejectionResponse {
        let RejectionResponse { status, headers, body } = &self.response;
        let fill = |text: &str| self.form.fill(text, numbers);
        let headers = headers.iter().map(|(name, value)| (name.clone(), fill(value).into()));
        RejectionResponse { status: *status, headers: headers.collect(), body: fill(body) }
    }

    /// A value that a framework integration derives once, such as bytes to send. `None` if another integration was first.
    #[inline]
    pub fn get_or_cache<T: Any + Send + Sync>(&self, make: impl FnOnce(&Self) -> T) -> Option<&T> {
        self.cache.get_or_init(|| Box::new(make(self))).downcast_ref()
    }
}

impl SharedRejection {
    /// The rejection with these numbers.
    #[inline]
    pub fn new(template: Arc<RejectionTemplate>, numbers: RejectionNumbers) -> Self {
        Self { template, numbers }
    }

    /// What it shares with other rejections.
    #[inline]
    pub fn template(&self) -> &Arc<RejectionTemplate> {
        &self.template
    }

    /// Its numbers.
    #[inline]
    pub fn numbers(&self) -> &RejectionNumbers {
        &self.numbers
    }

    /// The status of the response.
    pub fn status(&self) -> u16 {
        self.template.response.final_status()
    }

    /// The first value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let value = self.template.response.get(name)?;
        Some(match self.template.form {
            NumberForm::Digits => value.into(),
            form => form.fill(value, &self.numbers).into(),
        })
    }

    /// The response.
    pub fn to_response(&self) -> RejectionResponse {
        match self.template.form {
            NumberForm::Digits => self.template.response.clone(),
            NumberForm::Holes => self.template.fill(&self.numbers),
        }
    }
}

/// A rejection whose text is the same for all requests.
impl From<RejectionResponse> for SharedRejection {
    fn from(response: RejectionResponse) -> Self {
        Self::new(RejectionTemplate::fixed(response).into(), RejectionNumbers::default())
    }
}

/// Equal if the responses are.
impl PartialEq for SharedRejection {
    fn eq(&self, other: &Self) -> bool {
        self.to_response() == other.to_response()
    }
}

impl Eq for SharedRejection {}

impl fmt::Debug for RejectionTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.response.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(form: NumberForm, note: &str) -> RejectionResponse {
        RejectionResponse::new(429)
            .header("retry-after", form.text(Hole::RETRY_AFTER, 60))
            .header("x-note", note)
            .text(format!(
                "{note} {}/{}",
                form.text(Hole::remaining(3), 7),
                form.text(Hole::reset_seconds(3), 8)
            ))
    }

    #[test]
    fn template_is_filled_with_other_numbers() {
        let numbers = RejectionNumbers::default()
            .with(Hole::RETRY_AFTER, 60)
            .with(Hole::remaining(3), 7)
            .with(Hole::reset_seconds(3), 8);
        let template = Arc::new(RejectionTemplate::new(|form| render(form, "é"), &numbers).unwrap());
        let rejection = SharedRejection::new(template.clone(), numbers.with(Hole::RETRY_AFTER, u64::MAX));
        assert_eq!(rejection.header("retry-after").as_deref(), Some("18446744073709551615"));
        assert_eq!(rejection.to_response().body, "é 7/8");
        assert_eq!(template.fill(&numbers), render(NumberForm::Digits, "é"));
    }

    /// Such characters are not in valid text, but a policy may contain them.
    #[test]
    fn text_with_reserved_characters_has_no_template_and_is_not_changed() {
        let numbers = RejectionNumbers::default()
            .with(Hole::RETRY_AFTER, 60)
            .with(Hole::remaining(3), 7)
            .with(Hole::reset_seconds(3), 8);
        for note in ["a\u{fdd0}b", "\u{fdd8}", "\u{fdea}"] {
            assert!(RejectionTemplate::new(|form| render(form, note), &numbers).is_none());
            let response = render(NumberForm::Digits, note);
            assert_eq!(SharedRejection::from(response.clone()).to_response(), response);
            let is_fixed = RejectionTemplate::new(|_| response.clone(), &numbers).unwrap();
            assert_eq!((is_fixed.form(), is_fixed.fill(&numbers)), (NumberForm::Digits, response));
        }
        assert!(RejectionTemplate::new(|form| render(form, "\u{fdeb}"), &numbers).is_some());
    }
}
