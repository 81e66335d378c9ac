//! All attributes of one function, in the order in which they are asked: rates, slots, breakers, the body.
//!
//! A call that a rate refuses holds no slot, and neither tells a breaker anything. What was taken from a rate is given
//! back when a later one refuses.

use crate::{
    breaker::Breaker,
    function::{Function, expect_output, respan},
    limit::{Arguments, Limit, What},
    params::Mistakes,
};
use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{format_ident, quote_spanned};
use syn::{Attribute, Error, Meta, Path, Result, parse_quote};

/// Which attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Limit,
    Concurrency,
    Breaker,
}

/// All attributes of one function.
#[derive(Default)]
struct Stack {
    limits: Vec<Limit>,
    slots: Vec<Limit>,
    breakers: Vec<Breaker>,
    /// What those that were taken off the function are called there.
    paths: Vec<Path>,
}

/// Says of an attribute that another has spoken for it.
pub(crate) const SPOKEN_FOR: &str = "__spoken_for";

impl Which {
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
            Self::Limit => What::Rate.parse(params)?.map(|limit| limit.krate),
            Self::Concurrency => What::Slots.parse(params)?.map(|limit| limit.krate),
            Self::Breaker => Breaker::parse(params)?.map(|breaker| breaker.krate),
        };
        Ok(krate.unwrap_or_else(|| parse_quote!(::tidegate)))
    }

    /// Which of ours an attribute is.
    pub(crate) fn of(attribute: &Attribute) -> Option<Self> {
        let path = attribute.path();
        // Somebody else's `other::limit` is left alone; ours under another path says so.
        let is_ours = path.segments.len() == 1
            || path.segments.iter().any(|segment| segment.ident == "tidegate")
            || params_of(attribute.clone()).is_ok_and(names_crate);
        let name = path.segments.last().filter(|_| is_ours)?;
        [Self::Limit, Self::Concurrency, Self::Breaker].into_iter().find(|which| name.ident == which.name())
    }
}

/// Writes a function anew: with what `which` says, and with all that is on it besides.
pub(crate) fn expand(which: Which, params: TokenStream, function: &mut Function) -> Result<TokenStream> {
    let mut stack = Stack::default();
    let mut mistakes = Mistakes::default();
    mistakes.read(function.check(which.name()));
    mistakes.read(stack.push(which, params));
    let (ours, others): (Vec<_>, _) =
        std::mem::take(&mut function.attrs).into_iter().partition(|attribute| Which::of(attribute).is_some());
    function.attrs = others;
    for attribute in ours {
        let Some(which) = Which::of(&attribute) else { continue };
        stack.paths.push(attribute.path().clone());
        mistakes.read(params_of(attribute).and_then(|params| stack.push(which, params)));
    }
    mistakes.finish(())?;
    stack.write(function)
}

/// Whether there is a `crate = …` among parameters. A path that starts with `crate` is somebody else's.
fn names_crate(params: TokenStream) -> bool {
    let tokens: Vec<_> = params.into_iter().collect();
    tokens.windows(2).any(|pair| match pair {
        [TokenTree::Ident(name), TokenTree::Punct(equals)] => name == "crate" && equals.as_char() == '=',
        _ => false,
    })
}

/// What stands between the brackets of an attribute.
pub(crate) fn params_of(attribute: Attribute) -> Result<TokenStream> {
    match attribute.meta {
        Meta::Path(_) => Ok(TokenStream::new()),
        Meta::List(list) => Ok(list.tokens),
        Meta::NameValue(pair) => {
            Err(Error::new_spanned(pair, "parameters stand in brackets, as in `#[limit(\"10/s\")]`"))
        }
    }
}

impl Stack {
    fn push(&mut self, which: Which, params: TokenStream) -> Result<()> {
        match which {
            Which::Limit => self.limits.extend(What::Rate.parse(params)?),
            Which::Concurrency => self.slots.extend(What::Slots.parse(params)?),
            Which::Breaker => self.breakers.extend(Breaker::parse(params)?),
        }
        Ok(())
    }

