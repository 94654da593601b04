//! Expressions, written out with Python's operators.

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CallType, CompareOpKind, Expr, Slice, UnaryOpKind};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::writer::{DEPTH, Writer, unsupported};

/// What may follow an expression that is written out without parentheses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Filters and tests: it is a name, a constant or a chain of filters.
    Chain,
    /// The same operator: it is a chain of this one, which groups to the left.
    Operator(&'static str),
    /// Nothing.
    Whole,
}

impl Writer<'_> {
    pub(super) fn expression(&mut self, expr: &Expr<'_>) -> Result<(), Error> {
        self.write(expr, false)
    }

    /// An expression that filters may follow.
    pub(super) fn chain(&mut self, expr: &Expr<'_>) -> Result<(), Error> {
        self.operand(expr, Kind::Chain)
    }

    /// An expression that calls may follow.
    pub(super) fn primary(&mut self, expr: &Expr<'_>) -> Result<(), Error> {
        if let Expr::Var(name) = expr {
            self.put(name.id);
            return Ok(());
        }
        self.put("(");
        self.expression(expr)?;
        self.put(")");
        Ok(())
    }

    fn operand(&mut self, expr: &Expr<'_>, allowed: Kind) -> Result<(), Error> {
        let kind = kind(expr);
        let bare = kind == Kind::Chain || (kind == allowed && kind != Kind::Whole);
        self.put(if bare { "" } else { "(" });
        self.expression(expr)?;
        self.put(if bare { "" } else { ")" });
        Ok(())
    }

    /// `positive` leaves out a sign that stands before the whole of this chain of attributes.
    fn write(&mut self, expr: &Expr<'_>, positive: bool) -> Result<(), Error> {
        if self.depth > DEPTH {
            return Err(unsupported(&format!("an expression of more than {DEPTH} operations"), expr.span()));
        }
        self.depth += 1;
        self.write_one(expr, positive)?;
        self.depth -= 1;
        Ok(())
    }

    fn write_one(&mut self, expr: &Expr<'_>, positive: bool) -> Result<(), Error> {
        if !positive && !matches!(expr, Expr::UnaryOp(_)) && is_negative(expr) {
            // minijinja reads `-a.b` as `(-a).b`.
            self.put("-(");
            self.write(expr, true)?;
            self.put(")");
            return Ok(());
        }
        let inner = |writer: &mut Self, expr: &Expr<'_>| match expr {
            Expr::UnaryOp(sign) if positive => writer.chain(&sign.expr),
            expr if positive && is_negative(expr) => writer.write(expr, true),
            expr => writer.chain(expr),
        };
        match expr {
            Expr::Var(name) => self.put(name.id),
            Expr::Const(constant) => self.constant(&constant.value)?,
            Expr::GetAttr(attribute) => {
                inner(self, &attribute.expr)?;
                self.put("|py_attr(");
                self.text(attribute.name);
                self.put(")");
            }
            Expr::GetItem(item) => {
                inner(self, &item.expr)?;
                self.put("|py_item(");
                self.expression(&item.subscript_expr)?;
                self.put(")");
            }
            Expr::Slice(slice) => {
                inner(self, &slice.expr)?;
                self.slice(slice)?;
            }
            Expr::Call(call) => self.call(call, inner)?,
            Expr::Filter(filter) => {
                if let Some(expr) = &filter.expr {
                    self.chain(expr)?;
                    self.put("|");
                }
                self.put(filter.name);
                self.arguments(&filter.args)?;
            }
            Expr::Test(test) => {
                self.chain(&test.expr)?;
                self.put(" is ");
                self.put(test.name);
                self.arguments(&test.args)?;
            }
            Expr::List(list) => {
                self.put("[");
                self.list(&list.items, Self::expression)?;
                let tuple = self.source.as_bytes().get(list.span().start_offset as usize) == Some(&b'(');
                self.put(if tuple { "]|py_tuple" } else { "]" });
            }
            Expr::Map(map) => {
                self.put("{");
                let pairs: Vec<_> = map.keys.iter().zip(&map.values).collect();
                self.list(&pairs, |writer, (key, value)| {
                    writer.expression(key)?;
                    writer.put(": ");
                    writer.expression(value)
                })?;
                self.put("}");
            }
            other => self.operation(other)?,
        }
        Ok(())
    }

    fn operation(&mut self, expr: &Expr<'_>) -> Result<(), Error> {
        match expr {
            Expr::UnaryOp(unary) => {
                self.put(if matches!(unary.op, UnaryOpKind::Not) { "not " } else { "-" });
                self.operand(&unary.expr, Kind::Chain)?;
            }
            Expr::BinOp(binary) => match operator(binary.op) {
                Ok(operator) => {
                    self.operand(&binary.left, Kind::Operator(operator))?;
                    self.put(operator);
                    self.chain(&binary.right)?;
                }
                Err(filter) => {
                    self.chain(&binary.left)?;
                    self.called(filter, &binary.right)?;
                }
            },
            Expr::Compare(compare) => {
                let mut left = &compare.expr;
                for (index, right) in compare.ops.iter().enumerate() {
                    self.put(if index > 0 { " and " } else { "" });
                    let (equal, filter) = comparison(right.op);
                    self.put(if matches!(right.op, CompareOpKind::NotIn) { "not " } else { "" });
                    self.chain(left)?;
                    match filter {
                        Some(filter) => self.called(filter, &right.expr)?,
                        None => {
                            self.put(equal);
                            self.chain(&right.expr)?;
                        }
                    }
                    left = &right.expr;
                }
            }
            Expr::IfExpr(choice) => {
                self.chain(&choice.true_expr)?;
                self.put(" if ");
                self.chain(&choice.test_expr)?;
                if let Some(otherwise) = &choice.false_expr {
                    self.put(" else ");
                    self.expression(otherwise)?;
                }
            }
            other => return Err(unsupported(other.description(), other.span())),
        }
        Ok(())
    }

    fn called(&mut self, filter: &str, argument: &Expr<'_>) -> Result<(), Error> {
        self.put("|");
        self.put(filter);
        self.put("(");
        self.expression(argument)?;
        self.put(")");
        Ok(())
    }

    fn slice(&mut self, slice: &Slice<'_>) -> Result<(), Error> {
        self.put("|py_slice(");
        self.list(&[&slice.start, &slice.stop, &slice.step], |writer, part| match part {
            Some(part) => writer.expression(part),
            None => {
                writer.put("none");
                Ok(())
            }
        })?;
        self.put(")");
        Ok(())
    }

    fn call(
        &mut self,
        call: &Call<'_>,
        inner: impl Fn(&mut Self, &Expr<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match call.identify_call() {
            CallType::Function(name) => {
                self.put(name);
                match &call.args[..] {
                    // The next level of a recursive loop.
                    [CallArg::Pos(items)] if name == "loop" => {
                        self.put("(");
                        self.chain(items)?;
                        self.put("|py_iter)");
                        Ok(())
                    }
                    args => self.arguments(args),
                }
            }
            CallType::Block(name) => {
                self.put("self.");
                self.put(name);
                self.put("()");
                Ok(())
            }
            CallType::Method(object, name) => {
                inner(self, object)?;
                self.put("|py_call(");
                self.text(name);
                self.put(if call.args.is_empty() { "" } else { ", " });
                self.list(&call.args, Self::argument)?;
                self.put(")");
                Ok(())
            }
            CallType::Object(object) => {
                // The sign of `-a(b)` already stands before it.
                let function = if let Expr::UnaryOp(sign) = object { &sign.expr } else { object };
                self.primary(function)?;
                self.arguments(&call.args)
            }
        }
    }

    pub(super) fn arguments(&mut self, args: &[CallArg<'_>]) -> Result<(), Error> {
        self.put("(");
        self.list(args, Self::argument)?;
        self.put(")");
        Ok(())
    }

    fn argument(&mut self, arg: &CallArg<'_>) -> Result<(), Error> {
        let (before, expr) = match arg {
            CallArg::Pos(expr) => ("", expr),
            CallArg::PosSplat(expr) => ("*", expr),
            CallArg::KwargSplat(expr) => ("**", expr),
            CallArg::Kwarg(name, expr) => {
                self.put(name);
                ("=", expr)
            }
        };
        self.put(before);
        self.expression(expr)
    }

    fn constant(&mut self, value: &Value) -> Result<(), Error> {
        match (value.kind(), value.as_str()) {
            (ValueKind::String, Some(text)) => self.text(text),
            (ValueKind::None, _) => self.put("none"),
            (ValueKind::Bool, _) => self.put(if value.is_true() { "true" } else { "false" }),
            (ValueKind::Number, _) if value.is_integer() => self.put(&value.to_string()),
            (ValueKind::Number, _) => {
                let number = f64::try_from(value.clone())?;
                self.put(&format!("{number:?}"));
            }
            _ => return Err(Error::new(ErrorKind::SyntaxError, "a constant of an unknown kind")),
        }
        Ok(())
    }
}

/// Whether the expression is `-a` with attributes, items and calls after it.
fn is_negative(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::UnaryOp(unary) => matches!(unary.op, UnaryOpKind::Neg),
        Expr::GetAttr(attribute) => is_negative(&attribute.expr),
        Expr::GetItem(item) => is_negative(&item.expr),
        Expr::Slice(slice) => is_negative(&slice.expr),
        Expr::Call(call) => is_negative(&call.expr),
        _ => false,
    }
}

