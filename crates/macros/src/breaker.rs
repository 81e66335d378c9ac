//! `#[breaker]`: what it says, and what it declares.

use crate::{
    params::{Mistakes, Params},
    refusal::Refusal,
    text,
};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote_spanned};
use syn::{Error, Expr, ExprLit, Lit, LitStr, Path, Result};
use tidegate_core::{Micros, SettingError, Share};
use tidegate_overload::{BreakerBuilder, BreakerSettings};

/// One attribute.
pub(crate) struct Breaker {
    pub(crate) krate: Path,
    pub(crate) refusal: Refusal,
    pub(crate) failure: Option<Expr>,
    /// Calls on the builder of the settings.
    settings: Vec<Setting>,
    rule: Option<LitStr>,
    message: Option<LitStr>,
    shadow: bool,
}

/// One setting, which is tried here and written into the code.
#[derive(Clone, Copy)]
enum Setting {
    OverCalls(u32),
    OverTime(Micros),
    MinCalls(u32),
    FailureRate(Share),
    Slow(Share, Micros),
    OpenFor(Micros),
    Backoff(f64, Micros),
    Jitter(Share),
    Probes(u32),
    ProbeDeadline(Micros),
}

const KNOWN: &[&str] = &[
    "failure_rate",
    "over",
    "min_calls",
    "slow",
    "slow_rate",
    "open_for",
    "backoff",
    "longest",
    "jitter",
    "probes",
    "probe_deadline",
    "failure",
    "rule",
    "message",
    "on_limit",
    "or",
    "shadow",
    "skip",
    "crate",
];

impl Breaker {
    /// Reads the parameters; `None` if it says `skip`.
    pub(crate) fn parse(tokens: TokenStream) -> Result<Option<Self>> {
        let params = Params::parse(tokens, KNOWN)?;
        if params.flag("skip")? {
            return Ok(None);
        }
        let mut mistakes = Mistakes::default();
        if let Some(literal) = params.literals().first() {
            mistakes.note(Error::new(
                literal.span(),
                "a breaker has no quota; write `#[breaker(failure_rate = \"50%\", over = 100)]`",
            ));
        }
        let text = |name: &str, example: &str| {
            params
                .value(name, example)?
                .map(|value| text::literal(value, &format!("{name} = {example}")))
                .transpose()
        };
        let breaker = Self {
            krate: mistakes.read(params.krate().map(Some)).unwrap_or_else(|| syn::parse_quote!(::tidegate)),
            refusal: mistakes.read(Refusal::parse(&params)),
            failure: mistakes
                .read(params.value("failure", "|answer| Report::Success").map(Option::<&Expr>::cloned)),
            settings: Setting::parse_all(&params, &mut mistakes),
            rule: mistakes.read(text("rule", "\"database\"")),
            message: mistakes.read(text("message", "\"try again later\"")),
            shadow: mistakes.read(params.flag("shadow")),
        };
        mistakes.finish(Some(breaker))
    }