    fn write(&self, function: &mut Function) -> Result<TokenStream> {
        let site = Span::mixed_site();
        let gates = self.limits.len() + self.slots.len() + self.breakers.len();
        let mark = Ident::new(SPOKEN_FOR, site);
        let paths = &self.paths;
        // So that what they were imported by is in use.
        let mut asked = quote_spanned!(site=> #(#[#paths(#mark)] const _: () = ();)*);
        if gates == 0 {
            let block = function.block();
            return Ok(function.with_body(quote_spanned!(site=> #asked #block)));
        }
        function.name_arguments();
        let (mut granted, mut kept) = (Vec::new(), Vec::new());
        for (index, limit) in self.limits.iter().chain(&self.slots).enumerate() {
            let grant = format_ident!("granted_{}", index, span = site);
            let verb = match limit.what {
                What::Slots => Verb::Hold,
                // Nobody else can refuse what this one grants.
                What::Rate if gates == 1 => Verb::Ask,
                What::Rate => Verb::Take,
            };
            let number = if limit.what == What::Rate { index } else { index - self.limits.len() };
            asked.extend(ask(limit, verb, number, function, &grant, &granted)?);
            if verb == Verb::Take {
                kept.push(grant.clone());
            }
            if verb != Verb::Ask {
                granted.push(grant);
            }
        }
        let mut passes = Vec::new();
        for (index, breaker) in self.breakers.iter().enumerate() {
            let pass = format_ident!("pass_{}", index, span = site);
            asked.extend(enter(breaker, index, function, &pass, &granted)?);
            granted.push(pass.clone());
            passes.push(pass);
        }
        let body = self.guarded_body(function, &passes);
        Ok(function.with_body(quote_spanned! {site=>
            #asked
            #(if let ::core::option::Option::Some(taken) = #kept { taken.keep(); })*
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
        let expected = expect_output(output.as_ref());
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
                    quote_spanned!(site=> #krate::site::judge(&answer, #failure))
                }
                None => {
                    let (first, last) = function.output_span();
                    let krate = respan(krate, first);
                    let judged = quote_spanned!(first=> #krate::site::Judged);
                    let report = quote_spanned!(last=> ::report(&answer));
                    quote_spanned!(site=> #judged #report)
                }
            };
            quote_spanned!(site=> if let ::core::option::Option::Some(pass) = #pass { pass.report(#report); })
        });
        quote_spanned! {site=>
            let answer = #call;
            #(#reports)*
            answer
        }
    }
}

/// How a limit is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    /// Takes tokens.
    Ask,
    /// Takes tokens that can be given back.
    Take,
    /// Takes a slot.
    Hold,
}

/// Asks one limit; what it grants is called `grant`.
fn ask(
    limit: &Limit,
    verb: Verb,
    number: usize,
    function: &Function,
    grant: &Ident,
    before: &[Ident],
) -> Result<TokenStream> {
    let site = Span::mixed_site();
    let which = if limit.what == What::Rate { Which::Limit } else { Which::Concurrency };
    let statics = limit.site(&behind(which, number), function);
    let arguments = limit.arguments(function)?;
    let refused = limit.refusal.arm(&limit.krate, function, before)?;
    let verb_name = match (verb, function.is_async()) {
        (Verb::Ask, true) => "ask",
        (Verb::Ask, false) => "ask_blocking",
        (Verb::Take, true) => "take",
        (Verb::Take, false) => "take_blocking",
        (Verb::Hold, true) => "hold",
        (Verb::Hold, false) => "hold_blocking",
    };
    let verb_name = Ident::new(verb_name, site);
    // The question is a statement of its own: what it borrows is not borrowed while anything is awaited.
    let Arguments { cost, key } = arguments;
    let cost_name = cost.is_some().then(|| quote_spanned!(site=> , cost));
    let question = quote_spanned!(site=> #cost let asked = opened.#verb_name(#key #cost_name););
    let granted = match verb {
        Verb::Ask => quote_spanned!(site=> ::core::result::Result::Ok(()) => {}),
        Verb::Take | Verb::Hold => {
            quote_spanned!(site=> ::core::result::Result::Ok(granted) => ::core::option::Option::Some(granted),)
        }
    };
    let answer = match function.is_async() {
        false => quote_spanned!(site=> match asked { #granted #refused }),
        true => quote_spanned! {site=>
            match asked {
                #granted
                ::core::result::Result::Err(stopped) => match stopped.settle().await { #granted #refused },
            }
        },
    };
    Ok(match verb {
        Verb::Ask => quote_spanned! {site=>
            {
                #statics
                if let ::core::option::Option::Some(opened) = __TIDEGATE_SITE.open() {
                    #question
                    #answer
                }
            }
        },
        Verb::Take | Verb::Hold => quote_spanned! {site=>
            let #grant = {
                #statics
                match __TIDEGATE_SITE.open() {
                    ::core::option::Option::Some(opened) => {
                        #question
                        #answer
                    }
                    ::core::option::Option::None => ::core::option::Option::None,
                }
            };
        },
    })
}

/// Asks one breaker; its leave is called `pass`.
fn enter(
    breaker: &Breaker,
    number: usize,
    function: &Function,
    pass: &Ident,
    before: &[Ident],
) -> Result<TokenStream> {
    let site = Span::mixed_site();
    let statics = breaker.site(&behind(Which::Breaker, number));
    let refused = breaker.refusal.arm(&breaker.krate, function, before)?;
    Ok(quote_spanned! {site=>
        let #pass = {
            #statics
            match __TIDEGATE_SITE.try_pass() {
                ::core::result::Result::Ok(pass) => pass,
                #refused
            }
        };
    })
}

/// What tells one attribute of a function from another, behind the function's name.
fn behind(which: Which, number: usize) -> String {
    match (which, number) {
        (Which::Limit, 0) => String::new(),
        (Which::Limit, number) => format!("#{}", number + 1),
        (which, 0) => format!("#{}", which.name()),
        (which, number) => format!("#{}{}", which.name(), number + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::Which;
    use quote::ToTokens as _;
    use syn::{Attribute, parse_quote};

    #[test]
    fn knows_its_own_and_leaves_others_alone() {
        let table: [(Attribute, bool); 6] = [
            (parse_quote!(#[limit("1/s")]), true),
            (parse_quote!(#[tidegate::limit]), true),
            (parse_quote!(#[gate::limit("1/s", crate = gate)]), true),
            (parse_quote!(#[other::limit]), false),
            (parse_quote!(#[other::limit(with = crate::rate)]), false),
            (parse_quote!(#[limits]), false),
        ];
        for (attribute, is_ours) in table {
            assert_eq!(Which::of(&attribute).is_some(), is_ours, "{}", attribute.to_token_stream());
        }
    }
}
