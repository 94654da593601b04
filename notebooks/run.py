#!/usr/bin/env python3
"""Executes the notebooks and fails if a cell fails. `--write` saves the new output in the files.

    just wheel && pip install -r notebooks/requirements.txt target/wheels/tokenrouter-*.whl && python3 notebooks/run.py [--write]
"""

import pathlib
import sys

import nbformat
from nbclient import NotebookClient


def main():
    folder = pathlib.Path(__file__).resolve().parent
    for path in sorted(folder.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
        # The time of execution is of no interest, and would change the file every time.
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        print(f"{path.name}: {sum(cell.cell_type == 'code' for cell in notebook.cells)} cells ran")
        if "--write" in sys.argv[1:]:
            nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
