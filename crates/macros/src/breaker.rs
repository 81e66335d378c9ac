//! `#[breaker]`: its parameters, and the code of its site.

use crate::{
    params::{ErrorList, Params},
    rejection::RejectionMode,
    text,
};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote_spanned};
use syn::{Error, Expr, ExprLit, Lit, LitStr, Path, Result};
use tidegate_core::{Micros, Percent};
use tidegate_overload::{BreakerBuilder, BreakerSettings};

/// A parsed attribute.
pub(crate) struct BreakerAttribute {
    pub(crate) krate: Path,
    pub(crate) rejection: RejectionMode,
    pub(crate) classify: Option<Expr>,
    /// The methods to call on the builder of the settings.
    settings: Vec<BreakerSetting>,
    rule: Option<LitStr>,
    message: Option<LitStr>,
    shadow: bool,
}

/// One setting, validated at compile time and emitted as code.
#[derive(Clone, Copy)]
enum BreakerSetting {
    CallWindow(u32),
    TimeWindow(Micros),
    MinCalls(u32),
    FailureRate(Percent),
    SlowCalls(Percent, Micros),
    OpenDuration(Micros),
    Backoff(f64, Micros),
    Jitter(Percent),
    HalfOpenCalls(u32),
    HalfOpenTimeout(Micros),
}

const PARAM_NAMES: &[&str] = &[
    "failure_rate",
    "window_size",
    "min_calls",
    "slow_call_duration",
    "slow_call_rate",
    "open_duration",
    "backoff",
    "max_open_duration",
    "jitter",
    "half_open_calls",
    "half_open_timeout",
    "classify",
    "rule",
    "message",
    "on_limit",
    "map_err",
    "shadow",
    "skip",
    "crate",
];

impl BreakerAttribute {
    /// Parses the parameters; `None` for `skip`.
    pub(crate) fn parse(tokens: TokenStream) -> Result<Option<Self>> {
        let params = Params::parse(tokens, PARAM_NAMES)?;
        if params.flag("skip")? {
            return Ok(None);
        }
        let mut errors = ErrorList::default();
        if let Some(literal) = params.literals().first() {
            errors.push(Error::new(
                literal.span(),
                "a breaker has no quota; write `#[breaker(failure_rate = \"50%\", window_size = 100)]`",
            ));
        }
        let breaker = Self {
            krate: errors
                .or_default(params.krate().map(Some))
                .unwrap_or_else(|| syn::parse_quote!(::tidegate)),
            rejection: errors.or_default(RejectionMode::parse(&params)),
            classify: errors.or_default(
                params.value("classify", "|result| CallOutcome::Success").map(Option::<&Expr>::cloned),
            ),
            settings: BreakerSetting::parse_all(&params, &mut errors),
            rule: errors.or_default(params.text("rule", "\"database\"")),
            message: errors.or_default(params.text("message", "\"try again later\"")),
            shadow: errors.or_default(params.flag("shadow")),
        };
        errors.into_result(Some(breaker))
    }

