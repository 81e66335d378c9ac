//! Infers the type of an expression when a policy is loaded, so that an expression that always fails is rejected.

use super::expression::{FIELDS, RequestField, is_request, table_name};
use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use std::fmt;
use tidegate_core::SettingError;

/// The type of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    /// Unknown until a request is evaluated.
    Any,
    Bool,
    Int,
    UInt,
    Double,
    Text,
    Bytes,
    Null,
    List(Box<Self>),
}

impl Type {
    /// Infers the type. Returns an error for a part that fails for every request.
    pub(super) fn infer(at: &IdedExpr) -> Result<Self, SettingError> {
        match &at.expr {
            Expr::Literal(literal) => Ok(match literal {
                LiteralValue::Boolean(_) => Self::Bool,
                LiteralValue::Bytes(_) => Self::Bytes,
                LiteralValue::Double(_) => Self::Double,
                LiteralValue::Int(_) => Self::Int,
                LiteralValue::Null => Self::Null,
                LiteralValue::String(_) => Self::Text,
                LiteralValue::UInt(_) => Self::UInt,
            }),
            Expr::List(list) => {
                let each: Result<Vec<_>, _> = list.elements.iter().map(Self::infer).collect();
                let joined = each?.into_iter().reduce(|one, other| one.unify(&other)).unwrap_or(Self::Any);
                Ok(Self::List(Box::new(joined)))
            }
            // `has(request.headers.accept)`
            Expr::Select(select) if select.test => Ok(Self::Bool),
            Expr::Select(select) if table_name(&select.operand).is_some() => Ok(Self::Text),
            Expr::Select(select) if is_request(&select.operand) => {
                let is_size =
                    FIELDS.iter().any(|(name, field)| *name == select.field && *field == RequestField::Size);
                Ok(if is_size { Self::Int } else { Self::Text })
            }
            Expr::Select(select) => {
                let of = Self::infer(&select.operand)?;
                match of {
                    Self::Any => Ok(Self::Any),
                    of => Err(type_error(&format!("{of} has no field `{}`", select.field))),
                }
            }
            Expr::Call(call) => Self::infer_call(call),
            _ => Ok(Self::Any),
        }
    }

