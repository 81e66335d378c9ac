//! The function under an attribute, and its rewritten form.
//!
//! The tokens of its body are not parsed or changed, so that compile errors in it keep their spans.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{
    Attribute, Error, FnArg, Pat, ReceiverKind, Result, ReturnType, Signature, Token, Type, Visibility,
    parse::{Parse, ParseStream},
    spanned::Spanned as _,
    visit_mut::{self, VisitMut},
};

use crate::{boxed_future::BoxedFuture, pattern};

/// A function or a method with a body.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    vis: Visibility,
    default: Option<Token![default]>,
    sig: Signature,
    /// `#![…]` at the start of the body.
    inner: TokenStream,
    body: FunctionBody,
}

enum FunctionBody {
    Plain(Group),
    /// A boxed future, as `async_trait` creates it.
    Boxed(Box<BoxedFuture>),
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis: Visibility = input.parse()?;
        let default = match input.peek(Token![default]) {
            true => Some(input.parse()?),
            false => None,
        };
        let sig: Signature = input.parse().map_err(|error: Error| {
            Error::new(error.span(), "expected a function, a method or an `impl` block")
        })?;
        if input.peek(Token![;]) {
            return Err(Error::new(
                sig.ident.span(),
                "method without a body; put the attribute on an implementation of the method",
            ));
        }
        let (inner, group) = split_inner_attributes(&input.parse()?);
        let boxed = match sig.asyncness {
            Some(_) => None,
            None => BoxedFuture::find(&sig, &group),
        };
        let body = boxed.map_or(FunctionBody::Plain(group), |boxed| FunctionBody::Boxed(Box::new(boxed)));
        Ok(Self { attrs, vis, default, sig, inner, body })
    }
}

impl Function {
    /// Rejects functions that cannot be limited.
    pub(crate) fn check(&self, attribute: &str) -> Result<()> {
        if let Some(token) = &self.sig.constness {
            let message = format!("a `const fn` cannot be limited; remove `const` or `#[{attribute}]`");
            return Err(Error::new(token.span(), message));
        }
        if is_unsafe(&self.sig) {
            let message = format!(
                "an `unsafe fn` cannot be limited, because its safety contract covers only its body; put `#[{attribute}]` \
                 on a safe function around it"
            );
            return Err(Error::new(self.sig.ident.span(), message));
        }
        Ok(())
    }

    /// Whether the body can await.
    pub(crate) fn is_async(&self) -> bool {
        self.sig.asyncness.is_some() || matches!(self.body, FunctionBody::Boxed(_))
    }

    /// Whether an argument has this name.
    pub(crate) fn binds(&self, name: &str) -> bool {
        self.declared_patterns().chain(self.boxed_patterns()).any(|pattern| pattern::binds(pattern, name))
    }

    /// The patterns of the arguments where the body uses them.
    pub(crate) fn argument_patterns(&self) -> impl Iterator<Item = &Pat> {
        self.declared_patterns().filter(|_| self.boxed().is_none()).chain(self.boxed_patterns())
    }

    /// Rejects arguments that a second call of the body could not use.
    pub(crate) fn check_repeatable(&self) -> Result<()> {
        let is_exclusive =
            |ty: &Type| matches!(ty, Type::Reference(reference) if reference.mutability.is_some());
        for input in &self.sig.inputs {
            let is_repeatable = match input {
                FnArg::Receiver(receiver) => match &receiver.kind {
                    ReceiverKind::Reference(.., mutability) => mutability.is_none(),
                    ReceiverKind::Typed(_, ty) => matches!(**ty, Type::Reference(_)) && !is_exclusive(ty),
                    _ => false,
                },
                FnArg::Typed(typed) => !is_exclusive(&typed.ty),
            };
            if !is_repeatable {
                let fix = match input {
                    FnArg::Receiver(_) => "take `&self`",
                    FnArg::Typed(_) => "take a value that can be cloned, or a shared reference",
                };
                let problem = "`#[retry]` calls the body several times, also at the same time";
                return Err(Error::new_spanned(input, format!("{problem}; {fix}")));
            }
        }
        Ok(())
    }

    /// Rejects functions that cannot await.
    pub(crate) fn check_async(&self, attribute: &str) -> Result<()> {
        match self.is_async() {
            true => Ok(()),
            false => Err(Error::new(
                self.sig.ident.span(),
                format!(
                    "`#[{attribute}]` waits, and this function cannot; make it an `async fn`, or remove the attribute"
                ),
            )),
        }
    }

    /// An expression of the attribute for use in the body, where `self` may have another name.
    pub(crate) fn rename_self(&self, tokens: &impl ToTokens) -> TokenStream {
        let tokens = tokens.to_token_stream();
        match self.boxed().and_then(|boxed| boxed.this.as_ref()) {
            Some(this) => replace_self(tokens, this),
            None => tokens,
        }
    }

    /// All arguments, as expressions.
    pub(crate) fn arguments(&self) -> Result<Vec<TokenStream>> {
        let this = self.boxed().and_then(|boxed| boxed.this.as_ref());
        let to_argument = |input: &FnArg| match input {
            FnArg::Receiver(receiver) => {
                Ok(this.map_or_else(|| receiver.self_token.to_token_stream(), ToTokens::to_token_stream))
            }
            FnArg::Typed(typed) => {
                let pattern =
                    self.boxed().and_then(|boxed| boxed.pattern_of(&typed.pat)).unwrap_or(&typed.pat);
                pattern::to_expression(pattern)
            }
        };
        self.sig.inputs.iter().map(to_argument).collect()
    }

