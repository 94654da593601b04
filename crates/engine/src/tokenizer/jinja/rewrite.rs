//! Templates in which every operation that Python and minijinja define differently is a call of ours.
//!
//! minijinja parses the template, and the tree is written out as a template again: `a ~ b` becomes `a|py_concat(b)`, `a.b`
//! becomes `a|py_attr("b")`, and so on. Calls are written as filters because no variable of a template can hide a filter.

use minijinja::machinery::ast::{
    BinOpKind, Call, CallArg, CallType, CompareOpKind, Expr, Macro, Slice, Stmt, UnaryOpKind,
};
use minijinja::machinery::{Span, WhitespaceConfig, parse};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// The template with Python's operations. Lines keep their numbers.
pub(in super::super) fn rewrite(source: &str) -> Result<String, Error> {
    // Hugging Face's settings. Jinja counts any end of a line as `\n`.
    let whitespace = WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let source = with_generation(&source.replace("\r\n", "\n").replace('\r', "\n"));
    let tree = parse(&source, "chat", minijinja::syntax::SyntaxConfig::default(), whitespace)?;
    let mut writer = Writer { source: &source, out: String::new(), line: 1, depth: 0 };
    writer.statement(&tree)?;
    Ok(writer.out)
}

/// The template without `{% generation %}`, which marks what the assistant wrote for training: a scope as `with` is one.
fn with_generation(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find("{%") {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let Some(end) = rest.find("%}").map(|at| at + 2) else { break };
        let words = ["endgeneration", "generation"].into_iter().zip(["endwith", "with"]);
        let tag = rest[2..end - 2].trim_matches(['-', '+']).trim();
        match words.into_iter().find(|(word, _)| *word == tag) {
            Some((word, instead)) => out.push_str(&rest[..end].replacen(word, instead, 1)),
            None => out.push_str(&rest[..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

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

/// Operations in operations, as far as minijinja compiles them without running out of stack.
const DEPTH: usize = 400;

struct Writer<'s> {
    source: &'s str,
    out: String,
    line: u16,
    depth: usize,
}

fn unsupported(what: &str, span: Span) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("{what} in line {}: not supported in chat templates", span.start_line))
}

impl Writer<'_> {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// The start of a tag, in the line where it was.
    fn tag(&mut self, open: &str, span: Span) {
        self.put(open);
        while self.line < span.start_line {
            self.put("\n");
            self.line += 1;
        }
    }

    fn statements(&mut self, statements: &[Stmt<'_>]) -> Result<(), Error> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Result<(), Error> {
        match statement {
            Stmt::Template(template) => self.statements(&template.children)?,
            Stmt::EmitExpr(emit) => {
                self.tag("{{ ", emit.span());
                self.expression(&emit.expr)?;
                self.put(" }}");
            }
            Stmt::EmitRaw(raw) => {
                self.put("{{ ");
                self.text(raw.raw);
                self.put(" }}");
            }
            Stmt::ForLoop(a_loop) => {
                self.tag("{% for ", a_loop.span());
                self.target(&a_loop.target)?;
                self.put(" in ");
                self.chain(&a_loop.iter)?;
                self.put("|py_iter");
                if let Some(condition) = &a_loop.filter_expr {
                    self.put(" if ");
                    self.expression(condition)?;
                }
                self.put(if a_loop.recursive { " recursive %}" } else { " %}" });
                self.statements(&a_loop.body)?;
                if !a_loop.else_body.is_empty() {
                    self.put("{% else %}");
                    self.statements(&a_loop.else_body)?;
                }
                self.put("{% endfor %}");
            }
            Stmt::IfCond(condition) => {
                self.tag("{% if ", condition.span());
                self.expression(&condition.expr)?;
                self.put(" %}");
                self.statements(&condition.true_body)?;
                self.otherwise(&condition.false_body)?;
                self.put("{% endif %}");
            }
            Stmt::WithBlock(with) => {
                self.tag("{% with ", with.span());
                self.list(&with.assignments, |writer, (target, value)| {
                    writer.target(target)?;
                    writer.put(" = ");
                    writer.expression(value)
                })?;
                self.put(" %}");
                self.statements(&with.body)?;
                self.put("{% endwith %}");
            }
            Stmt::Set(set) => {
                self.tag("{% set ", set.span());
                self.target(&set.target)?;
                self.put(" = ");
                self.expression(&set.expr)?;
                self.put(" %}");
            }
            Stmt::SetBlock(set) => {
                self.tag("{% set ", set.span());
                self.target(&set.target)?;
                if let Some(filter) = &set.filter {
                    self.put("|");
                    self.expression(filter)?;
                }
                self.put(" %}");
                self.statements(&set.body)?;
                self.put("{% endset %}");
            }
            other => self.rarer(other)?,
        }
        Ok(())
    }

    /// `elif` as such: a chain of them is not nested.
    fn otherwise(&mut self, body: &[Stmt<'_>]) -> Result<(), Error> {
        match body {
            [] => Ok(()),
            [Stmt::IfCond(condition)] => {
                self.tag("{% elif ", condition.span());
                self.expression(&condition.expr)?;
                self.put(" %}");
                self.statements(&condition.true_body)?;
                self.otherwise(&condition.false_body)
            }
            body => {
                self.put("{% else %}");
                self.statements(body)
            }
        }
    }

    fn rarer(&mut self, statement: &Stmt<'_>) -> Result<(), Error> {
        match statement {
            Stmt::FilterBlock(block) => {
                self.tag("{% filter ", block.span());
                self.expression(&block.filter)?;
                self.put(" %}");
                self.statements(&block.body)?;
                self.put("{% endfilter %}");
            }
            Stmt::Block(block) => {
                self.tag("{% block ", block.span());
                self.put(block.name);
                self.put(" %}");
                self.statements(&block.body)?;
                self.put("{% endblock %}");
            }
            Stmt::Macro(a_macro) => {
                self.tag("{% macro ", a_macro.span());
                self.put(a_macro.name);
                self.parameters(a_macro)?;
                self.put(" %}");
                self.statements(&a_macro.body)?;
                self.put("{% endmacro %}");
            }
            Stmt::CallBlock(block) => {
                self.tag("{% call", block.call.span());
                self.parameters(&block.macro_decl)?;
                self.put(" ");
                // The grammar wants a call here, and not a filter.
                self.primary(&block.call.expr)?;
                self.arguments(&block.call.args)?;
                self.put(" %}");
                self.statements(&block.macro_decl.body)?;
                self.put("{% endcall %}");
            }
            Stmt::Continue(_) => self.put("{% continue %}"),
            Stmt::Break(_) => self.put("{% break %}"),
            Stmt::Do(found) => return Err(unsupported("{% do %}", found.span())),
            Stmt::AutoEscape(found) => return Err(unsupported("{% autoescape %}", found.span())),
            // Python's Jinja looks for other templates when it gets there, and there is none.
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                self.put("{{ raise_exception('a chat template has no other templates') }}");
            }
            _ => return Err(Error::new(ErrorKind::SyntaxError, "a statement that chat templates do not have")),
        }
        Ok(())
    }

    fn parameters(&mut self, a_macro: &Macro<'_>) -> Result<(), Error> {
        self.put("(");
        let required = a_macro.args.len().saturating_sub(a_macro.defaults.len());
        let defaults = std::iter::repeat_n(None, required).chain(a_macro.defaults.iter().map(Some));
        let parameters: Vec<_> = a_macro.args.iter().zip(defaults).collect();
        self.list(&parameters, |writer, (name, default)| {
            writer.target(name)?;
            let Some(default) = default else { return Ok(()) };
            writer.put("=");
            writer.expression(default)
        })?;
        self.put(")");
        Ok(())
    }

    /// What is assigned to.
    fn target(&mut self, target: &Expr<'_>) -> Result<(), Error> {
        match target {
            Expr::Var(name) => self.put(name.id),
            Expr::GetAttr(attribute) => {
                self.target(&attribute.expr)?;
                self.put(".");
                self.put(attribute.name);
            }
            Expr::List(targets) => {
                self.list(&targets.items, |writer, target| {
                    let nested = matches!(target, Expr::List(_));
                    writer.put(if nested { "(" } else { "" });
                    writer.target(target)?;
                    writer.put(if nested { ")" } else { "" });
                    Ok(())
                })?;
                self.put(if targets.items.len() == 1 { "," } else { "" });
            }
            other => return Err(unsupported("an assignment", other.span())),
        }
        Ok(())
    }

    fn list<T>(&mut self, items: &[T], each: impl Fn(&mut Self, &T) -> Result<(), Error>) -> Result<(), Error> {
        for (index, item) in items.iter().enumerate() {
            self.put(if index > 0 { ", " } else { "" });
            each(self, item)?;
        }
        Ok(())
    }

    fn expression(&mut self, expr: &Expr<'_>) -> Result<(), Error> {
        self.write(expr, false)
    }

    /// An expression that filters may follow.
    fn chain(&mut self, expr: &Expr<'_>) -> Result<(), Error> {
        self.operand(expr, Kind::Chain)
    }

    /// An expression that calls may follow.
    fn primary(&mut self, expr: &Expr<'_>) -> Result<(), Error> {
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

    fn arguments(&mut self, args: &[CallArg<'_>]) -> Result<(), Error> {
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

    fn text(&mut self, text: &str) {
        self.put("\"");
        for character in text.chars() {
            match character {
                '\\' => self.put("\\\\"),
                '"' => self.put("\\\""),
                '\n' => self.put("\\n"),
                '\r' => self.put("\\r"),
                other => self.out.push(other),
            }
        }
        self.put("\"");
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
