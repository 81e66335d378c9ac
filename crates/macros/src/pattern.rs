//! Patterns of arguments.

use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::{Error, FieldPat, Member, Pat, PatIdent, Result, Token};

/// The names that a pattern binds, each with its `mut`.
pub(crate) type BoundNames = Vec<(Ident, Option<Token![mut]>)>;

/// Whether a pattern binds this name.
pub(crate) fn binds(pattern: &Pat, name: &str) -> bool {
    let mut is_bound = false;
    for_each_name(pattern, &mut |bound| is_bound |= bound.ident == name);
    is_bound
}

/// Adds the names that a pattern binds.
pub(crate) fn add_bound_names(pattern: &Pat, names: &mut BoundNames) {
    for_each_name(pattern, &mut |bound| names.push((bound.ident.clone(), bound.mutability)));
}

fn for_each_name(pattern: &Pat, each: &mut dyn FnMut(&PatIdent)) {
    match pattern {
        Pat::Ident(ident) => {
            each(ident);
            if let Some((_, inner)) = &ident.subpat {
                for_each_name(inner, each);
            }
        }
        Pat::Paren(inner) => for_each_name(&inner.pat, each),
        Pat::Reference(inner) => for_each_name(&inner.pat, each),
        Pat::Type(inner) => for_each_name(&inner.pat, each),
        Pat::Slice(parts) => parts.elems.iter().for_each(|part| for_each_name(part, each)),
        Pat::Tuple(parts) => parts.elems.iter().for_each(|part| for_each_name(part, each)),
        Pat::TupleStruct(parts) => parts.elems.iter().for_each(|part| for_each_name(part, each)),
        Pat::Struct(parts) => parts.fields.iter().for_each(|field| for_each_name(&field.pat, each)),
        _ => {}
    }
}

/// The expression that rebuilds the value of a pattern.
pub(crate) fn to_expression(pattern: &Pat) -> Result<TokenStream> {
    let each =
        |patterns: &mut dyn Iterator<Item = &Pat>| patterns.map(to_expression).collect::<Result<Vec<_>>>();
    match pattern {
        Pat::Ident(ident) if ident.by_ref.is_none() => {
            let name = &ident.ident;
            Ok(quote!(#name))
        }
        Pat::Paren(inner) => to_expression(&inner.pat),
        Pat::Reference(inner) => {
            let (mutability, value) = (&inner.mutability, to_expression(&inner.pat)?);
            Ok(quote!(&#mutability #value))
        }
        Pat::Tuple(parts) => {
            let values = each(&mut parts.elems.iter())?;
            Ok(quote!((#(#values,)*)))
        }
        Pat::TupleStruct(parts) if parts.qself.is_none() => {
            let (path, values) = (&parts.path, each(&mut parts.elems.iter())?);
            Ok(quote!(#path(#(#values),*)))
        }
        Pat::Slice(parts) => {
            let values = each(&mut parts.elems.iter())?;
            Ok(quote!([#(#values),*]))
        }
        Pat::Struct(parts) if parts.qself.is_none() && parts.rest.is_none() => {
            let path = &parts.path;
            let fields = parts.fields.iter().map(field_expression).collect::<Result<Vec<_>>>()?;
            Ok(quote!(#path { #(#fields),* }))
        }
        other => Err(Error::new_spanned(
            other,
            "`on_limit` is called with the same arguments, and this pattern cannot be used as one; use a name, and \
             destructure it in the body",
        )),
    }
}

fn field_expression(field: &FieldPat) -> Result<TokenStream> {
    let value = to_expression(&field.pat)?;
    Ok(match &field.member {
        Member::Named(name) => quote!(#name: #value),
        Member::Unnamed(index) => quote!(#index: #value),
    })
}
