//! Templates in which every operation that Python and minijinja define differently is a call of ours.
//!
//! minijinja parses the template, and the tree is written out as a template again: `a ~ b` becomes `a|py_concat(b)`, `a.b`
//! becomes `a|py_attr("b")`, and so on. Calls are written as filters because no variable of a template can hide a filter.

use minijinja::machinery::ast::{Expr, Macro, Stmt};
use minijinja::machinery::{WhitespaceConfig, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

use super::writer::{Writer, unsupported};

/// The template with Python's operations. Lines keep their numbers.
pub(in super::super) fn rewrite(source: &str) -> Result<String, Error> {
    // Hugging Face's settings. Jinja counts any end of a line as `\n`.
    let whitespace = WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let source = with_generation(&source.replace("\r\n", "\n").replace('\r', "\n"));
    let tree = parse(&source, "chat", SyntaxConfig, whitespace)?;
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

impl Writer<'_> {
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
}