    fn infer_call(call: &CallExpr) -> Result<Self, SettingError> {
        let name = call.func_name.as_str();
        // Names in tables have been checked, and are always strings.
        match (name, &call.args[..]) {
            ("_[_]", [of, _]) if table_name(of).is_some() => return Ok(Self::Text),
            ("@in", [_, of]) if table_name(of).is_some() => return Ok(Self::Bool),
            _ => {}
        }
        let target = call.target.iter().map(|target| Self::infer(target));
        let args: Vec<Self> = target.chain(call.args.iter().map(Self::infer)).collect::<Result<_, _>>()?;
        let mismatch = |what: String| Err(type_error(&what));
        match (name, &args[..]) {
            ("_?_:_", [condition, yes, no]) => {
                condition.expect_bool("?:")?;
                Ok(yes.unify(no))
            }
            ("_&&_" | "_||_", [left, right]) => {
                let sign = name.trim_matches('_');
                left.expect_bool(sign)?;
                right.expect_bool(sign)?;
                Ok(Self::Bool)
            }
            ("!_", [of]) => {
                of.expect_bool("!")?;
                Ok(Self::Bool)
            }
            ("_==_" | "_!=_", [left, right]) => match left.is_comparable(right) {
                true => Ok(Self::Bool),
                false => mismatch(format!("{left} never equals {right}")),
            },
            ("_<_" | "_<=_" | "_>_" | "_>=_", [left, right]) => {
                let is_ordered = |of: &Self| {
                    matches!(of, Self::Any | Self::Text | Self::Bool | Self::Bytes) || of.is_number()
                };
                match left.is_comparable(right) && is_ordered(left) && is_ordered(right) {
                    true => Ok(Self::Bool),
                    false => mismatch(format!("{left} cannot be ordered against {right}")),
                }
            }
            ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [left, right]) => left.infer_arithmetic(name, right),
            ("-_", [of]) => match of {
                Self::Any | Self::Int | Self::Double => Ok(of.clone()),
                _ => mismatch(format!("`-` of {of}")),
            },
            ("_[_]", [of, at]) => match (of, at) {
                (Self::Any, _) => Ok(Self::Any),
                (Self::List(each), Self::Int | Self::UInt | Self::Any) => Ok((**each).clone()),
                _ => mismatch(format!("{of} has no element at {at}")),
            },
            ("@in", [of, list]) => match list {
                Self::Any => Ok(Self::Bool),
                Self::List(each) if of.is_comparable(each) => Ok(Self::Bool),
                Self::List(each) => mismatch(format!("{of} is never in a list of {each}")),
                _ => mismatch(format!("`in` needs a list, not {list}")),
            },
            ("size", [of]) => match of {
                Self::Any | Self::Text | Self::Bytes | Self::List(_) => Ok(Self::Int),
                _ => mismatch(format!("{of} has no size")),
            },
            ("contains" | "startsWith" | "endsWith", [of, part]) => {
                of.expect_text(name)?;
                part.expect_text(name)?;
                Ok(Self::Bool)
            }
            ("lowerAscii" | "upperAscii" | "trim" | "substring" | "charAt", [of, ..]) => {
                of.expect_text(name)?;
                Ok(Self::Text)
            }
            ("split", [of, ..]) => {
                of.expect_text(name)?;
                Ok(Self::List(Box::new(Self::Text)))
            }
            ("int", [_]) => Ok(Self::Int),
            ("uint", [_]) => Ok(Self::UInt),
            ("double", [_]) => Ok(Self::Double),
            ("string", [_]) => Ok(Self::Text),
            ("bool", [_]) => Ok(Self::Bool),
            _ => mismatch(format!("`{name}` with {} arguments", args.len())),
        }
    }

    fn infer_arithmetic(&self, name: &str, right: &Self) -> Result<Self, SettingError> {
        let is_sum = name == "_+_";
        match (self, right) {
            (Self::Any, other) | (other, Self::Any) => Ok(other.clone()),
            (Self::Int, Self::Int) | (Self::UInt, Self::UInt) => Ok(self.clone()),
            (Self::Double, Self::Double) if name != "_%_" => Ok(Self::Double),
            (Self::Text, Self::Text) | (Self::Bytes, Self::Bytes) if is_sum => Ok(self.clone()),
            (Self::List(left), Self::List(right)) if is_sum => Ok(Self::List(Box::new(left.unify(right)))),
            _ => Err(type_error(&format!("`{}` of {self} and {right}", name.trim_matches('_')))),
        }
    }

    /// Whether the value can be a boolean.
    pub(super) fn can_be_bool(&self) -> bool {
        matches!(self, Self::Any | Self::Bool)
    }

    /// Whether the value can be a key.
    pub(super) fn can_be_key(&self) -> bool {
        matches!(self, Self::Any | Self::Bool | Self::Int | Self::UInt | Self::Text)
    }

    fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::UInt | Self::Double)
    }

    fn is_comparable(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::List(one), Self::List(other)) => one.is_comparable(other),
            _ => self == other || self.is_number() && other.is_number(),
        }
    }

    fn unify(&self, other: &Self) -> Self {
        if self == other { self.clone() } else { Self::Any }
    }

    fn expect_bool(&self, sign: &str) -> Result<(), SettingError> {
        match self.can_be_bool() {
            true => Ok(()),
            false => Err(type_error(&format!("`{sign}` needs a boolean, not {self}"))),
        }
    }

    fn expect_text(&self, name: &str) -> Result<(), SettingError> {
        match self {
            Self::Any | Self::Text => Ok(()),
            _ => Err(type_error(&format!("`{name}` needs a string, not {self}"))),
        }
    }
}

fn type_error(problem: &str) -> SettingError {
    SettingError::new(
        format!("type error in the expression: {problem}"),
        "compare values of one type, as in `request.size > 1000` or `int(request.query['page']) > 2`",
    )
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any value",
            Self::Bool => "a boolean",
            Self::Int | Self::UInt | Self::Double => "a number",
            Self::Text => "a string",
            Self::Bytes => "bytes",
            Self::Null => "null",
            Self::List(_) => "a list",
        })
    }
}
