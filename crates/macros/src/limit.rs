//! `#[limit]` and `#[concurrency]`: their parameters, and the code of their sites.

use crate::{
    function::{Function, respan},
    params::{BLOCK_MARK, ErrorList, Params},
    rejection::RejectionMode,
    text,
};
use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::{Error, Expr, ExprLit, Lit, LitStr, Path, Result, spanned::Spanned as _};
use tidegate_core::{AlgorithmKind, Micros, Quota};

/// The kind of a limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitKind {
    /// A rate.
    Rate,
    /// A number of calls in flight.
    Concurrency,
}

/// A parsed attribute.
pub(crate) struct LimitAttribute {
    pub(crate) kind: LimitKind,
    pub(crate) krate: Path,
    pub(crate) rejection: RejectionMode,
    pub(crate) scope: RuleScope,
    pub(crate) classify: Option<Expr>,
    quotas: Vec<String>,
    key: Option<Expr>,
    cost: Option<Expr>,
    wait: Option<u64>,
    message: Option<LitStr>,
    store: Option<LitStr>,
    rule: Option<LitStr>,
    shadow: bool,
}

/// The arguments of a check.
pub(crate) struct LimitArguments {
    /// A statement that computes the cost; none for a concurrency limit.
    pub(crate) cost: Option<TokenStream>,
    /// A reference to the key.
    pub(crate) key: TokenStream,
}

/// Whether each function of a block has its own counter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleScope {
    Own,
    Shared,
}

const PARAM_NAMES: &[&str] = &[
    "key",
    "cost",
    "algorithm",
    "wait",
    "message",
    "on_limit",
    "map_err",
    "classify",
    "store",
    "rule",
    "shadow",
    "shared",
    "skip",
    "crate",
];
const CONCURRENCY_PARAM_NAMES: &[&str] = &[
    "key", "wait", "message", "on_limit", "map_err", "classify", "store", "rule", "shadow", "shared", "skip",
    "crate",
];

impl LimitKind {
    /// Parses the parameters; `None` for `skip`.
    pub(crate) fn parse(self, tokens: TokenStream) -> Result<Option<LimitAttribute>> {
        let known = if self == Self::Rate { PARAM_NAMES } else { CONCURRENCY_PARAM_NAMES };
        let params = Params::parse(tokens, known)?;
        if params.flag("skip")? {
            return Ok(None);
        }
        let mut errors = ErrorList::default();
        let wait =
            params.text("wait", "\"50ms\"").and_then(|wait| wait.as_ref().map(text::parse_time).transpose());
        let limit = LimitAttribute {
            kind: self,
            krate: errors
                .or_default(params.krate().map(Some))
                .unwrap_or_else(|| syn::parse_quote!(::tidegate)),
            rejection: errors.or_default(RejectionMode::parse(&params)),
            scope: if errors.or_default(params.flag("shared")) { RuleScope::Shared } else { RuleScope::Own },
            classify: errors.or_default(
                params.value("classify", "|result| CallOutcome::Success").map(Option::<&Expr>::cloned),
            ),
            quotas: errors.or_default(self.parse_quotas(&params)),
            key: errors.or_default(params.value("key", "user.id").and_then(parse_key)),
            cost: errors.or_default(params.value("cost", "items.len() as u64").map(Option::<&Expr>::cloned)),
            wait: errors.or_default(wait).map(Micros::get),
            message: errors.or_default(params.text("message", "\"slow down\"")),
            store: errors.or_default(params.text("store", "\"sessions\"")),
            rule: errors.or_default(params.text("rule", "\"login\"")),
            shadow: errors.or_default(params.flag("shadow")),
        };
        if let (RuleScope::Shared, false, Some(span)) =
            (limit.scope, params.has(BLOCK_MARK), params.span("shared"))
        {
            errors.push(Error::new(
                span,
                "`shared` is only valid on an `impl` block; put it there, or give several functions the same \
                 `rule = \"name\"`",
            ));
        }
        errors.into_result(Some(limit))
    }

