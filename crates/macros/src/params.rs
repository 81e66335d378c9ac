//! The parameters of an attribute.

use crate::text;
use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{
    Error, Expr, Ident, Lit, LitStr, Path, Result, Token,
    ext::IdentExt as _,
    parse::{Parse, ParseStream, Parser as _},
    parse_quote,
    punctuated::Punctuated,
};
use tidegate_core::{SettingError, suggest::closest};

/// The parameters of one attribute, in the written order.
pub(crate) struct Params {
    literals: Vec<Lit>,
    named: Vec<NamedParam>,
}

/// `name = value`, or a name alone.
struct NamedParam {
    name: Ident,
    value: Option<Expr>,
}

enum ParamEntry {
    Literal(Lit),
    Named(NamedParam),
}

/// Marks an attribute of a method that the attribute of the block generated.
pub(crate) const BLOCK_MARK: &str = "__from_block";

impl Params {
    /// Parses the parameters; rejects names that are not `known`.
    pub(crate) fn parse(tokens: TokenStream, known: &[&str]) -> Result<Self> {
        let entries = Punctuated::<ParamEntry, Token![,]>::parse_terminated.parse2(tokens)?;
        let mut params = Self { literals: Vec::new(), named: Vec::new() };
        let mut errors = ErrorList::default();
        for entry in entries {
            match entry {
                ParamEntry::Literal(literal) => params.literals.push(literal),
                ParamEntry::Named(named)
                    if !known.iter().any(|known| named.name == known) && named.name != BLOCK_MARK =>
                {
                    errors.push(unknown_parameter(&named.name, known));
                }
                ParamEntry::Named(named) if params.has(&named.name.to_string()) => {
                    errors.push(Error::new(
                        named.name.span(),
                        format!("duplicate parameter `{}`; remove one", named.name),
                    ));
                }
                ParamEntry::Named(named) => params.named.push(named),
            }
        }
        errors.into_result(params)
    }

    /// The literals without a name.
    pub(crate) fn literals(&self) -> &[Lit] {
        &self.literals
    }

    /// Whether the parameter is given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.named.iter().any(|named| named.name == name)
    }

    /// The span of the parameter, if given.
    pub(crate) fn span(&self, name: &str) -> Option<Span> {
        self.find(name).map(|named| named.name.span())
    }

    /// The value of the parameter, if given.
    pub(crate) fn value(&self, name: &str, example: &str) -> Result<Option<&Expr>> {
        let Some(named) = self.find(name) else { return Ok(None) };
        match &named.value {
            Some(value) => Ok(Some(value)),
            None => Err(Error::new(
                named.name.span(),
                format!("`{name}` needs a value, as in `{name} = {example}`"),
            )),
        }
    }

    /// The string of the parameter, if given.
    pub(crate) fn text(&self, name: &str, example: &str) -> Result<Option<LitStr>> {
        let value = self.value(name, example)?;
        value.map(|value| text::expect_string(value, &format!("{name} = {example}"))).transpose()
    }

    /// The error of an invalid setting, at its parameter.
    pub(crate) fn setting_error(&self, name: &str, error: &SettingError) -> Error {
        Error::new(self.span(name).unwrap_or_else(Span::call_site), error)
    }

    /// Whether a parameter without a value is given.
    pub(crate) fn flag(&self, name: &str) -> Result<bool> {
        match self.find(name) {
            Some(NamedParam { value: Some(value), .. }) => Err(Error::new_spanned(
                value,
                format!("`{name}` takes no value; write `{name}`, or remove it"),
            )),
            found => Ok(found.is_some()),
        }
    }

    /// The path of the crate that the generated code refers to.
    pub(crate) fn krate(&self) -> Result<Path> {
        match self.value("crate", "my::tidegate")? {
            None => Ok(parse_quote!(::tidegate)),
            Some(Expr::Path(path)) if path.qself.is_none() => Ok(path.path.clone()),
            Some(other) => Err(Error::new_spanned(other, "expected a path, as in `crate = my::tidegate`")),
        }
    }

    fn find(&self, name: &str) -> Option<&NamedParam> {
        self.named.iter().find(|named| named.name == name)
    }
}

