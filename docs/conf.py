"""Sphinx configuration: `make docs`."""

import hashlib
import json
import re
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pmcl

HERE = Path(__file__).resolve().parent
INVENTORIES = HERE / "_build" / "inventories"

project = "pmcl"
author = "The pmcl developers"
project_copyright = f"{date.today().year}, {author}"
release = version = pmcl.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
]
# a tutorial's text is in its Markdown; what is shown is the notebook beside it (`make tutorials`)
exclude_patterns = ["_build", "jupyter_execute", "tutorials/*.md"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = "pmcl"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["gallery.css"]

# --- pages ------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "amsmath"]
myst_heading_anchors = 3

# a notebook runs again when its code cells or the package change; one that fails, fails the build
sources = sorted((HERE.parent / "pmcl").rglob("*.py"))
digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "jupyter_cache" / digest)
nb_execution_excludepatterns = ["tutorials/*"]
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
# progress bars belong to the reader's terminal, not to the page
nb_output_stderr = "remove"

# --- the gallery ------------------------------------------------------------------------------

# written anew by every build: a page for each published model, and a thumbnail of each page
GALLERY = HERE / "gallery"
MODELS = HERE.parent / "models"
ENTRY = """- [![{title}]({picture})]({page})

  [{title}]({page})
"""


def thumbnail(tutorial: Path) -> str:
    """Keep a tutorial's first figure as a picture of its own, and give its path."""
    cells = json.loads(tutorial.read_text(encoding="utf-8"))["cells"]
    shown = [o.get("data", {}) for c in cells for o in c.get("outputs", [])]
    svg = next(data["image/svg+xml"] for data in shown if "image/svg+xml" in data)
    (GALLERY / f"{tutorial.stem}.svg").write_text("".join(svg), encoding="utf-8")
    return f"{tutorial.stem}.svg"


def write_gallery() -> None:
    """Write the pages of the published models, and the page of all thumbnails."""
    GALLERY.mkdir(exist_ok=True)
    tutorials, models = [], []
    for path in sorted((HERE / "tutorials").glob("*.ipynb")):
        title = re.search(r"^# (.*)$", path.with_suffix(".md").read_text(), re.M).group(1)
        page = f"../tutorials/{path.name}"
        tutorials.append(ENTRY.format(title=title, picture=thumbnail(path), page=page))
    for folder in sorted(MODELS.glob("*/")):
        if not (folder / "card.md").is_file():
            continue
        name = folder.name
        source = (folder / "model.py").read_text(encoding="utf-8")
        title = f"{name}: {source.split('"""')[1].strip().splitlines()[0]}"
        card = (folder / "card.md").read_text(encoding="utf-8")
        picture = f"../_static/models/{name}.svg"
        (GALLERY / f"{name}.md").write_text(
            re.sub(r"^# .*$", f"# {name}\n\n![{name}]({picture})", card, count=1, flags=re.M)
            + f"\n## The definition\n\n```python\n{source}```\n",
            encoding="utf-8",
        )
        models.append(ENTRY.format(title=title, picture=picture, page=f"{name}.md"))
    pages = [p.stem for p in sorted(GALLERY.glob("*.md")) if p.stem != "index"]
    (GALLERY / "index.md").write_text(
        "# Gallery\n\n## Tutorials, on real data\n\n:::{container} gallery\n"
        + "".join(tutorials)
        + ":::\n\n## Published models\n\nTrained, with a card each: two parameters of the first "
        "example datasets, by the network alone.\n\n:::{container} gallery\n"
        + "".join(models)
        + ":::\n\n```{toctree}\n:hidden:\n:caption: Published models\n\n"
        + "\n".join(pages)
        + "\n```\n",
        encoding="utf-8",
    )


write_gallery()

# --- API --------------------------------------------------------------------------------------

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's Parameters sections say the types
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # the class template lists them
# a link to a name of ours must lead somewhere; one into another project may be unresolved, offline
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!pmcl\b).*")]

# --- other projects' pages --------------------------------------------------------------------

PROJECTS = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "xarray": "https://docs.xarray.dev/en/stable/",
    "jax": "https://docs.jax.dev/en/latest/",
    "pymc": "https://www.pymc.io/projects/docs/en/stable/",
    "arviz": "https://python.arviz.org/en/stable/",
}


def fetch_inventory(name: str) -> Path | None:
    """Fetch a project's list of link targets, or fall back to the copy of an earlier build."""
    path = INVENTORIES / f"{name}.inv"
    request = urllib.request.Request(
        f"{PROJECTS[name]}objects.inv", headers={"User-Agent": "Sphinx"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            content = response.read()
    except (OSError, urllib.error.URLError):
        content = b""
    # a captive portal answers too, with a page of its own
    if content.startswith(b"# Sphinx inventory"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return path if path.exists() else None


# Where there is no network, Sphinx warns, and a warning fails the build (-W). So the inventories
# are fetched here, and Sphinx is told only of those that came: offline, links to other projects
# are plain text and everything else is checked as ever.
with ThreadPoolExecutor(len(PROJECTS)) as pool:
    inventories = dict(zip(PROJECTS, pool.map(fetch_inventory, PROJECTS), strict=True))

intersphinx_mapping = {
    name: (PROJECTS[name], str(path)) for name, path in inventories.items() if path is not None
}