    fn parse_quotas(self, params: &Params) -> Result<Vec<String>> {
        let algorithm = match self {
            Self::Rate => params.text("algorithm", "\"sliding-window\"")?,
            Self::Concurrency => None,
        };
        let mut errors = ErrorList::default();
        let mut quotas = Vec::new();
        for literal in params.literals() {
            quotas.push(errors.or_default(self.parse_quota(literal, algorithm.as_ref())));
        }
        let has_rule = params.has("rule");
        match (self, quotas.len()) {
            (Self::Rate, 0) if !has_rule => errors.push(Error::new(
                Span::call_site(),
                "missing quota; write `#[limit(\"10/s burst 20\")]`, or `#[limit(rule = \"login\")]` for a rule with its \
                 quota in the policy file",
            )),
            (Self::Concurrency, 0) if !has_rule => errors.push(Error::new(
                Span::call_site(),
                "missing limit; write `#[concurrency(3)]`, or `#[concurrency(rule = \"reports\")]` for a rule with its \
                 limit in the policy file",
            )),
            (Self::Concurrency, 2..) => errors.push(Error::new(
                params.literals()[1].span(),
                "more than one limit; remove the others",
            )),
            _ => {}
        }
        if let (Some(algorithm), 0) = (&algorithm, quotas.len()) {
            errors.push(Error::new(
                algorithm.span(),
                "`algorithm` without a quota; remove it, the policy file declares both",
            ));
        }
        errors.into_result(quotas)
    }

    fn parse_quota(self, literal: &Lit, algorithm: Option<&LitStr>) -> Result<String> {
        let (quota, text) = match (literal, algorithm) {
            (Lit::Str(text), None) => (text::parse_quota(text)?, text.value()),
            (Lit::Str(text), Some(algorithm)) => text::parse_quota_with_algorithm(text, algorithm)?,
            (Lit::Int(number), None) if self == Self::Concurrency => {
                let slots = text::parse_integer(number)?;
                let quota =
                    Quota::concurrency(slots.into()).map_err(|error| Error::new(number.span(), error))?;
                (quota, quota.to_string())
            }
            (other, _) => {
                let example = if self == Self::Rate { "\"10/s burst 20\"" } else { "3` or `\"3 at once\"" };
                return Err(Error::new(other.span(), format!("expected a quota, as in `{example}`")));
            }
        };
        match (self, quota.kind()) {
            (Self::Rate, AlgorithmKind::Concurrency(_)) => Err(Error::new(
                literal.span(),
                format!("`{quota}` is a concurrency limit; write `#[concurrency(\"{quota}\")]`"),
            )),
            (Self::Concurrency, kind) if !matches!(kind, AlgorithmKind::Concurrency(_)) => {
                let text = format!("`{quota}` is not a concurrency limit; write `#[limit(\"{quota}\")]`");
                Err(Error::new(literal.span(), text))
            }
            _ => Ok(text),
        }
    }
}

impl LimitAttribute {
    /// Whether the outcomes of calls are recorded, for a policy whose quotas apply while calls fail.
    pub(crate) fn has_outcome(&self, function: &Function) -> bool {
        // With a fallback, a type with this name may not be that of the standard library.
        let is_result = || !self.rejection.has_fallback() && function.returns_result();
        self.classify.is_some() || is_result()
    }

