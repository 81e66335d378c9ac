//! `#[retry]` and `#[time_limit]`: their parameters, and their code.

use crate::{
    function::{Function, output_hint, respan},
    params::{ErrorList, Params},
    pattern::{self, BoundNames},
    rejection::RejectionMode,
    text,
};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote_spanned};
use syn::{Error, Expr, Lit, LitStr, Path, Result};
use tidegate_core::{Micros, Percent, SettingError};
use tidegate_overload::{HedgeDelay, Retrier, RetryBuilder};

/// A parsed `#[retry]`.
pub(crate) struct RetryAttribute {
    pub(crate) krate: Path,
    rejection: RejectionMode,
    classify: Option<Expr>,
    settings: Vec<RetrySetting>,
    message: Option<LitStr>,
}

/// One setting, validated at compile time and emitted as code.
#[derive(Clone, Copy)]
enum RetrySetting {
    Max(u32),
    Backoff(Micros),
    MaxBackoff(Micros),
    TimeLimit(Micros),
    AttemptTimeLimit(Micros),
    HedgeAfter(HedgeDelay),
    Budget(Percent),
    MinPerSecond(u32),
}

const RETRY_PARAM_NAMES: &[&str] = &[
    "max",
    "backoff",
    "max_backoff",
    "time_limit",
    "attempt_time_limit",
    "hedge_after",
    "budget",
    "min_per_second",
    "classify",
    "message",
    "map_err",
    "skip",
    "crate",
];

impl RetryAttribute {
    /// Parses the parameters; `None` for `skip`.
    pub(crate) fn parse(tokens: TokenStream) -> Result<Option<Self>> {
        let params = Params::parse(tokens, RETRY_PARAM_NAMES)?;
        if params.flag("skip")? {
            return Ok(None);
        }
        let mut errors = ErrorList::default();
        if let Some(literal) = params.literals().first() {
            errors.push(Error::new(literal.span(), "a retry has no quota; write `#[retry(max = 2)]`"));
        }
        let retry = Self {
            krate: errors
                .or_default(params.krate().map(Some))
                .unwrap_or_else(|| syn::parse_quote!(::tidegate)),
            rejection: errors.or_default(RejectionMode::parse(&params)),
            classify: errors.or_default(
                params.value("classify", "|result| RetryAction::Finish").map(Option::<&Expr>::cloned),
            ),
            settings: RetrySetting::parse_all(&params, &mut errors),
            message: errors.or_default(params.text("message", "\"try again later\"")),
        };
        errors.into_result(Some(retry))
    }

