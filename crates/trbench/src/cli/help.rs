//! `trbench --help` with the subcommands in groups. clap lays out one list of subcommands, for the width of the terminal;
//! headings are put between its lines.

use std::fmt::Write as _;

use clap::Command;

/// Headings of the groups, and the first subcommand of each.
const GROUPS: [(&str, &str); 6] = [
    ("Run and compare", "run"),
    ("Model the throughput", "optimize"),
    ("Serve", "serve"),
    ("Prepare models, data and routers", "models"),
    ("Check", "config"),
    ("Other", "completions"),
];

/// The command with headings in its list of subcommands.
pub(super) fn grouped(command: Command) -> Command {
    let list = command.clone().help_template("{subcommands}").render_help();
    let header = *command.get_styles().get_header();
    let mut groups = String::new();
    for (plain, styled) in list.to_string().lines().zip(list.ansi().to_string().lines()) {
        // Further lines of a description are indented deeper.
        let name =
            plain.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')).and_then(|rest| rest.split(' ').next());
        if let Some((heading, _)) = GROUPS.iter().find(|(_, first)| Some(*first) == name) {
            let _ = write!(groups, "\n{header}{heading}:{header:#}\n");
        }
        groups.push_str(styled);
        groups.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}\n{header}Options:{header:#}\n{{options}}"
    ))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::Cli;
    use super::*;

    /// Headings with the subcommands below them.
    fn groups(help: &str) -> Vec<(String, Vec<String>)> {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for line in help.lines() {
            if let Some(heading) = line.strip_suffix(':') {
                groups.push((heading.to_owned(), Vec::new()));
            } else if let Some(rest) = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '))
                && let Some((_, names)) = groups.last_mut()
            {
                names.extend(rest.split(' ').next().map(str::to_owned));
            }
        }
        groups
    }

    #[test]
    fn every_subcommand_is_in_one_group_at_every_width() {
        let names: Vec<String> =
            Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        let headings: Vec<&str> = GROUPS.iter().map(|(heading, _)| *heading).chain(["Options"]).collect();
        for width in [40, 60, 80, 100, 200] {
            let command = Cli::command().term_width(width).max_term_width(width);
            let help = grouped(command).render_help().to_string();
            assert!(help.lines().all(|line| line.chars().count() <= width), "{width}: {help}");
            let mut groups = groups(&help);
            assert_eq!(groups.iter().map(|(heading, _)| heading.as_str()).collect::<Vec<_>>(), headings, "{help}");
            groups.pop();
            let firsts: Vec<&str> = groups.iter().map(|(_, names)| names[0].as_str()).collect();
            assert_eq!(firsts, GROUPS.map(|(_, first)| first));
            let all: Vec<String> = groups.into_iter().flat_map(|(_, names)| names).collect();
            assert_eq!(all[..all.len() - 1], names, "{width}");
            assert_eq!(all.last().map(String::as_str), Some("help"));
        }
    }
}