    /// The static of the call site. `suffix` distinguishes it from others on the same function.
    pub(crate) fn site(&self, suffix: &str, function: &Function) -> TokenStream {
        let Self { krate, quotas, message, store, .. } = self;
        let site = Span::mixed_site();
        let declaration = match (&self.rule, self.scope) {
            (Some(rule), _) => quote_spanned!(site=> #krate::site::RuleConfig::new(#rule)),
            (None, RuleScope::Own) => {
                quote_spanned!(site=> #krate::site::config_for_function(__tidegate_declare, #suffix))
            }
            (None, RuleScope::Shared) => {
                quote_spanned!(site=> #krate::site::config_for_type(__tidegate_declare, #suffix))
            }
        };
        let mode = self.shadow.then(|| quote_spanned!(site=> .mode(#krate::site::Mode::Shadow)));
        let store = store.iter();
        let message = message.iter();
        let wait = self.wait.iter();
        let is_word = |word| self.key.as_ref().is_some_and(|key| is_keyword(key, word, function));
        let is_for_all = self.key.is_none() || is_word("method");
        let key = match () {
            () if is_for_all => quote_spanned!(site=> All),
            () if is_word("ip") => quote_spanned!(site=> Ip),
            () if is_word("user") => quote_spanned!(site=> User),
            () => quote_spanned!(site=> Expression),
        };
        // A named rule may be used elsewhere with other keys.
        let is_for_all = is_for_all && self.rule.is_none();
        let outcomes = self.has_outcome(function).then(|| quote_spanned!(site=> .with_outcomes()));
        let capacity = is_for_all.then(|| quote_spanned!(site=> .capacity(#krate::site::Capacity::Keys(16))));
        quote_spanned! {site=>
            fn __tidegate_declare() -> ::core::result::Result<#krate::site::RuleConfig, #krate::site::BuildError> {
                #krate::site::load_policy();
                let declaration = #declaration
                    .key(#krate::site::SiteKey::#key)
                    #(.quota(#quotas)?)*
                    #mode
                    #(.store(#store))*
                    #(.message(#message))*
                    #(.wait(#krate::site::Duration::from_micros(#wait)))*
                    #outcomes
                    #capacity;
                ::core::result::Result::Ok(declaration)
            }
            static __TIDEGATE_SITE: #krate::site::LimitSite = #krate::site::LimitSite::new(__tidegate_declare);
        }
    }

    /// The arguments of a check.
    pub(crate) fn arguments(&self, function: &Function) -> Result<LimitArguments> {
        let site = Span::mixed_site();
        let shared_key = syn::parse_quote!(method);
        let key = self.key_reference(self.key.as_ref().unwrap_or(&shared_key), function)?;
        let cost = match (&self.cost, self.kind) {
            (_, LimitKind::Concurrency) => None,
            (None, LimitKind::Rate) => Some(quote_spanned!(site=> let cost: ::core::primitive::u64 = 1;)),
            (Some(cost), LimitKind::Rate) => {
                let at = cost.span().resolved_at(site);
                let cost = function.rename_self(cost);
                Some(quote_spanned!(at=> let cost: ::core::primitive::u64 = #cost;))
            }
        };
        Ok(LimitArguments { cost, key })
    }

    /// A reference to an expression, to the value of a keyword, or to a tuple of these.
    fn key_reference(&self, key: &Expr, function: &Function) -> Result<TokenStream> {
        let krate = &self.krate;
        let at = key.span().resolved_at(Span::mixed_site());
        let word = |word| is_keyword(key, word, function);
        Ok(match key {
            _ if word("method") => quote_spanned!(at=> &#krate::site::GlobalKey),
            _ if word("ip") => quote_spanned!(at=> &#krate::site::ip()),
            _ if word("user") => quote_spanned!(at=> &#krate::site::user()),
            Expr::Paren(inner) => self.key_reference(&inner.expr, function)?,
            Expr::Group(inner) => self.key_reference(&inner.expr, function)?,
            Expr::Tuple(tuple) if tuple.elems.is_empty() => {
                return Err(Error::new_spanned(tuple, "empty key; remove `key` to count all calls together"));
            }
            Expr::Tuple(tuple) => {
                let mut parts = Vec::new();
                for part in &tuple.elems {
                    let at = part.span().resolved_at(at);
                    let part = self.key_reference(part, function)?;
                    let krate = respan(krate, at);
                    parts.push(quote_spanned!(at=> #krate::site::key_part(#part)));
                }
                let joined = parts
                    .into_iter()
                    .rev()
                    .reduce(|suffix, part| quote_spanned!(at=> &#krate::site::KeyPair(#part, #suffix)));
                joined.unwrap_or_default()
            }
            other => {
                let other = function.rename_self(other);
                let parts: Vec<_> = other.into_iter().collect();
                let first = parts.first().map_or(at, |part| part.span().resolved_at(at));
                let last = parts.last().map_or(at, |part| part.span().resolved_at(at));
                let mut group =
                    proc_macro2::Group::new(proc_macro2::Delimiter::Parenthesis, parts.into_iter().collect());
                group.set_span(last);
                let borrow = quote_spanned!(first=> &);
                quote_spanned!(at=> #borrow #group)
            }
        })
    }
}

/// The key. A string literal is rejected: it is the same for every call, which is probably a mistake.
fn parse_key(key: Option<&Expr>) -> Result<Option<Expr>> {
    let Some(key) = key else { return Ok(None) };
    if !is_string_literal(key) {
        return Ok(Some(key.clone()));
    }
    let fix = match key {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if text.parse::<Expr>().is_ok() => {
            format!("write `key = {}` without quotes", text.value())
        }
        _ => "remove `key` to count all calls together".to_owned(),
    };
    Err(Error::new_spanned(key, format!("this key is the same for every call; {fix}")))
}

fn is_string_literal(key: &Expr) -> bool {
    match key {
        Expr::Lit(literal) => matches!(literal.lit, Lit::Str(_)),
        Expr::Paren(inner) => is_string_literal(&inner.expr),
        Expr::Group(inner) => is_string_literal(&inner.expr),
        Expr::Reference(inner) => is_string_literal(&inner.expr),
        Expr::Tuple(tuple) => !tuple.elems.is_empty() && tuple.elems.iter().all(is_string_literal),
        _ => false,
    }
}

/// Whether a key is this keyword, and not an argument of that name.
fn is_keyword(key: &Expr, keyword: &str, function: &Function) -> bool {
    let is_named = matches!(key, Expr::Path(path) if path.qself.is_none() && path.path.is_ident(keyword));
    is_named && !function.binds(keyword)
}
