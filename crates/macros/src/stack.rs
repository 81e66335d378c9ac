//! All attributes of one function, in the order in which they are checked: rates, slots, breakers, the body.
//!
//! A call that a rate refuses holds no slot, and neither tells a breaker anything. What was taken from a rate is given
//! back when a later one refuses.

use crate::{
    breaker::BreakerAttribute,
    function::{Function, output_hint, respan},
    limit::{LimitArguments, LimitAttribute, LimitKind},
    params::ErrorList,
};
use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{format_ident, quote_spanned};
use syn::{Attribute, Error, Meta, Path, Result, parse_quote};

/// Which attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttributeKind {
    Limit,
    Concurrency,
    Breaker,
}

/// All attributes of one function.
#[derive(Default)]
struct AttributeStack {
    limits: Vec<LimitAttribute>,
    concurrency: Vec<LimitAttribute>,
    breakers: Vec<BreakerAttribute>,
    /// What those that were taken off the function are called there.
    paths: Vec<Path>,
}

/// Says of an attribute that another has spoken for it.
pub(crate) const CONSUMED_MARK: &str = "__consumed";

impl AttributeKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Concurrency => "concurrency",
            Self::Breaker => "breaker",
        }
    }

    /// Looks whether there is anything wrong with its parameters; gives the crate that they name.
    pub(crate) fn check(self, params: TokenStream) -> Result<Path> {
        let krate = match self {
            Self::Limit => LimitKind::Rate.parse(params)?.map(|limit| limit.krate),
            Self::Concurrency => LimitKind::Concurrency.parse(params)?.map(|limit| limit.krate),
            Self::Breaker => BreakerAttribute::parse(params)?.map(|breaker| breaker.krate),
        };
        Ok(krate.unwrap_or_else(|| parse_quote!(::tidegate)))
    }

    /// Which of ours an attribute is.
    pub(crate) fn from_attribute(attribute: &Attribute) -> Option<Self> {
        let path = attribute.path();
        // Somebody else's `other::limit` is left alone; ours under another path says so.
        let is_ours = path.segments.len() == 1
            || path.segments.iter().any(|segment| segment.ident == "tidegate")
            || attribute_params(attribute.clone()).is_ok_and(has_crate_param);
        let name = path.segments.last().filter(|_| is_ours)?;
        [Self::Limit, Self::Concurrency, Self::Breaker].into_iter().find(|which| name.ident == which.name())
    }
}

/// Writes a function anew: with what `which` says, and with all that is on it besides.
pub(crate) fn expand(
    kind: AttributeKind,
    params: TokenStream,
    function: &mut Function,
) -> Result<TokenStream> {
    let mut stack = AttributeStack::default();
    let mut mistakes = ErrorList::default();
    mistakes.or_default(function.check(kind.name()));
    mistakes.or_default(stack.push(kind, params));
    let (ours, others): (Vec<_>, _) = std::mem::take(&mut function.attrs)
        .into_iter()
        .partition(|attribute| AttributeKind::from_attribute(attribute).is_some());
    function.attrs = others;
    for attribute in ours {
        let Some(which) = AttributeKind::from_attribute(&attribute) else { continue };
        stack.paths.push(attribute.path().clone());
        mistakes.or_default(attribute_params(attribute).and_then(|params| stack.push(which, params)));
    }
    mistakes.into_result(())?;
    stack.expand_function(function)
}

/// Whether there is a `crate = …` among parameters. A path that starts with `crate` is somebody else's.
fn has_crate_param(params: TokenStream) -> bool {
    let tokens: Vec<_> = params.into_iter().collect();
    tokens.windows(2).any(|pair| match pair {
        [TokenTree::Ident(name), TokenTree::Punct(equals)] => name == "crate" && equals.as_char() == '=',
        _ => false,
    })
}

