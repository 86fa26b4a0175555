"""Run the tutorials and keep what they show: ``docs/tutorials/NAME.md`` becomes ``NAME.ipynb``.

The text is written in the Markdown file; the notebook beside it, with its tables and figures, is
what the documentation shows, so that building it trains nothing. Their first figures become the
thumbnails of the gallery.
"""

import argparse
import sys
import time
from pathlib import Path

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
STYLE = (
    "%config InlineBackend.figure_formats = ['svg']\n"
    "import matplotlib; matplotlib.rcParams.update({'svg.hashsalt': 'pmcl', 'font.size': 9,"
    " 'axes.spines.top': False, 'axes.spines.right': False, 'figure.constrained_layout.use': True})"
)


def written(page: Path) -> nbformat.NotebookNode:
    """Read a tutorial as it is written, without outputs."""
    notebook = read_myst_markdown_notebook(page.read_text(encoding="utf-8"), MdParserConfig())
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i}"
        cell.metadata = nbformat.NotebookNode(
            {"tags": cell.metadata["tags"]} if "tags" in cell.metadata else {}
        )
    notebook.metadata = nbformat.NotebookNode(
        {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    )
    return notebook


def run(page: Path) -> nbformat.NotebookNode:
    """Run a tutorial; what went to the terminal's error stream is left out."""
    notebook = written(page)
    style = nbformat.v4.new_code_cell(STYLE, id="style")
    notebook.cells.insert(0, style)
    NotebookClient(notebook, timeout=1800, kernel_name="python3").execute()
    notebook.cells.pop(0)
    for count, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        cell.execution_count = count
        cell.metadata.pop("execution", None)
        cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
        for output in cell.outputs:
            if "execution_count" in output:
                output["execution_count"] = count
    notebook.metadata.pop("language_info", None)
    return notebook


def main() -> None:
    """Run the tutorials named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="the files' names without ending; all if none")
    names = parser.parse_args().names or sorted(page.stem for page in FOLDER.glob("*.md"))
    for name in names:
        page = FOLDER / f"{name}.md"
        if not page.is_file():
            sys.exit(f"expected the name of a file in {FOLDER}, got {name!r}")
        begin = time.perf_counter()
        notebook = run(page)
        nbformat.write(notebook, page.with_suffix(".ipynb"))
        size = page.with_suffix(".ipynb").stat().st_size / 2**10
        print(f"{name}: {time.perf_counter() - begin:.0f} s, {size:.0f} KiB", flush=True)


if __name__ == "__main__":
    main()
