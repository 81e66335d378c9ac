//! CEL expressions over the members of a response body, for `settle`.

use super::expression::{
    ENV, MAX_EXPRESSION_BYTES, MAX_NESTING, check_function, parse_on_large_stack, single_line,
};
use crate::model::Expression;
use cel::{
    Context, Program, Value,
    common::ast::{Expr, IdedExpr, LiteralValue},
};
use std::{collections::HashMap, fmt, sync::Arc};
use tidegate_core::SettingError;
use tidegate_rule::body::{BodyValue, BodyValues, JsonPointer, count_from_float};

/// A compiled expression of the members of a JSON body, such as `usage.prompt_tokens + 4 * usage.completion_tokens`.
///
/// Its value is a number of tokens. It has none if a member is missing that the expression does not test with `has(…)`.
pub(crate) struct CostExpression {
    program: Program,
    members: Vec<JsonPointer>,
    text: Arc<str>,
}

impl CostExpression {
    pub(crate) fn new(expression: &Expression) -> Result<Self, SettingError> {
        let text = &expression.0;
        if text.len() > MAX_EXPRESSION_BYTES {
            let problem = format!("expression of {} bytes", text.len());
            return Err(SettingError::new(problem, format!("shorten it to {MAX_EXPRESSION_BYTES} bytes")));
        }
        parse_on_large_stack(text, || Self::parse(text))
    }

    fn parse(text: &Arc<str>) -> Result<Self, SettingError> {
        let program = ENV.compile(text).map_err(|errors| {
            let first =
                errors.errors.first().map(|error| error.msg.lines().next().unwrap_or_default().to_owned());
            let problem =
                format!("invalid expression `{}`: {}", single_line(text), first.unwrap_or_default());
            SettingError::new(
                problem,
                "write CEL, such as `usage.prompt_tokens + 4 * usage.completion_tokens`",
            )
        })?;
        let mut members = Vec::new();
        collect_members(program.expression(), 0, &mut members)?;
        if members.is_empty() {
            let problem = format!("`{}` does not depend on the response", single_line(text));
            return Err(SettingError::new(problem, "name a member of the body, as in `usage.total_tokens`"));
        }
        let compiled = Self { program, members, text: text.clone() };
        match compiled.execute(|_| Some(Value::Int(1))) {
            Ok(Value::Int(_) | Value::UInt(_) | Value::Float(_)) | Err(_) => Ok(compiled),
            Ok(_) => {
                let problem = format!("`{}` is not a number", single_line(text));
                Err(SettingError::new(problem, "write a number of tokens, as in `2 * usage.total_tokens`"))
            }
        }
    }

    /// The members that it reads.
    pub(crate) fn members(&self) -> &[JsonPointer] {
        &self.members
    }

    /// The cost that a body states; `None` if it states none, or if the value is not a number of tokens.
    pub(crate) fn evaluate(&self, body: &BodyValues) -> Option<u64> {
        let value = self.execute(|member| body.get(member).and_then(to_cel)).ok()?;
        match value {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::UInt(number) => Some(number),
            Value::Float(number) => count_from_float(number),
            _ => None,
        }
    }

    fn execute(
        &self,
        value_of: impl Fn(&JsonPointer) -> Option<Value>,
    ) -> Result<Value, cel::ExecutionError> {
        let mut root = Object::default();
        for member in &self.members {
            root.insert(member.tokens(), value_of(member));
        }
        let mut context = Context::with_env(ENV.clone());
        for (name, member) in root.0 {
            context.add_variable_from_value(name, member.into_value());
        }
        self.program.execute(&context)
    }
}

impl fmt::Debug for CostExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CostExpression({})", self.text)
    }
}

/// An object of a body, with the members that an expression reads. Objects exist even if their members are missing.
#[derive(Default)]
struct Object(HashMap<String, Member>);

enum Member {
    Scalar(Value),
    Object(Object),
}

impl Object {
    fn insert(&mut self, path: &[String], value: Option<Value>) {
        match path {
            [] => {}
            [name] => {
                if let Some(value) = value {
                    self.0.insert(name.clone(), Member::Scalar(value));
                }
            }
            [name, rest @ ..] => {
                let member = self.0.entry(name.clone()).or_insert_with(|| Member::Object(Self::default()));
                if let Member::Object(object) = member {
                    object.insert(rest, value);
                }
            }
        }
    }
}

impl Member {
    fn into_value(self) -> Value {
        match self {
            Self::Scalar(value) => value,
            Self::Object(Object(members)) => {
                let members = members.into_iter().map(|(name, member)| (name, member.into_value()));
                members.collect::<HashMap<String, Value>>().into()
            }
        }
    }
}

