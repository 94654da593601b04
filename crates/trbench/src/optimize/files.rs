//! `--plot` and `--export`.

use super::args::{ExportArg, OptimizeArgs};
use super::plot;
use super::tasks::Answers;
use anyhow::Context;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tokenrouter_dtmc::{Chain, ClosedSystem, ExportFormat, PrismFile, export, export_prism};

/// Writes the files that were asked for.
pub(super) fn write(args: &OptimizeArgs, answers: &Answers) -> anyhow::Result<()> {
    if let Some(path) = &args.plot {
        let svg = plot::draw(&answers.system, &answers.candidates, &args.plot_over)?;
        std::fs::write(path, svg).with_context(|| format!("writing `{}`", path.display()))?;
    }
    if let (Some(format), Some(path), Some(chain)) = (args.export, &args.export_to, &answers.chain) {
        export_chain(format, path, &answers.system, chain)?;
    }
    Ok(())
}

fn export_chain(format: ExportArg, path: &Path, system: &ClosedSystem, chain: &Chain) -> anyhow::Result<()> {
    let single = match format {
        ExportArg::Drn => ExportFormat::Drn,
        ExportArg::Dot => ExportFormat::Dot,
        ExportArg::Json => ExportFormat::Json,
        ExportArg::Prism => {
            for (suffix, file) in PrismFile::ALL {
                let mut name = path.as_os_str().to_owned();
                name.push(suffix);
                to_file(&PathBuf::from(name), |out| export_prism(system, chain, file, out))?;
            }
            return Ok(());
        }
    };
    to_file(path, |out| export(system, chain, single, out))
}

fn to_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), tokenrouter_dtmc::Error>,
) -> anyhow::Result<()> {
    let context = || format!("writing `{}`", path.display());
    let mut out = BufWriter::new(File::create(path).with_context(context)?);
    write(&mut out).with_context(context)?;
    out.flush().with_context(context)
}