    /// The static of the call site.
    pub(crate) fn site(&self, suffix: &str) -> TokenStream {
        let Self { krate, settings, message, .. } = self;
        let site = Span::mixed_site();
        let declaration = match &self.rule {
            Some(rule) => quote_spanned!(site=> #krate::site::RuleConfig::new(#rule)),
            None => quote_spanned!(site=> #krate::site::config_for_function(__tidegate_declare, #suffix)),
        };
        let mode = self.shadow.then(|| quote_spanned!(site=> .mode(#krate::site::Mode::Shadow)));
        let message = message.iter();
        let settings = settings.iter().map(|setting| setting.tokens(krate));
        quote_spanned! {site=>
            fn __tidegate_declare() -> ::core::result::Result<
                (#krate::site::RuleConfig, #krate::site::BreakerSettings),
                #krate::site::SettingError,
            > {
                #krate::site::load_policy();
                ::core::result::Result::Ok((
                    #declaration #mode #(.message(#message))*,
                    #krate::site::BreakerSettings::builder() #(#settings)* .build()?,
                ))
            }
            static __TIDEGATE_SITE: #krate::site::BreakerSite = #krate::site::BreakerSite::new(__tidegate_declare);
        }
    }
}

impl BreakerSetting {
    fn parse_all(params: &Params, errors: &mut ErrorList) -> Vec<Self> {
        let mut all = Vec::new();
        for name in PARAM_NAMES {
            match Self::parse(params, name) {
                Ok(None) => {}
                // Validates each setting alone first, so that the error has the right span.
                Ok(Some(setting)) => match setting.apply(BreakerSettings::builder()).build() {
                    Ok(_) => all.push(setting),
                    Err(error) => errors.push(params.setting_error(name, &error)),
                },
                Err(error) => errors.push(error),
            }
        }
        let together = all.iter().fold(BreakerSettings::builder(), |builder, setting| setting.apply(builder));
        if let Err(error) = together.build() {
            let last = if params.has("max_open_duration") { "max_open_duration" } else { "backoff" };
            errors.push(params.setting_error(last, &error));
        }
        all
    }

    fn parse(params: &Params, name: &str) -> Result<Option<Self>> {
        let time = |name: &str| {
            let text = params.text(name, "\"30s\"")?;
            text.map(|text| text::parse_time(&text)).transpose()
        };
        let percent = |name: &str| {
            let text = params.text(name, "\"50%\"")?;
            text.map(|text| text::parse_percent(&text)).transpose()
        };
        let number = |name: &str| {
            let value = params.value(name, "20")?;
            value.map(|value| text::parse_number(value, &format!("{name} = 20"))).transpose()
        };
        Ok(match name {
            "failure_rate" => percent(name)?.map(Self::FailureRate),
            "window_size" => match params.value(name, "100` or `window_size = \"60s\"")? {
                Some(Expr::Lit(ExprLit { lit: Lit::Int(_), .. })) => number(name)?.map(Self::CallWindow),
                _ => time(name)?.map(Self::TimeWindow),
            },
            "min_calls" => number(name)?.map(Self::MinCalls),
            "slow_call_duration" => {
                let rate = percent("slow_call_rate")?.unwrap_or(Percent::from_ratio(1, 2));
                time(name)?.map(|longer_than| Self::SlowCalls(rate, longer_than))
            }
            "slow_call_rate" if !params.has("slow_call_duration") => match params.span(name) {
                Some(span) => {
                    return Err(Error::new(
                        span,
                        "`slow_call_rate` requires `slow_call_duration`; add it, as in `slow_call_duration = \"200ms\"`",
                    ));
                }
                None => None,
            },
            "open_duration" => time(name)?.map(Self::OpenDuration),
            "backoff" => match params.value(name, "1.5")? {
                None => None,
                Some(value) => {
                    let longest = time("max_open_duration")?.unwrap_or(Micros::from_secs(3_600));
                    Some(Self::Backoff(parse_factor(value)?, longest))
                }
            },
            "max_open_duration" if !params.has("backoff") => match params.span(name) {
                Some(span) => {
                    return Err(Error::new(
                        span,
                        "`max_open_duration` requires `backoff`; add it, as in `backoff = 1.5`",
                    ));
                }
                None => None,
            },
            "jitter" => percent(name)?.map(Self::Jitter),
            "half_open_calls" => number(name)?.map(Self::HalfOpenCalls),
            "half_open_timeout" => time(name)?.map(Self::HalfOpenTimeout),
            _ => None,
        })
    }

    fn apply(self, builder: BreakerBuilder) -> BreakerBuilder {
        match self {
            Self::CallWindow(calls) => builder.count_window(calls),
            Self::TimeWindow(window) => builder.time_window(window),
            Self::MinCalls(calls) => builder.min_calls(calls.into()),
            Self::FailureRate(rate) => builder.failure_rate(rate),
            Self::SlowCalls(rate, longer_than) => builder.slow_calls(rate, longer_than),
            Self::OpenDuration(time) => builder.open_duration(time),
            Self::Backoff(factor, longest) => builder.backoff(factor, longest),
            Self::Jitter(jitter) => builder.jitter(jitter),
            Self::HalfOpenCalls(probes) => builder.half_open_calls(probes),
            Self::HalfOpenTimeout(deadline) => builder.half_open_timeout(deadline),
        }
    }

    fn tokens(self, krate: &Path) -> TokenStream {
        let site = Span::mixed_site();
        let micros = |time: Micros| {
            let micros = time.get();
            quote_spanned!(site=> #krate::site::Micros::new(#micros))
        };
        let percent = |percent: Percent| {
            let text = percent.to_string();
            quote_spanned!(site=> #text.parse()?)
        };
        let (method, arguments) = match self {
            Self::CallWindow(calls) => ("count_window", vec![calls.to_token_stream()]),
            Self::TimeWindow(window) => ("time_window", vec![micros(window)]),
            Self::MinCalls(calls) => ("min_calls", vec![u64::from(calls).to_token_stream()]),
            Self::FailureRate(rate) => ("failure_rate", vec![percent(rate)]),
            Self::SlowCalls(rate, longer_than) => ("slow_calls", vec![percent(rate), micros(longer_than)]),
            Self::OpenDuration(time) => ("open_duration", vec![micros(time)]),
            Self::Backoff(factor, longest) => ("backoff", vec![factor.to_token_stream(), micros(longest)]),
            Self::Jitter(jitter) => ("jitter", vec![percent(jitter)]),
            Self::HalfOpenCalls(probes) => ("half_open_calls", vec![probes.to_token_stream()]),
            Self::HalfOpenTimeout(deadline) => ("half_open_timeout", vec![micros(deadline)]),
        };
        let method = Ident::new(method, site);
        quote_spanned!(site=> .#method(#(#arguments),*))
    }
}

fn parse_factor(value: &Expr) -> Result<f64> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Float(factor), .. }) => factor.base10_parse(),
        Expr::Lit(ExprLit { lit: Lit::Int(factor), .. }) => factor.base10_parse(),
        other => Err(Error::new_spanned(other, "expected a number, as in `backoff = 1.5`")),
    }
}
