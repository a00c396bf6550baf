"""The site: ``sphinx-build docs site`` runs the course and the gallery and writes every page.

See `decisions/0017-the-site.md` for why Sphinx.
"""

import os
import re
import shutil
import sys
from pathlib import Path

project = "Intently"
author = "the authors of Intently"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
source_suffix = {".md": "myst-nb", ".rst": "restructuredtext"}
exclude_patterns = ["pictures"]

# pages
html_theme = "furo"
html_title = "Intently"
html_favicon = "icon.svg"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_sphinx = False
html_copy_source = False
templates_path: list[str] = []

# Markdown
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4

# running
nb_execution_mode = "force"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_code_prompt_show = "Show the solution"
nb_code_prompt_hide = "Hide the solution"
suppress_warnings = ["mystnb.unknown_mime_type", "myst-nb.lexer", "ref.python"]

# reference
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app):
    """Write the reference before the pages are read; add what other tools make afterwards."""
    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(here))
    os.environ.setdefault("PYTHONPATH", str(here.parent / "src"))  # of the pages that are run
    os.environ.setdefault("KERAS_BACKEND", "torch")  # for the reference of intently.interop.keras
    import make_reference

    make_reference.write(Path(app.srcdir) / "reference")
    app.connect("autodoc-process-docstring", _bars)
    app.connect("html-page-context", _notebook)
    app.connect("build-finished", _beside)


def _bars(app, what, name, obj, options, lines):
    """A bar means an absolute value here, and a substitution in reStructuredText."""
    for n, line in enumerate(lines):
        if not line.startswith((" ", ">>>", "...")):
            lines[n] = re.sub(r"``.*?``|\|", lambda m: r"\|" if m[0] == "|" else m[0], line)


def _notebook(app, page, template, context, doctree):
    """Link each page that was run to its notebook."""
    if page.startswith("course/") or page == "gallery":
        up = "../" * page.count("/")
        target = f"{up}notebooks/{page}.ipynb"
        link = f'<p><a href="{target}" download>Download this page as a notebook</a></p>'
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{link}", 1)


def _beside(app, error):
    """The notebooks as they were run, and the live page."""
    if error is not None or app.builder.format != "html":
        return
    from intently.play import save_play
    from intently.translation import Translator

    run = Path(app.outdir).parent / "jupyter_execute"
    if run.exists():
        shutil.copytree(run, Path(app.outdir) / "notebooks", dirs_exist_ok=True)
        shutil.rmtree(run)
    pictures = "pictures/mistakes"  # named by raw HTML, which Sphinx does not read
    shutil.copytree(Path(app.srcdir) / pictures, Path(app.outdir) / pictures, dirs_exist_ok=True)
    save_play(Translator.load(), Path(app.outdir) / "live.html")
