//! Literals that the core parses at compile time.

use syn::{Error, Expr, ExprLit, Lit, LitInt, LitStr, Result};
use tidegate_core::{Micros, Percent, Quota, QuotaError};

/// Parses a quota, with the error of the core.
pub(crate) fn parse_quota(text: &LitStr) -> Result<Quota> {
    text.value().parse().map_err(|error: QuotaError| Error::new(text.span(), error))
}

/// Parses a quota whose algorithm is a separate parameter.
pub(crate) fn parse_quota_with_algorithm(text: &LitStr, algorithm: &LitStr) -> Result<(Quota, String)> {
    let rate = parse_quota(text)?;
    let joined = format!("{} {}", text.value().trim_end(), algorithm.value());
    let read = joined.parse::<Quota>().map_err(|error| Error::new(algorithm.span(), error));
    match read {
        Ok(quota) => Ok((quota, joined)),
        // The quota already has an algorithm, so the name of this one is not the problem.
        Err(_) if rate.to_string().contains(' ') => Err(Error::new(
            algorithm.span(),
            format!(
                "`{rate}` already has an algorithm; remove `algorithm`, or everything but the rate from the quota"
            ),
        )),
        Err(error) => Err(error),
    }
}

/// Parses a time.
pub(crate) fn parse_time(text: &LitStr) -> Result<Micros> {
    text.value().parse().map_err(|error: QuotaError| Error::new(text.span(), error))
}

/// Parses a percentage.
pub(crate) fn parse_percent(text: &LitStr) -> Result<Percent> {
    text.value().parse().map_err(|error| Error::new(text.span(), error))
}

/// Returns a string literal.
pub(crate) fn expect_string(value: &Expr, example: &str) -> Result<LitStr> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text.clone()),
        Expr::Group(group) => expect_string(&group.expr, example),
        other => Err(Error::new_spanned(other, format!("expected a string, as in `{example}`"))),
    }
}

/// Parses a whole number.
pub(crate) fn parse_number(value: &Expr, example: &str) -> Result<u32> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => parse_integer(number),
        Expr::Group(group) => self::parse_number(&group.expr, example),
        other => Err(Error::new_spanned(other, format!("expected a whole number, as in `{example}`"))),
    }
}

/// Parses an integer literal.
pub(crate) fn parse_integer(number: &LitInt) -> Result<u32> {
    number
        .base10_parse()
        .map_err(|error| Error::new(number.span(), format!("invalid number `{number}`: {error}")))
}