impl Parse for ParamEntry {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek(Lit) {
            let literal: Lit = input.parse()?;
            return match input.peek(Token![/]) {
                true => Err(unquoted_quota(&literal, input)?),
                false => Ok(Self::Literal(literal)),
            };
        }
        let name = Ident::parse_any(input).map_err(|error| {
            Error::new(error.span(), "expected a quota or a parameter, as in `key = user.id`")
        })?;
        let value = match input.parse::<Option<Token![=]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        Ok(Self::Named(NamedParam { name, value }))
    }
}

/// The error for a quota without quotes, such as `10/s`.
fn unquoted_quota(amount: &Lit, input: ParseStream<'_>) -> Result<Error> {
    let mut rest = TokenStream::new();
    while !input.is_empty() && !input.peek(Token![,]) {
        rest.extend([input.parse::<TokenTree>()?]);
    }
    let quota = format!("{}{rest}", amount.to_token_stream()).replace(" / ", "/").replace("/ ", "/");
    let mut all = amount.to_token_stream();
    all.extend(rest);
    Ok(Error::new_spanned(all, format!("a quota must be a string; write `\"{quota}\"`")))
}

/// Names of parameters in other libraries, the name here, and the fix.
const SYNONYMS: &[(&str, &str, &str)] = &[
    ("name", "rule", "write `rule = \"login\"`"),
    ("fallback", "on_limit", "write `on_limit = cached` with a function to call instead"),
    ("burst", "algorithm", "add the burst to the quota, as in `\"10/s burst 20\"`"),
    ("timeout", "wait", "write `wait = \"50ms\"` for the longest wait"),
    ("over", "window_size", "it is now `window_size`"),
    ("slow_rate", "slow_call_rate", "it is now `slow_call_rate`"),
    ("slow", "slow_call_duration", "it is now `slow_call_duration`"),
    ("open_for", "open_duration", "it is now `open_duration`"),
    ("longest", "max_open_duration", "it is now `max_open_duration`"),
    ("probes", "half_open_calls", "it is now `half_open_calls`"),
    ("probe_deadline", "half_open_timeout", "it is now `half_open_timeout`"),
    ("failure", "classify", "it is now `classify`"),
    ("or", "map_err", "it is now `map_err`"),
    ("share", "shared", "it is now `shared`"),
    ("attempts", "max", "write `max = 2` for two retries after the first attempt"),
    ("max_attempts", "max", "write `max = 2` for two retries after the first attempt"),
    ("timeout", "time_limit", "write `time_limit = \"2s\"`"),
];

fn unknown_parameter(name: &Ident, known: &[&str]) -> Error {
    let synonym = SYNONYMS.iter().find(|(other, ours, _)| name == other && known.contains(ours));
    if let Some((_, _, fix)) = synonym {
        return Error::new(name.span(), format!("unknown parameter `{name}`; {fix}"));
    }
    let fix = match closest(&name.to_string(), known.iter().copied()) {
        Some(suggestion) => format!("did you mean `{suggestion}`?"),
        None => format!("use one of {}", known.join(", ")),
    };
    Error::new(name.span(), format!("unknown parameter `{name}`; {fix}"))
}

/// Collects errors, to report all of them together.
#[derive(Default)]
pub(crate) struct ErrorList {
    combined: Option<Error>,
}

impl ErrorList {
    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.combined {
            Some(all) => all.combine(error),
            none => *none = Some(error),
        }
    }

    /// The parsed value, or the default after recording the error.
    pub(crate) fn or_default<T: Default>(&mut self, result: Result<T>) -> T {
        result.unwrap_or_else(|error| {
            self.push(error);
            T::default()
        })
    }

    pub(crate) fn into_result<T>(self, value: T) -> Result<T> {
        self.combined.map_or(Ok(value), Err)
    }
}
