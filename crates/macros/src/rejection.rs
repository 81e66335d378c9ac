//! The result of a rejected call.

use crate::{
    function::{Function, respan},
    params::Params,
};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote_spanned};
use syn::{Error, Expr, Path, Result};

/// The result of a rejected call.
#[derive(Default)]
pub(crate) enum RejectionMode {
    /// The error of the function, converted from `Limited`.
    #[default]
    From,
    /// The result of another function with the same arguments.
    Fallback(Expr),
    /// The error that a function creates from `Limited`.
    MapError(Expr),
}

impl RejectionMode {
    pub(crate) fn parse(params: &Params) -> Result<Self> {
        let fallback = params.value("on_limit", "cached")?;
        let or = params.value("map_err", "MyError::busy")?;
        match (fallback, or) {
            (None, None) => Ok(Self::From),
            (None, Some(or)) => Ok(Self::MapError(or.clone())),
            (Some(Expr::Path(path)), None) => Ok(Self::Fallback(Expr::Path(path.clone()))),
            (Some(other), None) => Err(Error::new_spanned(
                other,
                "expected the path of a function, as in `on_limit = cached` or `on_limit = Self::cached`; it is called \
                 with the same arguments",
            )),
            (Some(_), Some(or)) => {
                Err(Error::new_spanned(or, "`on_limit` and `map_err` cannot be combined; remove one of them"))
            }
        }
    }

    /// Whether another function is called instead.
    pub(crate) fn has_fallback(&self) -> bool {
        matches!(self, Self::Fallback(_))
    }

    /// The match arm of a rejection. The grants in `before` are released first. The rejection is recorded in the variable
    /// `recorded_in` of an attempt.
    pub(crate) fn match_arm(
        &self,
        krate: &Path,
        function: &Function,
        before: &[Ident],
        recorded_in: Option<&Ident>,
    ) -> Result<TokenStream> {
        let site = Span::mixed_site();
        let release_granted = quote_spanned!(site=> #(::core::mem::drop(#before);)*);
        let record = recorded_in.map(|attempt| quote_spanned!(site=> #attempt.record(&limited);));
        Ok(match self {
            Self::From => {
                let (first, last) = function.output_span();
                let krate = respan(krate, first);
                let from = quote_spanned!(first=> #krate::site::FromLimited);
                let from_limited = quote_spanned!(last=> ::from_limited(limited));
                quote_spanned! {site=>
                    ::core::result::Result::Err(limited) => {
                        #record
                        return #from #from_limited;
                    }
                }
            }
            Self::MapError(or) => {
                let or = function.rename_self(or);
                quote_spanned! {site=>
                    ::core::result::Result::Err(limited) => {
                        #record
                        return ::core::result::Result::Err(#krate::site::convert_rejection(limited, #or));
                    }
                }
            }
            Self::Fallback(path) => {
                let arguments = function.arguments()?;
                let name = path.to_token_stream().into_iter().last().map_or(site, |last| last.span());
                let path = path.to_token_stream();
                // If it is not `async`, the compiler points at its name.
                let at = name.resolved_at(site);
                let awaited = function.is_async().then(|| quote_spanned!(at=> .await));
                // The fallback uses an argument that the body may ignore.
                quote_spanned! {site=>
                    ::core::result::Result::Err(_) => {
                        #release_granted
                        #[allow(clippy::used_underscore_binding)]
                        return #path(#(#arguments),*) #awaited;
                    }
                }
            }
        })
    }
}