    /// Names the unnamed arguments, so that they can be passed to another function.
    pub(crate) fn name_arguments(&mut self) {
        for (index, input) in self.sig.inputs.iter_mut().enumerate() {
            if let FnArg::Typed(typed) = input
                && matches!(*typed.pat, Pat::Wild(_))
            {
                let name = Ident::new(
                    &format!("__tidegate_{index}"),
                    typed.pat.span().resolved_at(Span::mixed_site()),
                );
                *typed.pat = syn::parse_quote!(#name);
            }
        }
    }

    /// The output type of the body, with `_` for `impl Trait`; `None` for the unit type.
    pub(crate) fn output(&self) -> Option<Type> {
        let mut output = self.declared_output()?.clone();
        ImplTraitEraser.visit_type_mut(&mut output);
        Some(output)
    }

    /// Whether the output type is named `Result`.
    pub(crate) fn returns_result(&self) -> bool {
        let Some(Type::Path(path)) = self.declared_output() else { return false };
        path.path.segments.last().is_some_and(|last| last.ident == "Result")
    }

    /// The first and the last span of the output type; those of the function name if it has none.
    pub(crate) fn output_span(&self) -> (Span, Span) {
        let tokens: Vec<_> = match self.declared_output() {
            Some(output) => output.to_token_stream().into_iter().collect(),
            None => vec![self.sig.ident.clone().into()],
        };
        let at = |token: Option<&TokenTree>| {
            token.map_or_else(Span::mixed_site, |token| token.span().resolved_at(Span::mixed_site()))
        };
        (at(tokens.first()), at(tokens.last()))
    }

    /// The body, as a block.
    pub(crate) fn block(&self) -> TokenStream {
        match &self.body {
            FunctionBody::Plain(group) => {
                // The span hides the nested block from lints.
                let mut block = Group::new(Delimiter::Brace, group.stream());
                block.set_span(group.span().resolved_at(Span::mixed_site()));
                block.to_token_stream()
            }
            FunctionBody::Boxed(boxed) => boxed.block(),
        }
    }

    /// The same function with another body.
    pub(crate) fn with_body(&self, body: TokenStream) -> TokenStream {
        let Self { attrs, vis, default, sig, inner, .. } = self;
        let (body, span) = match &self.body {
            FunctionBody::Plain(group) => (body, group.span()),
            FunctionBody::Boxed(boxed) => (boxed.with_block(body), boxed.span),
        };
        let mut group = Group::new(Delimiter::Brace, quote!(#inner #body));
        group.set_span(span);
        quote!(#(#attrs)* #vis #default #sig #group)
    }

    fn boxed(&self) -> Option<&BoxedFuture> {
        match &self.body {
            FunctionBody::Boxed(boxed) => Some(boxed),
            FunctionBody::Plain(_) => None,
        }
    }

    /// The patterns of the arguments in the signature.
    fn declared_patterns(&self) -> impl Iterator<Item = &Pat> {
        self.sig.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(typed) => Some(&*typed.pat),
            FnArg::Receiver(_) => None,
        })
    }

    /// The patterns of the arguments in a boxed future.
    fn boxed_patterns(&self) -> impl Iterator<Item = &Pat> {
        self.boxed().into_iter().flat_map(BoxedFuture::patterns)
    }

    fn declared_output(&self) -> Option<&Type> {
        if let Some(output) = self.boxed().and_then(|boxed| boxed.output.as_ref()) {
            return Some(output);
        }
        match &self.sig.output {
            ReturnType::Type(_, output) if self.boxed().is_none() => Some(output),
            _ => None,
        }
    }
}

/// Replaces `impl Trait` in a type by `_`.
struct ImplTraitEraser;

impl VisitMut for ImplTraitEraser {
    fn visit_type_mut(&mut self, node: &mut Type) {
        match node {
            Type::ImplTrait(_) => *node = Type::Infer(syn::parse_quote!(_)),
            other => visit_mut::visit_type_mut(self, other),
        }
    }
}

fn is_unsafe(sig: &Signature) -> bool {
    matches!(sig.safety, syn::Safety::Unsafe(_))
}

fn replace_self(tokens: TokenStream, this: &Ident) -> TokenStream {
    let rename_one = |token| match token {
        TokenTree::Ident(ident) if ident == "self" => this.clone().into(),
        TokenTree::Group(group) => {
            let mut renamed = Group::new(group.delimiter(), replace_self(group.stream(), this));
            renamed.set_span(group.span());
            renamed.into()
        }
        other => other,
    };
    tokens.into_iter().map(rename_one).collect()
}

/// Splits off `#![…]`, which must stay first.
fn split_inner_attributes(group: &Group) -> (TokenStream, Group) {
    let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
    let is_punct =
        |token: &TokenTree, wanted| matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted);
    let mut end = 0;
    while let [hash, bang, TokenTree::Group(_), ..] = &tokens[end..]
        && is_punct(hash, '#')
        && is_punct(bang, '!')
    {
        end += 3;
    }
    let mut rest = Group::new(Delimiter::Brace, tokens[end..].iter().cloned().collect());
    rest.set_span(group.span());
    (tokens[..end].iter().cloned().collect(), rest)
}

/// A statement that only declares the type of the block around it.
pub(crate) fn output_hint(output: Option<&Type>) -> TokenStream {
    match output {
        None | Some(Type::Infer(_)) => TokenStream::new(),
        Some(output) => quote_spanned! {Span::mixed_site()=>
            if let ::core::option::Option::Some(answer) = ::core::option::Option::None::<#output> {
                #[allow(unreachable_code)]
                return answer;
            }
        },
    }
}

/// Returns the tokens with another span.
pub(crate) fn respan(tokens: &impl ToTokens, span: Span) -> TokenStream {
    let put = |mut token: TokenTree| {
        token.set_span(span);
        token
    };
    tokens.to_token_stream().into_iter().map(put).collect()
}
