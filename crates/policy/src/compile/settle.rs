//! Compiles what a request is charged, depending on its response.

use crate::{
    matching::CostExpression,
    model::{ChargeSpec, SettleSource, SettleSpec, StatusPattern},
};
use std::sync::Arc;
use tidegate_core::{LARGEST_EXACT, SettingError};
use tidegate_rule::{
    BodyCost, ChargePolicy, ResponseValues,
    body::{BodyValues, JsonPointer},
    request::ResponseHead,
};

/// A number of tokens that a response reports: the first of these values that it has.
type TokenCount = &'static [&'static str];

/// The tokens in responses of OpenAI's APIs: of chat and completions, of the Responses API, and of its events.
const OPENAI: [TokenCount; 2] = [
    &["/usage/prompt_tokens", "/usage/input_tokens", "/response/usage/input_tokens"],
    &["/usage/completion_tokens", "/usage/output_tokens", "/response/usage/output_tokens"],
];

/// The tokens in responses of Anthropic's Messages API. In a stream the first event has those of the prompt, and the last one the
/// total of the answer.
const ANTHROPIC: [TokenCount; 4] = [
    &["/usage/input_tokens", "/message/usage/input_tokens"],
    &["/usage/cache_creation_input_tokens", "/message/usage/cache_creation_input_tokens"],
    &["/usage/cache_read_input_tokens", "/message/usage/cache_read_input_tokens"],
    &["/usage/output_tokens", "/message/usage/output_tokens"],
];

/// Compiles `charge` and `settle`.
pub(super) fn compile_charge(
    charge: Option<&ChargeSpec>,
    settle: Option<&SettleSpec>,
) -> Result<ChargePolicy, SettingError> {
    let policy = match charge {
        None => ChargePolicy::upfront(),
        Some(ChargeSpec::If(patterns)) => {
            let patterns = patterns.clone();
            ChargePolicy::only_if(move |reply: &dyn ResponseHead| matches_status(&patterns, reply.status()))
        }
        Some(ChargeSpec::Unless(patterns)) => {
            let patterns = patterns.clone();
            ChargePolicy::refund_if(move |reply: &dyn ResponseHead| matches_status(&patterns, reply.status()))
        }
    };
    let Some(SettleSpec { source, max_debt }) = settle else { return Ok(policy) };
    let policy = match source {
        SettleSource::Header(name) => {
            let name = name.clone();
            policy.with_head_cost(move |reply: &dyn ResponseHead| parse_count(reply.header(&name)?))
        }
        SettleSource::Trailer(name) => policy.with_body_cost(BodyCost {
            pointers: Arc::new([]),
            trailer: Some(name.clone()),
            compute: Box::new(|values| parse_count(&values.trailers.first()?.1)),
        }),
        SettleSource::Body(pointer) => {
            let member = pointer.clone();
            policy.with_body_cost(body_cost([pointer.clone()].into(), move |body| {
                body.get(&member)?.to_count()
            }))
        }
        SettleSource::OpenAi => policy.with_body_cost(token_counts(&OPENAI)?),
        SettleSource::Anthropic => policy.with_body_cost(token_counts(&ANTHROPIC)?),
        SettleSource::Cel(expression) => {
            let expression = CostExpression::new(expression)?;
            let pointers = expression.members().into();
            policy.with_body_cost(body_cost(pointers, move |body| expression.evaluate(body)))
        }
    };
    Ok(match max_debt {
        Some(max) => policy.max_debt(*max),
        None => policy,
    })
}

fn body_cost(
    pointers: Arc<[JsonPointer]>,
    compute: impl Fn(&BodyValues) -> Option<u64> + Send + Sync + 'static,
) -> BodyCost {
    let compute =
        move |values: &ResponseValues| compute(values.body.as_ref()?).filter(|count| *count <= LARGEST_EXACT);
    BodyCost { pointers, trailer: None, compute: Box::new(compute) }
}

/// The sum of the reported numbers of tokens; `None` without any.
fn token_counts(counts: &[TokenCount]) -> Result<BodyCost, SettingError> {
    let parse = |names: &TokenCount| names.iter().map(|name| name.parse()).collect();
    let counts: Vec<Vec<JsonPointer>> = counts.iter().map(parse).collect::<Result<_, _>>()?;
    let pointers: Vec<_> = counts.iter().flatten().cloned().collect();
    Ok(body_cost(pointers.into(), move |body| {
        let found =
            counts.iter().filter_map(|names| names.iter().find_map(|name| body.get(name)?.to_count()));
        found.reduce(u64::saturating_add)
    }))
}

fn parse_count(text: &[u8]) -> Option<u64> {
    str::from_utf8(text).ok()?.trim().parse().ok().filter(|count| *count <= LARGEST_EXACT)
}

fn matches_status(patterns: &[StatusPattern], status: u16) -> bool {
    patterns.iter().any(|pattern| match pattern {
        StatusPattern::Status(one) => *one == status,
        // A class is stored as 4 or as 400.
        StatusPattern::Class(hundred) => *hundred == status / 100 || *hundred == status / 100 * 100,
    })
}
