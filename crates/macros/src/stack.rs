//! All attributes of one function, in the order of their checks: retries, rates, concurrency limits, breakers, the time
//! limit, the body.
//!
//! A call that a rate rejects acquires no permit, and no breaker records it. Tokens of a rate are refunded when a
//! later check rejects. Each attempt of a call is checked, and a breaker records a call that exceeds its time limit.

use crate::{
    breaker::BreakerAttribute,
    function::{Function, output_hint, respan},
    limit::{LimitArguments, LimitAttribute, LimitKind},
    params::ErrorList,
    rejection::RejectionMode,
    retry::{RetryAttribute, TimeLimitAttribute},
};
use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{format_ident, quote_spanned};
use syn::{Attribute, Error, Expr, Meta, Path, Result, parse_quote};

/// The kind of an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttributeKind {
    Limit,
    Concurrency,
    Breaker,
    Retry,
    TimeLimit,
}

/// All attributes of one function.
#[derive(Default)]
struct AttributeStack {
    limits: Vec<LimitAttribute>,
    concurrency: Vec<LimitAttribute>,
    breakers: Vec<BreakerAttribute>,
    retry: Option<RetryAttribute>,
    time_limit: Option<TimeLimitAttribute>,
    /// The paths of the attributes that were removed from the function.
    paths: Vec<Path>,
}

/// Marks an attribute that another one has already expanded.
pub(crate) const CONSUMED_MARK: &str = "__consumed";

impl AttributeKind {
    const ALL: [Self; 5] = [Self::Limit, Self::Concurrency, Self::Breaker, Self::Retry, Self::TimeLimit];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Concurrency => "concurrency",
            Self::Breaker => "breaker",
            Self::Retry => "retry",
            Self::TimeLimit => "time_limit",
        }
    }

    /// Validates its parameters; returns the crate that they name.
    pub(crate) fn check(self, params: TokenStream) -> Result<Path> {
        let krate = match self {
            Self::Limit => LimitKind::Rate.parse(params)?.map(|limit| limit.krate),
            Self::Concurrency => LimitKind::Concurrency.parse(params)?.map(|limit| limit.krate),
            Self::Breaker => BreakerAttribute::parse(params)?.map(|breaker| breaker.krate),
            Self::Retry => RetryAttribute::parse(params)?.map(|retry| retry.krate),
            Self::TimeLimit => TimeLimitAttribute::parse(params)?.map(|limit| limit.krate),
        };
        Ok(krate.unwrap_or_else(|| parse_quote!(::tidegate)))
    }

    /// The kind of an attribute, if it is one of this crate.
    pub(crate) fn from_attribute(attribute: &Attribute) -> Option<Self> {
        let path = attribute.path();
        // An attribute `other::limit` is foreign; a renamed import has a `crate` parameter.
        let is_ours = path.segments.len() == 1
            || path.segments.iter().any(|segment| segment.ident == "tidegate")
            || attribute_params(attribute.clone()).is_ok_and(has_crate_param);
        let name = path.segments.last().filter(|_| is_ours)?;
        Self::ALL.into_iter().find(|which| name.ident == which.name())
    }
}

/// Rewrites a function with this attribute and all others of this crate on it.
pub(crate) fn expand(
    kind: AttributeKind,
    params: TokenStream,
    function: &mut Function,
) -> Result<TokenStream> {
    let mut stack = AttributeStack::default();
    let mut errors = ErrorList::default();
    errors.or_default(function.check(kind.name()));
    errors.or_default(stack.push(kind, params));
    let (ours, others): (Vec<_>, _) = std::mem::take(&mut function.attrs)
        .into_iter()
        .partition(|attribute| AttributeKind::from_attribute(attribute).is_some());
    function.attrs = others;
    for attribute in ours {
        let Some(which) = AttributeKind::from_attribute(&attribute) else { continue };
        stack.paths.push(attribute.path().clone());
        errors.or_default(attribute_params(attribute).and_then(|params| stack.push(which, params)));
    }
    errors.into_result(())?;
    stack.expand_function(function)
}