    /// The static of this place.
    pub(crate) fn site(&self, behind: &str) -> TokenStream {
        let Self { krate, settings, message, .. } = self;
        let site = Span::mixed_site();
        let declaration = match &self.rule {
            Some(rule) => quote_spanned!(site=> #krate::site::Declaration::of(#rule)),
            None => quote_spanned!(site=> #krate::site::declaration_of(__tidegate_declare, #behind)),
        };
        let mode = self.shadow.then(|| quote_spanned!(site=> .mode(#krate::site::Mode::Shadow)));
        let message = message.iter();
        let settings = settings.iter().map(|setting| setting.tokens(krate));
        quote_spanned! {site=>
            fn __tidegate_declare() -> ::core::result::Result<
                (#krate::site::Declaration, #krate::site::BreakerSettings),
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

impl Setting {
    fn parse_all(params: &Params, mistakes: &mut Mistakes) -> Vec<Self> {
        let mut all = Vec::new();
        for name in KNOWN {
            match Self::parse(params, name) {
                Ok(None) => {}
                // By itself first, so that it is the one that is blamed.
                Ok(Some(setting)) => match setting.apply(BreakerSettings::builder()).build() {
                    Ok(_) => all.push(setting),
                    Err(error) => mistakes.note(blame(params, name, &error)),
                },
                Err(error) => mistakes.note(error),
            }
        }
        let together = all.iter().fold(BreakerSettings::builder(), |builder, setting| setting.apply(builder));
        if let Err(error) = together.build() {
            let last = if params.has("longest") { "longest" } else { "backoff" };
            mistakes.note(blame(params, last, &error));
        }
        all
    }

    fn parse(params: &Params, name: &str) -> Result<Option<Self>> {
        let time = |name: &str| {
            let example = "\"30s\"";
            let value = params.value(name, example)?;
            value.map(|value| text::time(&text::literal(value, &format!("{name} = {example}"))?)).transpose()
        };
        let share = |name: &str| {
            let example = "\"50%\"";
            let value = params.value(name, example)?;
            value.map(|value| text::share(&text::literal(value, &format!("{name} = {example}"))?)).transpose()
        };
        let number = |name: &str| {
            let value = params.value(name, "20")?;
            value.map(|value| text::number(value, &format!("{name} = 20"))).transpose()
        };
        Ok(match name {
            "failure_rate" => share(name)?.map(Self::FailureRate),
            "over" => match params.value(name, "100` or `over = \"60s\"")? {
                Some(Expr::Lit(ExprLit { lit: Lit::Int(_), .. })) => number(name)?.map(Self::OverCalls),
                _ => time(name)?.map(Self::OverTime),
            },
            "min_calls" => number(name)?.map(Self::MinCalls),
            "slow" => {
                let rate = share("slow_rate")?.unwrap_or(Share::ratio(1, 2));
                time(name)?.map(|longer_than| Self::Slow(rate, longer_than))
            }
            "slow_rate" if !params.has("slow") => match params.span(name) {
                Some(span) => {
                    return Err(Error::new(
                        span,
                        "what is slow? Say it beside this, as in `slow = \"200ms\"`",
                    ));
                }
                None => None,
            },
            "open_for" => time(name)?.map(Self::OpenFor),
            "backoff" => match params.value(name, "1.5")? {
                None => None,
                Some(value) => {
                    let longest = time("longest")?.unwrap_or(Micros::from_secs(3_600));
                    Some(Self::Backoff(factor(value)?, longest))
                }
            },
            "longest" if !params.has("backoff") => match params.span(name) {
                Some(span) => {
                    return Err(Error::new(
                        span,
                        "open times do not grow; say by what they do, as in `backoff = 1.5`",
                    ));
                }
                None => None,
            },
            "jitter" => share(name)?.map(Self::Jitter),
            "probes" => number(name)?.map(Self::Probes),
            "probe_deadline" => time(name)?.map(Self::ProbeDeadline),
            _ => None,
        })
    }

    fn apply(self, builder: BreakerBuilder) -> BreakerBuilder {
        match self {
            Self::OverCalls(calls) => builder.over_calls(calls),
            Self::OverTime(window) => builder.over_time(window),
            Self::MinCalls(calls) => builder.min_calls(calls.into()),
            Self::FailureRate(rate) => builder.failure_rate(rate),
            Self::Slow(rate, longer_than) => builder.slow_calls(rate, longer_than),
            Self::OpenFor(time) => builder.open_for(time),
            Self::Backoff(factor, longest) => builder.backoff(factor, longest),
            Self::Jitter(jitter) => builder.jitter(jitter),
            Self::Probes(probes) => builder.probes(probes),
            Self::ProbeDeadline(deadline) => builder.probe_deadline(deadline),
        }
    }

    fn tokens(self, krate: &Path) -> TokenStream {
        let site = Span::mixed_site();
        let micros = |time: Micros| {
            let micros = time.get();
            quote_spanned!(site=> #krate::site::Micros::new(#micros))
        };
        let share = |share: Share| {
            let text = share.to_string();
            quote_spanned!(site=> #text.parse()?)
        };
        let (method, arguments) = match self {
            Self::OverCalls(calls) => ("over_calls", vec![calls.to_token_stream()]),
            Self::OverTime(window) => ("over_time", vec![micros(window)]),
            Self::MinCalls(calls) => ("min_calls", vec![u64::from(calls).to_token_stream()]),
            Self::FailureRate(rate) => ("failure_rate", vec![share(rate)]),
            Self::Slow(rate, longer_than) => ("slow_calls", vec![share(rate), micros(longer_than)]),
            Self::OpenFor(time) => ("open_for", vec![micros(time)]),
            Self::Backoff(factor, longest) => ("backoff", vec![factor.to_token_stream(), micros(longest)]),
            Self::Jitter(jitter) => ("jitter", vec![share(jitter)]),
            Self::Probes(probes) => ("probes", vec![probes.to_token_stream()]),
            Self::ProbeDeadline(deadline) => ("probe_deadline", vec![micros(deadline)]),
        };
        let method = Ident::new(method, site);
        quote_spanned!(site=> .#method(#(#arguments),*))
    }
}

fn blame(params: &Params, name: &str, error: &SettingError) -> Error {
    Error::new(params.span(name).unwrap_or_else(Span::call_site), error)
}

fn factor(value: &Expr) -> Result<f64> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Float(factor), .. }) => factor.base10_parse(),
        Expr::Lit(ExprLit { lit: Lit::Int(factor), .. }) => factor.base10_parse(),
        other => Err(Error::new_spanned(other, "a number is needed here, as in `backoff = 1.5`")),
    }
}
