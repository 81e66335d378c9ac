//! An attribute on an `impl` block, which applies to all its methods.

use crate::{
    params::{BLOCK_MARK, ErrorList},
    stack::{AttributeKind, attribute_params},
};
use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote};
use syn::{Attribute, Error, ImplItem, ImplItemFn, ItemImpl, Result, parse_quote};

/// Adds the attribute to every method without one of the same kind.
pub(crate) fn expand(which: AttributeKind, params: &TokenStream, mut block: ItemImpl) -> Result<TokenStream> {
    let mark = Ident::new(BLOCK_MARK, Span::call_site());
    let comma = match params.clone().into_iter().last() {
        None => None,
        Some(TokenTree::Punct(last)) if last.as_char() == ',' => None,
        Some(_) => Some(quote!(,)),
    };
    let params = quote!(#params #comma #mark);
    // Reports errors once, not for each method.
    let krate = which.check(params.clone())?;
    let name = Ident::new(which.name(), Span::call_site());
    let attribute: Attribute = parse_quote!(#[#krate::#name(#params)]);
    let mut errors = ErrorList::default();
    let methods = block.items.iter_mut().filter_map(|item| match item {
        ImplItem::Fn(method) => Some(method),
        _ => None,
    });
    if methods.map(|method| add_attribute(which, &attribute, method)).count() == 0 {
        errors.push(Error::new_spanned(&block.self_ty, "no method in this block"));
    }
    errors.into_result(block.into_token_stream())
}

/// The attribute of a method takes precedence. Those of the block precede it, in the order of the block.
fn add_attribute(which: AttributeKind, attribute: &Attribute, method: &mut ImplItemFn) {
    let is_from_method =
        |other: &Attribute| AttributeKind::from_attribute(other) == Some(which) && !is_from_block(other);
    if !method.attrs.iter().any(is_from_method) {
        let index = method.attrs.iter().rposition(is_from_block).map_or(0, |last| last + 1);
        method.attrs.insert(index, attribute.clone());
    }
}

fn is_from_block(attribute: &Attribute) -> bool {
    let ends_in_mark =
        |params: TokenStream| params.into_iter().last().is_some_and(|token| token.to_string() == BLOCK_MARK);
    AttributeKind::from_attribute(attribute).is_some()
        && attribute_params(attribute.clone()).is_ok_and(ends_in_mark)
}