/// Whether the parameters contain `crate = …`. A path that starts with `crate` does not count.
fn has_crate_param(params: TokenStream) -> bool {
    let tokens: Vec<_> = params.into_iter().collect();
    tokens.windows(2).any(|pair| match pair {
        [TokenTree::Ident(name), TokenTree::Punct(equals)] => name == "crate" && equals.as_char() == '=',
        _ => false,
    })
}

/// The parameters of an attribute.
pub(crate) fn attribute_params(attribute: Attribute) -> Result<TokenStream> {
    match attribute.meta {
        Meta::Path(_) => Ok(TokenStream::new()),
        Meta::List(list) => Ok(list.tokens),
        Meta::NameValue(pair) => {
            Err(Error::new_spanned(pair, "expected parameters in parentheses, as in `#[limit(\"10/s\")]`"))
        }
    }
}

impl AttributeStack {
    fn push(&mut self, kind: AttributeKind, params: TokenStream) -> Result<()> {
        match kind {
            AttributeKind::Limit => self.limits.extend(LimitKind::Rate.parse(params)?),
            AttributeKind::Concurrency => self.concurrency.extend(LimitKind::Concurrency.parse(params)?),
            AttributeKind::Breaker => self.breakers.extend(BreakerAttribute::parse(params)?),
            AttributeKind::Retry => set_once(&mut self.retry, RetryAttribute::parse(params)?, kind)?,
            AttributeKind::TimeLimit => {
                set_once(&mut self.time_limit, TimeLimitAttribute::parse(params)?, kind)?;
            }
        }
        Ok(())
    }