fn kind(expr: &Expr<'_>) -> Kind {
    match expr {
        Expr::BinOp(binary) => operator(binary.op).map_or(Kind::Chain, Kind::Operator),
        Expr::UnaryOp(_) | Expr::Compare(_) | Expr::IfExpr(_) => Kind::Whole,
        Expr::Const(constant) if constant.value.as_str().is_none() && constant.value < Value::from(0) => Kind::Whole,
        expr if is_negative(expr) => Kind::Whole,
        _ => Kind::Chain,
    }
}

/// Operators that are minijinja's own, or the filters that do it as Python does.
fn operator(op: BinOpKind) -> Result<&'static str, &'static str> {
    match op {
        BinOpKind::Eq => Ok(" == "),
        BinOpKind::Ne => Ok(" != "),
        BinOpKind::ScAnd => Ok(" and "),
        BinOpKind::ScOr => Ok(" or "),
        BinOpKind::Add => Ok(" + "),
        BinOpKind::Sub => Ok(" - "),
        BinOpKind::Mul => Err("py_mul"),
        BinOpKind::Lt => Err("py_lt"),
        BinOpKind::Lte => Err("py_le"),
        BinOpKind::Gt => Err("py_gt"),
        BinOpKind::Gte => Err("py_ge"),
        BinOpKind::Div => Err("py_div"),
        BinOpKind::FloorDiv => Err("py_floordiv"),
        BinOpKind::Rem => Err("py_mod"),
        BinOpKind::Pow => Err("py_pow"),
        BinOpKind::Concat => Err("py_concat"),
        BinOpKind::In => Err("py_in"),
    }
}

/// The operator, or the filter in its place.
fn comparison(op: CompareOpKind) -> (&'static str, Option<&'static str>) {
    match op {
        CompareOpKind::Eq => (" == ", None),
        CompareOpKind::Ne => (" != ", None),
        CompareOpKind::Lt => ("", Some("py_lt")),
        CompareOpKind::Lte => ("", Some("py_le")),
        CompareOpKind::Gt => ("", Some("py_gt")),
        CompareOpKind::Gte => ("", Some("py_ge")),
        CompareOpKind::In | CompareOpKind::NotIn => ("", Some("py_in")),
    }
}
