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
use tidegate_core::spelling::meant;

/// The parameters of one attribute, in the order they were written.
pub(crate) struct Params {
    literals: Vec<Lit>,
    named: Vec<Named>,
}

/// `name = value`, or a name alone.
struct Named {
    name: Ident,
    value: Option<Expr>,
}

enum Entry {
    Literal(Lit),
    Named(Named),
}

/// Says of a method's attribute that the block gave it to it.
pub(crate) const OF_BLOCK: &str = "__of_block";

impl Params {
    /// Reads them; names that are not `known` are refused.
    pub(crate) fn parse(tokens: TokenStream, known: &[&str]) -> Result<Self> {
        let entries = Punctuated::<Entry, Token![,]>::parse_terminated.parse2(tokens)?;
        let mut params = Self { literals: Vec::new(), named: Vec::new() };
        let mut mistakes = Mistakes::default();
        for entry in entries {
            match entry {
                Entry::Literal(literal) => params.literals.push(literal),
                Entry::Named(named)
                    if !known.iter().any(|known| named.name == known) && named.name != OF_BLOCK =>
                {
                    mistakes.note(unknown(&named.name, known));
                }
                Entry::Named(named) if params.has(&named.name.to_string()) => {
                    mistakes.note(Error::new(
                        named.name.span(),
                        format!("`{}` is given twice; remove one", named.name),
                    ));
                }
                Entry::Named(named) => params.named.push(named),
            }
        }
        mistakes.finish(params)
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
            Some(Named { value: Some(value), .. }) => Err(Error::new_spanned(
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

    fn find(&self, name: &str) -> Option<&Named> {
        self.named.iter().find(|named| named.name == name)
    }
}

impl Parse for Entry {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek(Lit) {
            let literal: Lit = input.parse()?;
            return match input.peek(Token![/]) {
                true => Err(unquoted(&literal, input)?),
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
        Ok(Self::Named(Named { name, value }))
    }
}

/// That a quota such as `10/s` lacks its quotes.
fn unquoted(amount: &Lit, input: ParseStream<'_>) -> Result<Error> {
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

fn unknown(name: &Ident, known: &[&str]) -> Error {
    let synonym = SYNONYMS.iter().find(|(other, ours, _)| name == other && known.contains(ours));
    if let Some((_, _, fix)) = synonym {
        return Error::new(name.span(), format!("unknown parameter `{name}`; {fix}"));
    }
    let fix = match meant(&name.to_string(), known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("there are {}", known.join(", ")),
    };
    Error::new(name.span(), format!("unknown parameter `{name}`; {fix}"))
}

/// All that is wrong, to be told at once.
#[derive(Default)]
pub(crate) struct Mistakes {
    all: Option<Error>,
}

impl Mistakes {
    pub(crate) fn note(&mut self, mistake: Error) {
        match &mut self.all {
            Some(all) => all.combine(mistake),
            none => *none = Some(mistake),
        }
    }

    /// What was read, or the default after noting why it could not be.
    pub(crate) fn read<T: Default>(&mut self, result: Result<T>) -> T {
        result.unwrap_or_else(|mistake| {
            self.note(mistake);
            T::default()
        })
    }

    pub(crate) fn finish<T>(self, value: T) -> Result<T> {
        self.all.map_or(Ok(value), Err)
    }
}