    /// The body, called once for each attempt with copies of the arguments.
    pub(crate) fn wrap(
        &self,
        function: &Function,
        attempt: &TokenStream,
        rejection: &Ident,
    ) -> Result<TokenStream> {
        let site = Span::mixed_site();
        let Self { krate, message, .. } = self;
        let message = message.iter();
        let settings = self.settings.iter().map(|setting| setting.tokens(krate));
        let copies = function.repeatable_arguments()?;
        let copies = copies.iter().map(|(name, mutability)| {
            quote_spanned!(site=> let #mutability #name = ::core::clone::Clone::clone(&#name);)
        });
        let classify = match &self.classify {
            Some(classify) => {
                let classify = function.rename_self(classify);
                quote_spanned!(site=> #krate::site::classify_retry(answer, #classify))
            }
            None => {
                let (first, last) = function.output_span();
                let krate = respan(krate, first);
                let outcome = quote_spanned!(first=> #krate::site::ClassifyOutcome);
                let of_answer = quote_spanned!(last=> ::outcome(answer));
                quote_spanned!(site=> #krate::site::retry_failure(#outcome #of_answer))
            }
        };
        let expected = output_hint(function.output().as_ref());
        let rejected = self.rejection.match_arm(krate, function, &[], None)?;
        Ok(quote_spanned! {site=>
            fn __tidegate_retry() -> ::core::result::Result<
                (#krate::site::RuleConfig, #krate::site::Retrier),
                #krate::site::SettingError,
            > {
                ::core::result::Result::Ok((
                    #krate::site::config_for_function(__tidegate_retry, "#retry") #(.message(#message))*,
                    #krate::site::Retrier::builder().clock(#krate::site::clock()) #(#settings)* .build()?,
                ))
            }
            static __TIDEGATE_RETRY: #krate::site::RetrySite = #krate::site::RetrySite::new(__tidegate_retry);
            let answered = __TIDEGATE_RETRY.call(
                |answer| #classify,
                move |_| {
                    #(#copies)*
                    async move {
                        let recorded = #krate::site::AttemptRejection::default();
                        let #rejection = &recorded;
                        let answer = async move { #expected #attempt }.await;
                        (answer, recorded)
                    }
                },
            );
            match answered.await {
                ::core::result::Result::Ok(answer) => answer,
                #rejected
            }
        })
    }
}

impl RetrySetting {
    fn parse_all(params: &Params, errors: &mut ErrorList) -> Vec<Self> {
        let mut all = Vec::new();
        for name in RETRY_PARAM_NAMES {
            match Self::parse(params, name) {
                Ok(None) => {}
                // Validates each setting alone first, so that the error has the right span. The default maximum backoff
                // is checked with the backoff below.
                Ok(Some(setting)) => match setting.apply(Retrier::builder()).build() {
                    Err(error) if !matches!(setting, Self::Backoff(_) | Self::MaxBackoff(_)) => {
                        errors.push(params.setting_error(name, &error));
                    }
                    Ok(_) | Err(_) => all.push(setting),
                },
                Err(error) => errors.push(error),
            }
        }
        let together = all.iter().fold(Retrier::builder(), |builder, setting| setting.apply(builder));
        if let Err(error) = together.build() {
            let names = ["hedge_after", "max_backoff", "backoff"];
            let last = names.into_iter().find(|name| params.has(name)).unwrap_or("max");
            errors.push(params.setting_error(last, &error));
        }
        all
    }

    fn parse(params: &Params, name: &str) -> Result<Option<Self>> {
        let time = |example| {
            let text = params.text(name, example)?;
            text.map(|text| text::parse_time(&text)).transpose()
        };
        let number = || {
            let value = params.value(name, "2")?;
            value.map(|value| text::parse_number(value, &format!("{name} = 2"))).transpose()
        };
        Ok(match name {
            "max" => number()?.map(Self::Max),
            "backoff" => time("\"50ms\"")?.map(Self::Backoff),
            "max_backoff" => time("\"5s\"")?.map(Self::MaxBackoff),
            "time_limit" => time("\"2s\"")?.map(Self::TimeLimit),
            "attempt_time_limit" => time("\"500ms\"")?.map(Self::AttemptTimeLimit),
            "hedge_after" => {
                let text = params.text(name, "\"p95\"")?;
                let delay =
                    text.map(|text| text.value().parse().map_err(|error| Error::new(text.span(), error)));
                delay.transpose()?.map(Self::HedgeAfter)
            }
            "budget" => {
                let text = params.text(name, "\"20%\"")?;
                text.map(|text| text::parse_percent(&text)).transpose()?.map(Self::Budget)
            }
            "min_per_second" => number()?.map(Self::MinPerSecond),
            _ => None,
        })
    }

    fn apply(self, builder: RetryBuilder) -> RetryBuilder {
        match self {
            Self::Max(retries) => builder.max(retries),
            Self::Backoff(backoff) => builder.backoff(backoff),
            Self::MaxBackoff(backoff) => builder.max_backoff(backoff),
            Self::TimeLimit(limit) => builder.time_limit(limit),
            Self::AttemptTimeLimit(limit) => builder.attempt_time_limit(limit),
            Self::HedgeAfter(delay) => builder.hedge_after(delay),
            Self::Budget(share) => builder.budget(share),
            Self::MinPerSecond(retries) => builder.min_per_second(retries),
        }
    }

    fn tokens(self, krate: &Path) -> TokenStream {
        let site = Span::mixed_site();
        let micros = |time: Micros| {
            let micros = time.get();
            quote_spanned!(site=> #krate::site::Micros::new(#micros))
        };
        let parsed = |text: String| quote_spanned!(site=> #text.parse()?);
        let (method, argument) = match self {
            Self::Max(retries) => ("max", retries.to_token_stream()),
            Self::Backoff(backoff) => ("backoff", micros(backoff)),
            Self::MaxBackoff(backoff) => ("max_backoff", micros(backoff)),
            Self::TimeLimit(limit) => ("time_limit", micros(limit)),
            Self::AttemptTimeLimit(limit) => ("attempt_time_limit", micros(limit)),
            Self::HedgeAfter(delay) => {
                let text = delay.to_string();
                ("hedge_after", quote_spanned!(site=> #text.parse::<#krate::site::HedgeDelay>()?))
            }
            Self::Budget(share) => ("budget", parsed(share.to_string())),
            Self::MinPerSecond(retries) => ("min_per_second", retries.to_token_stream()),
        };
        let method = Ident::new(method, site);
        quote_spanned!(site=> .#method(#argument))
    }
}

/// A parsed `#[time_limit]`.
pub(crate) struct TimeLimitAttribute {
    pub(crate) krate: Path,
    rejection: RejectionMode,
    limit: Micros,
    message: Option<LitStr>,
}

const TIME_LIMIT_PARAM_NAMES: &[&str] = &["message", "map_err", "skip", "crate"];

impl TimeLimitAttribute {
    /// Parses the parameters; `None` for `skip`.
    pub(crate) fn parse(tokens: TokenStream) -> Result<Option<Self>> {
        let params = Params::parse(tokens, TIME_LIMIT_PARAM_NAMES)?;
        if params.flag("skip")? {
            return Ok(None);
        }
        let mut errors = ErrorList::default();
        let limit = match params.literals() {
            [Lit::Str(text)] => errors.or_default(text::parse_time(text).and_then(|limit| {
                SettingError::require_finite("a time limit", limit)
                    .map_err(|error| Error::new(text.span(), error))?;
                Ok(limit)
            })),
            [other] => {
                errors.push(Error::new(other.span(), "expected a time, as in `\"2s\"`"));
                Micros::ZERO
            }
            [] => {
                errors
                    .push(Error::new(Span::call_site(), "missing time limit; write `#[time_limit(\"2s\")]`"));
                Micros::ZERO
            }
            [_, second, ..] => {
                errors.push(Error::new(second.span(), "more than one time limit; remove the others"));
                Micros::ZERO
            }
        };
        let attribute = Self {
            krate: errors
                .or_default(params.krate().map(Some))
                .unwrap_or_else(|| syn::parse_quote!(::tidegate)),
            rejection: errors.or_default(RejectionMode::parse(&params)),
            limit,
            message: errors.or_default(params.text("message", "\"try again later\"")),
        };
        errors.into_result(Some(attribute))
    }

    /// The body within the time limit.
    pub(crate) fn wrap(&self, function: &Function, block: &TokenStream) -> Result<TokenStream> {
        let site = Span::mixed_site();
        let (krate, limit) = (&self.krate, self.limit.get());
        let message = self.message.iter();
        let expected = output_hint(function.output().as_ref());
        let rejected = self.rejection.match_arm(krate, function, &[], None)?;
        Ok(quote_spanned! {site=>
            {
                fn __tidegate_time_limit() -> #krate::site::RuleConfig {
                    #krate::site::config_for_function(__tidegate_time_limit, "#time_limit") #(.message(#message))*
                }
                static __TIDEGATE_SITE: #krate::site::TimeLimitSite = #krate::site::TimeLimitSite::new(
                    #krate::site::Micros::new(#limit),
                    __tidegate_time_limit,
                );
                match __TIDEGATE_SITE.call(async move { #expected #block }).await {
                    ::core::result::Result::Ok(answer) => answer,
                    #rejected
                }
            }
        })
    }
}

impl Function {
    /// The names of all arguments, which are copied for each attempt. An error if one can be used only once.
    fn repeatable_arguments(&self) -> Result<BoundNames> {
        self.check_repeatable()?;
        let mut names = BoundNames::new();
        self.argument_patterns().for_each(|pattern| pattern::add_bound_names(pattern, &mut names));
        Ok(names)
    }
}
