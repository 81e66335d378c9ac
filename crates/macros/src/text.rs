//! Literals that the core reads, at compile time.

use syn::{Error, Expr, ExprLit, Lit, LitInt, LitStr, Result};
use tidegate_core::{Micros, Percent, Quota, QuotaError};

/// A quota, with the error of the core: the characters that are to blame, and what to write instead.
pub(crate) fn parse_quota(text: &LitStr) -> Result<Quota> {
    text.value().parse().map_err(|error: QuotaError| Error::new(text.span(), error))
}

/// A quota whose algorithm is a parameter of its own.
pub(crate) fn parse_quota_with_algorithm(text: &LitStr, algorithm: &LitStr) -> Result<(Quota, String)> {
    let rate = parse_quota(text)?;
    let joined = format!("{} {}", text.value().trim_end(), algorithm.value());
    let read = joined.parse::<Quota>().map_err(|error| Error::new(algorithm.span(), error));
    match read {
        Ok(quota) => Ok((quota, joined)),
        // What is wrong is that there already is one, rather than the name.
        Err(_) if rate.to_string().contains(' ') => Err(Error::new(
            algorithm.span(),
            format!(
                "`{rate}` already says how it is counted; remove `algorithm`, or all but the rate from the quota"
            ),
        )),
        Err(error) => Err(error),
    }
}

/// A length of time.
pub(crate) fn parse_time(text: &LitStr) -> Result<Micros> {
    text.value().parse().map_err(|error: QuotaError| Error::new(text.span(), error))
}

/// A percentage.
pub(crate) fn parse_percent(text: &LitStr) -> Result<Percent> {
    text.value().parse().map_err(|error| Error::new(text.span(), error))
}

/// Text and nothing else.
pub(crate) fn expect_string(value: &Expr, example: &str) -> Result<LitStr> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text.clone()),
        Expr::Group(group) => expect_string(&group.expr, example),
        other => Err(Error::new_spanned(other, format!("text is needed here, as in `{example}`"))),
    }
}

/// A whole number and nothing else.
pub(crate) fn parse_number(value: &Expr, example: &str) -> Result<u32> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => parse_integer(number),
        Expr::Group(group) => self::parse_number(&group.expr, example),
        other => Err(Error::new_spanned(other, format!("a whole number is needed here, as in `{example}`"))),
    }
}

/// The number that was written.
pub(crate) fn parse_integer(number: &LitInt) -> Result<u32> {
    number
        .base10_parse()
        .map_err(|error| Error::new(number.span(), format!("`{number}` is no number here: {error}")))
}
