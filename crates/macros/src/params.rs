//! What stands between the brackets of an attribute.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{
    Error, Expr, Ident, Lit, Path, Result, Token,
    ext::IdentExt as _,
    parse::{Parse, ParseStream, Parser as _},
    parse_quote,
    punctuated::Punctuated,
};
use tidegate_core::suggest::closest;

/// The parameters of one attribute, in the order they were written.
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

/// Says of a method's attribute that the block gave it to it.
pub(crate) const BLOCK_MARK: &str = "__from_block";

impl Params {
    /// Reads them; names that are not `known` are refused.
    pub(crate) fn parse(tokens: TokenStream, known: &[&str]) -> Result<Self> {
        let entries = Punctuated::<ParamEntry, Token![,]>::parse_terminated.parse2(tokens)?;
        let mut params = Self { literals: Vec::new(), named: Vec::new() };
        let mut mistakes = ErrorList::default();
        for entry in entries {
            match entry {
                ParamEntry::Literal(literal) => params.literals.push(literal),
                ParamEntry::Named(named)
                    if !known.iter().any(|known| named.name == known) && named.name != BLOCK_MARK =>
                {
                    mistakes.push(unknown_parameter(&named.name, known));
                }
                ParamEntry::Named(named) if params.has(&named.name.to_string()) => {
                    mistakes.push(Error::new(
                        named.name.span(),
                        format!("`{}` is given twice; remove one", named.name),
                    ));
                }
                ParamEntry::Named(named) => params.named.push(named),
            }
        }
        mistakes.into_result(params)
    }

    /// Literals without a name.
    pub(crate) fn literals(&self) -> &[Lit] {
        &self.literals
    }

    /// Whether there is one of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.named.iter().any(|named| named.name == name)
    }

    /// The place of this parameter, where it is given.
    pub(crate) fn span(&self, name: &str) -> Option<Span> {
        self.find(name).map(|named| named.name.span())
    }

    /// The value of this parameter, where it is given.
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

    /// Whether this parameter, which has no value, is given.
    pub(crate) fn flag(&self, name: &str) -> Result<bool> {
        match self.find(name) {
            Some(NamedParam { value: Some(value), .. }) => Err(Error::new_spanned(
                value,
                format!("`{name}` has no value; write `{name}` alone, or leave it out"),
            )),
            found => Ok(found.is_some()),
        }
    }

    /// Where everything is that the code names.
    pub(crate) fn krate(&self) -> Result<Path> {
        match self.value("crate", "my::tidegate")? {
            None => Ok(parse_quote!(::tidegate)),
            Some(Expr::Path(path)) if path.qself.is_none() => Ok(path.path.clone()),
            Some(other) => {
                Err(Error::new_spanned(other, "a path is needed here, as in `crate = my::tidegate`"))
            }
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
            Error::new(error.span(), "a quota or a parameter is needed here, as in `key = user.id`")
        })?;
        let value = match input.parse::<Option<Token![=]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        Ok(Self::Named(NamedParam { name, value }))
    }
}

/// That a quota such as `10/s` lacks its quotes.
fn unquoted_quota(amount: &Lit, input: ParseStream<'_>) -> Result<Error> {
    let mut rest = TokenStream::new();
    while !input.is_empty() && !input.peek(Token![,]) {
        rest.extend([input.parse::<TokenTree>()?]);
    }
    let quota = format!("{}{rest}", amount.to_token_stream()).replace(" / ", "/").replace("/ ", "/");
    let mut all = amount.to_token_stream();
    all.extend(rest);
    Ok(Error::new_spanned(all, format!("a quota is text; write `\"{quota}\"`")))
}

/// What other libraries call a parameter, and what it is called here.
const SYNONYMS: &[(&str, &str, &str)] = &[
    ("name", "rule", "`rule = \"login\"` names the rule"),
    ("fallback", "on_limit", "`on_limit = cached` names the function that answers instead"),
    ("burst", "algorithm", "the burst is a part of the quota, as in `\"10/s burst 20\"`"),
    ("timeout", "wait", "`wait = \"50ms\"` says how long a call may wait"),
];

fn unknown_parameter(name: &Ident, known: &[&str]) -> Error {
    let synonym = SYNONYMS.iter().find(|(other, ours, _)| name == other && known.contains(ours));
    if let Some((_, _, fix)) = synonym {
        return Error::new(name.span(), format!("unknown parameter `{name}`; {fix}"));
    }
    let fix = match closest(&name.to_string(), known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("there are {}", known.join(", ")),
    };
    Error::new(name.span(), format!("unknown parameter `{name}`; {fix}"))
}

/// All that is wrong, to be told at once.
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

    /// What was read, or the default after noting why it could not be.
    pub(crate) fn or_default<T: Default>(&mut self, result: Result<T>) -> T {
        result.unwrap_or_else(|mistake| {
            self.push(mistake);
            T::default()
        })
    }

    pub(crate) fn into_result<T>(self, value: T) -> Result<T> {
        self.combined.map_or(Ok(value), Err)
    }
}
