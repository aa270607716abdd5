"""The documentation site: README.md, the pages in docs/, papers/ and results/, and the docstrings.

`make docs` writes it into build/site.
Its root is the repository's, so that links work in it as they do in the files. A page belongs into `CONTENTS`.
"""

import re
import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("src", "scripts", "docs")]

import generate  # noqa: E402 needs these paths

# Of a page, the pages below it by caption.
CONTENTS = {
    "README": {
        "Get started": ["docs/install", "docs/quickstart", "docs/glossary"],
        "Tutorials": [
            "docs/tutorial_your_data",
            "docs/tutorial_add_a_loss",
            "docs/tutorial_read_a_study",
            "docs/tutorial_gpus",
        ],
        "Notebooks": ["notebooks/*"],
        "How to": [
            "docs/data_formats",
            "docs/fine_tune",
            "docs/embed_and_search",
            "docs/export",
            "docs/study_files",
            "docs/hyperparameters",
            "docs/ray_and_slurm",
            "docs/own_parts",
        ],
        "Reference": [
            "docs/losses",
            "docs/metrics",
            "docs/trunks",
            "docs/datasets",
            "docs/reference/commands",
            "docs/api/README",
        ],
        "Explanation": [
            "docs/protocol",
            "docs/which_loss",
            "results/README",
            "docs/statistics",
            "docs/reproducibility",
            "docs/security",
        ],
        "Contributing": [
            "CONTRIBUTING",
            "docs/architecture",
            "benchmarks/README",
            "papers/README",
            "CHANGELOG",
            "docs/cite",
        ],
    },
    "docs/losses": {"": [f"reference/{package}/*" for package in generate.OPTIONS]},
    "results/README": {"": ["*"]},
    "papers/README": {"": ["*/README", "*/figures/*"]},
}

project = "levelfield"
html_title = "levelfield"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    "docs/**.md",
    "notebooks/*.ipynb",
    "papers/**.md",
    "results/*.md",
]
exclude_patterns = [".*", "build", "outputs", "src", "tests", "configs", "scripts"]
nb_execution_mode = "off"  # they are kept with their outputs
myst_heading_anchors = 4
highlight_language = "bash"  # of blocks that are set in
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
smartquotes_action = "D"  # quotes as they are typed
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # those of Lightning and torch
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
add_module_names = False
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
MARKED = re.compile(r"(`[^`]+`)")


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lists of the pages below a page, of which the file itself need not know."""
    for caption, pages in CONTENTS.get(docname, {}).items():
        options = [":hidden:", ":glob:", f":caption: {caption}" if caption else ""]
        source[0] += "\n".join(["", "", "```{toctree}", *filter(None, options), "", *pages, "```", ""])


def as_rst(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Our docstrings have Markdown's marks for code, and equations and examples that are set in."""
    made: list[str] = []
    in_section = literal = False
    for number, line in enumerate(lines):
        indented, blank = line.startswith("    "), not line.strip()
        if not blank and not indented:
            literal, in_section = False, bool(SECTION.match(line))
        follows = next((other for other in lines[number + 1 :] if other.strip()), "")
        if line == "Example:" and not follows.lstrip().startswith(">>>"):
            made += ["Example:", "", ".. code-block:: python", ""]
            literal = True
        elif indented and not literal and not in_section and not _in_doctest(made):
            made += [".. code-block:: text", "", line]
            literal = True
        else:
            if line.startswith("Paper") and made[-1:] != [""]:
                made.append("")
            made.append(line if literal or blank or line.lstrip().startswith((">>>", "...")) else _escaped(line))
    lines[:] = made


def _in_doctest(made: list[str]) -> bool:
    """Whether the section that is being written is an example for the interpreter."""
    heads = [line for line in made if line and not line.startswith(" ")]
    return heads[-1:] == ["Example:"]


def _escaped(line: str) -> str:
    parts = MARKED.split(line)
    plain = [re.sub(r"([*|])|(?<=\w)_(?!\w)", lambda found: "\\" + found[0], part) for part in parts[::2]]
    plain = [re.sub(r"^( +\w+: [A-Za-z])\.$", r"\1\\.", part) for part in plain]  # "C." would begin a list
    plain = [re.sub(r"arXiv:(\d+\.\d+)", r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", part) for part in plain]
    code = [f"`{part}`" for part in parts[1::2]] + [""]
    return "".join(before + marked for before, marked in zip(plain, code, strict=True))


def write_index(app: Sphinx, exception: Exception | None) -> None:
    """A web server opens index.html."""
    if exception is None:
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", generate.write)
    app.connect("source-read", add_contents)
    app.connect("source-read", generate.add_links)
    app.connect("autodoc-process-docstring", as_rst, priority=400)  # before napoleon
    app.connect("build-finished", write_index)