    fn expand_function(&self, function: &mut Function) -> Result<TokenStream> {
        let site = Span::mixed_site();
        let gates = self.limits.len() + self.concurrency.len() + self.breakers.len();
        let mark = Ident::new(CONSUMED_MARK, site);
        let paths = &self.paths;
        // Uses their imports, to avoid warnings about unused ones.
        let mut checks = quote_spanned!(site=> #(#[#paths(#mark)] const _: () = ();)*);
        if gates == 0 && self.retry.is_none() && self.time_limit.is_none() {
            let block = function.block();
            return Ok(function.with_body(quote_spanned!(site=> #checks #block)));
        }
        let marks = std::mem::take(&mut checks);
        // A repeated body does not change the original arguments.
        if self.retry.is_some() {
            function.check_async("retry")?;
            function.attrs.push(parse_quote!(#[allow(unused_mut)]));
        }
        if self.time_limit.is_some() {
            function.check_async("time_limit")?;
        }
        let attempt = Ident::new("attempt", site);
        let recorded_in = self.retry.as_ref().map(|_| &attempt);
        let limits = self.limits.iter().chain(&self.concurrency).map(|limit| &limit.rejection);
        let breakers = self.breakers.iter().map(|breaker| &breaker.rejection);
        if limits.chain(breakers).any(RejectionMode::has_fallback) {
            function.name_arguments();
        }
        let (mut granted, mut recorders) = (Vec::new(), Vec::new());
        let mut counted = TokenStream::new();
        for (index, limit) in self.limits.iter().chain(&self.concurrency).enumerate() {
            let grant = format_ident!("granted_{}", index, span = site);
            let mode = match limit.kind {
                LimitKind::Concurrency => AcquireMode::Acquire,
                // Without another check, nothing can require a refund.
                LimitKind::Rate if gates == 1 => AcquireMode::Check,
                LimitKind::Rate => AcquireMode::Reserve,
            };
            let number = if limit.kind == LimitKind::Rate { index } else { index - self.limits.len() };
            let has_outcome = limit.has_outcome(function);
            checks.extend(expand_limit(limit, mode, number, function, &grant, &granted, recorded_in)?);
            let call = format_ident!("call_{}", index, span = site);
            counted.extend(match (mode, has_outcome) {
                (AcquireMode::Check, false) | (AcquireMode::Acquire, false) => TokenStream::new(),
                (AcquireMode::Check, true) => quote_spanned!(site=> let #call = #grant;),
                (AcquireMode::Reserve, false) => {
                    quote_spanned!(site=> ::core::mem::drop(#grant.map(|reservation| reservation.keep()));)
                }
                (AcquireMode::Reserve, true) => {
                    quote_spanned!(site=> let #call = #grant.map(|reservation| reservation.keep());)
                }
                (AcquireMode::Acquire, true) => quote_spanned! {site=>
                    let mut #grant = #grant;
                    let #call = #grant.as_mut().map(|permit| permit.take_call());
                },
            });
            if has_outcome {
                recorders.push(OutcomeRecorder {
                    krate: &limit.krate,
                    classify: limit.classify.as_ref(),
                    call,
                });
            }
            if mode != AcquireMode::Check {
                granted.push(grant);
            }
        }
        for (index, breaker) in self.breakers.iter().enumerate() {
            let pass = format_ident!("pass_{}", index, span = site);
            checks.extend(expand_breaker(breaker, index, function, &pass, &granted, recorded_in)?);
            granted.push(pass.clone());
            let (krate, classify) = (&breaker.krate, breaker.classify.as_ref());
            recorders.push(OutcomeRecorder { krate, classify, call: pass });
        }
        let block = match &self.time_limit {
            Some(time_limit) => time_limit.wrap(function, &function.block())?,
            None => function.block(),
        };
        let body = recorded_body(function, &block, &recorders);
        let mut body = quote_spanned!(site=> #checks #counted #body);
        if let Some(retry) = &self.retry {
            body = retry.wrap(function, &body, &attempt)?;
        }
        Ok(function.with_body(quote_spanned!(site=> #marks #body)))
    }
}

/// Sets the attribute of a kind that a function can have once.
fn set_once<T>(attribute: &mut Option<T>, parsed: Option<T>, kind: AttributeKind) -> Result<()> {
    match (&attribute, parsed) {
        (Some(_), Some(_)) => {
            let name = kind.name();
            Err(Error::new(Span::call_site(), format!("more than one `#[{name}]`; remove the others")))
        }
        (_, parsed) => {
            *attribute = attribute.take().or(parsed);
            Ok(())
        }
    }
}

/// Records the outcome of the body in a variable with the name `call`.
struct OutcomeRecorder<'a> {
    krate: &'a Path,
    classify: Option<&'a Expr>,
    call: Ident,
}

impl OutcomeRecorder<'_> {
    fn tokens(&self, function: &Function) -> TokenStream {
        let site = Span::mixed_site();
        let Self { krate, call, .. } = self;
        let outcome = match self.classify {
            Some(classify) => {
                let classify = function.rename_self(classify);
                quote_spanned!(site=> #krate::site::classify(&answer, #classify))
            }
            None => {
                let (first, last) = function.output_span();
                let krate = respan(krate, first);
                let outcome = quote_spanned!(first=> #krate::site::ClassifyOutcome);
                let of_answer = quote_spanned!(last=> ::outcome(&answer));
                quote_spanned!(site=> #outcome #of_answer)
            }
        };
        quote_spanned!(site=> if let ::core::option::Option::Some(call) = #call { call.record(#outcome); })
    }
}

/// The body, and the code that records its outcome.
fn recorded_body(function: &Function, block: &TokenStream, recorders: &[OutcomeRecorder<'_>]) -> TokenStream {
    let site = Span::mixed_site();
    let [OutcomeRecorder { krate, .. }, ..] = recorders else { return block.clone() };
    let output = function.output();
    let expected = output_hint(output.as_ref());
    let call = match (function.is_async(), &output) {
        (true, _) => quote_spanned!(site=> async move { #expected #block }.await),
        (false, None) => quote_spanned!(site=> #krate::site::call(|| #block)),
        (false, Some(output)) => quote_spanned!(site=> #krate::site::call(|| -> #output { #block })),
    };
    let records = recorders.iter().map(|recorder| recorder.tokens(function));
    quote_spanned! {site=>
        let answer = #call;
        #(#records)*
        answer
    }
}

/// The way to check a limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AcquireMode {
    /// Takes tokens.
    Check,
    /// Takes tokens that can be refunded.
    Reserve,
    /// Acquires a permit.
    Acquire,
}

/// Checks one limit; its grant has the name `grant`.
fn expand_limit(
    limit: &LimitAttribute,
    mode: AcquireMode,
    number: usize,
    function: &Function,
    grant: &Ident,
    before: &[Ident],
    recorded_in: Option<&Ident>,
) -> Result<TokenStream> {
    let site = Span::mixed_site();
    let which = if limit.kind == LimitKind::Rate { AttributeKind::Limit } else { AttributeKind::Concurrency };
    let statics = limit.site(&name_suffix(which, number), function);
    let arguments = limit.arguments(function)?;
    let rejected = limit.rejection.match_arm(&limit.krate, function, before, recorded_in)?;
    let method = match (mode, function.is_async()) {
        (AcquireMode::Check, true) => "admit",
        (AcquireMode::Check, false) => "admit_blocking",
        (AcquireMode::Reserve, true) => "reserve",
        (AcquireMode::Reserve, false) => "reserve_blocking",
        (AcquireMode::Acquire, true) => "acquire",
        (AcquireMode::Acquire, false) => "acquire_blocking",
    };
    let method = Ident::new(method, site);
    // The check is a separate statement, so that its borrows end before an await.
    let LimitArguments { cost, key } = arguments;
    let cost_name = cost.is_some().then(|| quote_spanned!(site=> , cost));
    let check = quote_spanned!(site=> #cost let checked = open_site.#method(#key #cost_name););
    let is_discarded = mode == AcquireMode::Check && !limit.has_outcome(function);
    let granted = match is_discarded {
        true => quote_spanned!(site=> ::core::result::Result::Ok(_) => {}),
        false => {
            quote_spanned!(site=> ::core::result::Result::Ok(granted) => ::core::option::Option::Some(granted),)
        }
    };
    let decision = match function.is_async() {
        false => quote_spanned!(site=> match checked { #granted #rejected }),
        true => quote_spanned! {site=>
            match checked {
                #granted
                ::core::result::Result::Err(pending) => match pending.resolve().await { #granted #rejected },
            }
        },
    };
    Ok(match is_discarded {
        true => quote_spanned! {site=>
            {
                #statics
                if let ::core::option::Option::Some(open_site) = __TIDEGATE_SITE.open() {
                    #check
                    #decision
                }
            }
        },
        false => quote_spanned! {site=>
            let #grant = {
                #statics
                match __TIDEGATE_SITE.open() {
                    ::core::option::Option::Some(open_site) => {
                        #check
                        #decision
                    }
                    ::core::option::Option::None => ::core::option::Option::None,
                }
            };
        },
    })
}

/// Checks one breaker; its permit has the name `pass`.
fn expand_breaker(
    breaker: &BreakerAttribute,
    number: usize,
    function: &Function,
    pass: &Ident,
    before: &[Ident],
    recorded_in: Option<&Ident>,
) -> Result<TokenStream> {
    let site = Span::mixed_site();
    let statics = breaker.site(&name_suffix(AttributeKind::Breaker, number));
    let rejected = breaker.rejection.match_arm(&breaker.krate, function, before, recorded_in)?;
    Ok(quote_spanned! {site=>
        let #pass = {
            #statics
            match __TIDEGATE_SITE.try_acquire() {
                ::core::result::Result::Ok(pass) => pass,
                #rejected
            }
        };
    })
}

/// The suffix of a function name that distinguishes its attributes.
fn name_suffix(kind: AttributeKind, number: usize) -> String {
    match (kind, number) {
        (AttributeKind::Limit, 0) => String::new(),
        (AttributeKind::Limit, number) => format!("#{}", number + 1),
        (which, 0) => format!("#{}", which.name()),
        (which, number) => format!("#{}{}", which.name(), number + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::AttributeKind;
    use quote::ToTokens as _;
    use syn::{Attribute, parse_quote};

    #[test]
    fn only_own_attributes_are_recognized() {
        let table: [(Attribute, bool); 6] = [
            (parse_quote!(#[limit("1/s")]), true),
            (parse_quote!(#[tidegate::limit]), true),
            (parse_quote!(#[gate::limit("1/s", crate = gate)]), true),
            (parse_quote!(#[other::limit]), false),
            (parse_quote!(#[other::limit(with = crate::rate)]), false),
            (parse_quote!(#[limits]), false),
        ];
        for (attribute, is_ours) in table {
            assert_eq!(
                AttributeKind::from_attribute(&attribute).is_some(),
                is_ours,
                "{}",
                attribute.to_token_stream()
            );
        }
    }
}