fn to_cel(value: &BodyValue) -> Option<Value> {
    Some(match value {
        BodyValue::Text(text) => text.to_string().into(),
        BodyValue::Bool(value) => Value::Bool(*value),
        BodyValue::Number(text) => match text.parse::<i64>() {
            Ok(number) => Value::Int(number),
            Err(_) => Value::Float(text.parse().ok()?),
        },
    })
}

/// Collects the members that an expression reads, and rejects forbidden functions and constructs.
fn collect_members(at: &IdedExpr, depth: usize, found: &mut Vec<JsonPointer>) -> Result<(), SettingError> {
    if depth > MAX_NESTING {
        return Err(SettingError::new("expression nested too deeply", "simplify it"));
    }
    if let Some(names) = member_path(at) {
        let pointer = JsonPointer::from_tokens(names)?;
        if !found.contains(&pointer) {
            found.push(pointer);
        }
        return Ok(());
    }
    match &at.expr {
        Expr::Literal(_) => Ok(()),
        Expr::Call(call) => {
            check_function(&call.func_name)?;
            let target = call.target.iter().map(|target| &**target);
            target.chain(&call.args).try_for_each(|arg| collect_members(arg, depth + 1, found))
        }
        Expr::List(list) => {
            list.elements.iter().try_for_each(|element| collect_members(element, depth + 1, found))
        }
        _ => Err(SettingError::new(
            "an expression of a cost has only numbers, members of the body, and functions of them",
            "write it as in `usage.prompt_tokens + 4 * usage.completion_tokens`",
        )),
    }
}

/// The names of `usage.total_tokens` or `usage['total-tokens']`.
fn member_path(at: &IdedExpr) -> Option<Vec<String>> {
    match &at.expr {
        Expr::Ident(name) => Some(vec![name.clone()]),
        Expr::Select(select) => {
            let mut path = member_path(&select.operand)?;
            path.push(select.field.clone());
            Some(path)
        }
        Expr::Call(call) if call.func_name == "_[_]" => {
            let [object, name] = &call.args[..] else { return None };
            let Expr::Literal(LiteralValue::String(name)) = &name.expr else { return None };
            let mut path = member_path(object)?;
            path.push(name.inner().to_owned());
            Some(path)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_rule::body::{BodyFormat, BodyScanner};

    fn cost(expression: &str, body: &str) -> Option<u64> {
        let compiled = CostExpression::new(&Expression(expression.into())).unwrap();
        let mut scanner = BodyScanner::new(compiled.members().into(), BodyFormat::Json);
        scanner.push(body.as_bytes());
        compiled.evaluate(&scanner.finish())
    }

    #[test]
    fn expression_is_computed_from_members() {
        let body = r#"{"usage": {"prompt_tokens": 10, "completion_tokens": 5, "price": 1.5, "cached-tokens": 4}, "model": "a"}"#;
        for (expression, expected) in [
            ("usage.prompt_tokens + 4 * usage.completion_tokens", Some(30)),
            ("usage['cached-tokens']", Some(4)),
            ("usage.price", Some(2)),
            ("double(usage.prompt_tokens) * 0.25", Some(3)),
            ("has(usage.reasoning) ? usage.reasoning : 7", Some(7)),
            ("model == 'a' ? usage.prompt_tokens : 0", Some(10)),
            ("usage.missing", None),
            ("missing.tokens", None),
            ("usage.prompt_tokens - 11", None),
            ("usage.prompt_tokens * 9223372036854775807", None),
            ("model", None),
        ] {
            assert_eq!(cost(expression, body), expected, "{expression}");
        }
    }

    #[test]
    fn expressions_without_a_number_are_rejected() {
        let error =
            |text: &str| CostExpression::new(&Expression(text.into())).unwrap_err().problem().to_owned();
        assert_eq!(error("5"), "`5` does not depend on the response");
        assert_eq!(error("usage.a > 3"), "`usage.a > 3` is not a number");
        assert_eq!(error("usage.a.matches('a')"), "function `matches` is not allowed");
        assert!(error("usage.").starts_with("invalid expression `usage.`"));
        assert!(error("{'a': usage.a}").starts_with("an expression of a cost has only numbers"));
        assert_eq!(
            error(&format!("{}usage.a{}", "-(".repeat(17), ")".repeat(17))),
            "expression nested too deeply"
        );
        assert_eq!(error(&"a".repeat(1_001)), "expression of 1001 bytes");
    }
}
