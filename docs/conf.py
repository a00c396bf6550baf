"""The site: ``sphinx-build docs site`` runs the course and the gallery and writes every page.

See `decisions/0017-the-site.md` for why Sphinx.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parent.parent / "src"))

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
    """Write the reference before the pages are read, and the live page after they are written."""
    import make_reference

    make_reference.write(Path(app.srcdir) / "reference")
    app.connect("build-finished", _live)


def _live(app, error):
    if error is None and app.builder.format == "html":
        from intently import play
        from intently.translation import Translator

        play.save_play(Translator.load(), Path(app.outdir) / "live.html")