/// What stands between the brackets of an attribute.
pub(crate) fn attribute_params(attribute: Attribute) -> Result<TokenStream> {
    match attribute.meta {
        Meta::Path(_) => Ok(TokenStream::new()),
        Meta::List(list) => Ok(list.tokens),
        Meta::NameValue(pair) => {
            Err(Error::new_spanned(pair, "parameters stand in brackets, as in `#[limit(\"10/s\")]`"))
        }
    }
}

impl AttributeStack {
    fn push(&mut self, kind: AttributeKind, params: TokenStream) -> Result<()> {
        match kind {
            AttributeKind::Limit => self.limits.extend(LimitKind::Rate.parse(params)?),
            AttributeKind::Concurrency => self.concurrency.extend(LimitKind::Concurrency.parse(params)?),
            AttributeKind::Breaker => self.breakers.extend(BreakerAttribute::parse(params)?),
        }
        Ok(())
    }

    fn expand_function(&self, function: &mut Function) -> Result<TokenStream> {
        let site = Span::mixed_site();
        let gates = self.limits.len() + self.concurrency.len() + self.breakers.len();
        let mark = Ident::new(CONSUMED_MARK, site);
        let paths = &self.paths;
        // So that what they were imported by is in use.
        let mut checks = quote_spanned!(site=> #(#[#paths(#mark)] const _: () = ();)*);
        if gates == 0 {
            let block = function.block();
            return Ok(function.with_body(quote_spanned!(site=> #checks #block)));
        }
        function.name_arguments();
        let (mut granted, mut reservations) = (Vec::new(), Vec::new());
        for (index, limit) in self.limits.iter().chain(&self.concurrency).enumerate() {
            let grant = format_ident!("granted_{}", index, span = site);
            let verb = match limit.kind {
                LimitKind::Concurrency => AcquireMode::Acquire,
                // Nobody else can refuse what this one grants.
                LimitKind::Rate if gates == 1 => AcquireMode::Check,
                LimitKind::Rate => AcquireMode::Reserve,
            };
            let number = if limit.kind == LimitKind::Rate { index } else { index - self.limits.len() };
            checks.extend(expand_limit(limit, verb, number, function, &grant, &granted)?);
            if verb == AcquireMode::Reserve {
                reservations.push(grant.clone());
            }
            if verb != AcquireMode::Check {
                granted.push(grant);
            }
        }
        let mut passes = Vec::new();
        for (index, breaker) in self.breakers.iter().enumerate() {
            let pass = format_ident!("pass_{}", index, span = site);
            checks.extend(expand_breaker(breaker, index, function, &pass, &granted)?);
            granted.push(pass.clone());
            passes.push(pass);
        }
        let body = self.guarded_body(function, &passes);
        Ok(function.with_body(quote_spanned! {site=>
            #checks
            #(if let ::core::option::Option::Some(reservation) = #reservations { reservation.keep(); })*
            #body
        }))
    }

    /// The body, and what breakers are told of how it ended.
    fn guarded_body(&self, function: &Function, passes: &[Ident]) -> TokenStream {
        let site = Span::mixed_site();
        let block = function.block();
        if passes.is_empty() {
            return block;
        }
        let output = function.output();
        let expected = output_hint(output.as_ref());
        let call = match (function.is_async(), &output) {
            (true, _) => quote_spanned!(site=> async move { #expected #block }.await),
            (false, None) => {
                let krate = &self.breakers[0].krate;
                quote_spanned!(site=> #krate::site::call(|| #block))
            }
            (false, Some(output)) => {
                let krate = &self.breakers[0].krate;
                quote_spanned!(site=> #krate::site::call(|| -> #output { #block }))
            }
        };
        let reports = self.breakers.iter().zip(passes).map(|(breaker, pass)| {
            let krate = &breaker.krate;
            let report = match &breaker.failure {
                Some(failure) => {
                    let failure = function.rename_self(failure);
                    quote_spanned!(site=> #krate::site::classify(&answer, #failure))
                }
                None => {
                    let (first, last) = function.output_span();
                    let krate = respan(krate, first);
                    let outcome = quote_spanned!(first=> #krate::site::ClassifyOutcome);
                    let report = quote_spanned!(last=> ::outcome(&answer));
                    quote_spanned!(site=> #outcome #report)
                }
            };
            quote_spanned!(site=> if let ::core::option::Option::Some(pass) = #pass { pass.record(#report); })
        });
        quote_spanned! {site=>
            let answer = #call;
            #(#reports)*
            answer
        }
    }
}

/// How a limit is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AcquireMode {
    /// Takes tokens.
    Check,
    /// Takes tokens that can be given back.
    Reserve,
    /// Takes a slot.
    Acquire,
}

/// Asks one limit; what it grants is called `grant`.
fn expand_limit(
    limit: &LimitAttribute,
    mode: AcquireMode,
    number: usize,
    function: &Function,
    grant: &Ident,
    before: &[Ident],
) -> Result<TokenStream> {
    let site = Span::mixed_site();
    let which = if limit.kind == LimitKind::Rate { AttributeKind::Limit } else { AttributeKind::Concurrency };
    let statics = limit.site(&name_suffix(which, number), function);
    let arguments = limit.arguments(function)?;
    let refused = limit.rejection.match_arm(&limit.krate, function, before)?;
    let method = match (mode, function.is_async()) {
        (AcquireMode::Check, true) => "admit",
        (AcquireMode::Check, false) => "admit_blocking",
        (AcquireMode::Reserve, true) => "reserve",
        (AcquireMode::Reserve, false) => "reserve_blocking",
        (AcquireMode::Acquire, true) => "acquire",
        (AcquireMode::Acquire, false) => "acquire_blocking",
    };
    let method = Ident::new(method, site);
    // The check is a statement of its own: what it borrows is not borrowed while anything is awaited.
    let LimitArguments { cost, key } = arguments;
    let cost_name = cost.is_some().then(|| quote_spanned!(site=> , cost));
    let check = quote_spanned!(site=> #cost let checked = open_site.#method(#key #cost_name););
    let granted = match mode {
        AcquireMode::Check => quote_spanned!(site=> ::core::result::Result::Ok(()) => {}),
        AcquireMode::Reserve | AcquireMode::Acquire => {
            quote_spanned!(site=> ::core::result::Result::Ok(granted) => ::core::option::Option::Some(granted),)
        }
    };
    let answer = match function.is_async() {
        false => quote_spanned!(site=> match checked { #granted #refused }),
        true => quote_spanned! {site=>
            match checked {
                #granted
                ::core::result::Result::Err(pending) => match pending.resolve().await { #granted #refused },
            }
        },
    };
    Ok(match mode {
        AcquireMode::Check => quote_spanned! {site=>
            {
                #statics
                if let ::core::option::Option::Some(open_site) = __TIDEGATE_SITE.open() {
                    #check
                    #answer
                }
            }
        },
        AcquireMode::Reserve | AcquireMode::Acquire => quote_spanned! {site=>
            let #grant = {
                #statics
                match __TIDEGATE_SITE.open() {
                    ::core::option::Option::Some(open_site) => {
                        #check
                        #answer
                    }
                    ::core::option::Option::None => ::core::option::Option::None,
                }
            };
        },
    })
}

/// Asks one breaker; its leave is called `pass`.
fn expand_breaker(
    breaker: &BreakerAttribute,
    number: usize,
    function: &Function,
    pass: &Ident,
    before: &[Ident],
) -> Result<TokenStream> {
    let site = Span::mixed_site();
    let statics = breaker.site(&name_suffix(AttributeKind::Breaker, number));
    let refused = breaker.rejection.match_arm(&breaker.krate, function, before)?;
    Ok(quote_spanned! {site=>
        let #pass = {
            #statics
            match __TIDEGATE_SITE.try_acquire() {
                ::core::result::Result::Ok(pass) => pass,
                #refused
            }
        };
    })
}

/// What tells one attribute of a function from another, behind the function's name.
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
