"""The site: ``sphinx-build docs site`` runs the course and the gallery and writes every page.

See `decisions/0017-the-site.md` for why Sphinx.
"""

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
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
html_show_copyright = False
html_copy_source = False
templates_path: list[str] = []

# Markdown
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4

# running
nb_execution_mode = "cache"  # filled anew by each build, see _run
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_code_prompt_show = "Show the solution"
nb_code_prompt_hide = "Hide the solution"
suppress_warnings = ["mystnb.unknown_mime_type", "myst-nb.lexer", "ref.python"]

# reference
default_role = "py:obj"
toc_object_entries = False  # pages of the reference begin with their names
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Numbers": "Numbers"}  # lists, arrays and integers, by one name
autodoc_default_options = {"members": True, "show-inheritance": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app):
    """Run the pages and write the reference before they are read; add other tools' pages after."""
    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(here))
    os.environ.setdefault("PYTHONPATH", str(here.parent / "src"))  # of the pages that are run
    os.environ.setdefault("KERAS_BACKEND", "torch")  # for the reference of intently.interop.keras
    app.connect("config-inited", _run)
    app.connect("config-inited", _reference)
    app.connect("autodoc-process-docstring", _bars)
    app.connect("autodoc-process-signature", _aliases)
    app.connect("html-page-context", _notebook)
    app.connect("build-finished", _beside)


def _run(app, config):
    """Run all pages with cells, one for each core at a time; MyST-NB finds them run.

    A page that fails is run once more by MyST-NB, which shows where and ends the build.
    """
    from jupyter_cache import get_cache
    from jupyter_cache.executors import load_executor

    config.nb_execution_cache_path = folder = tempfile.mkdtemp(prefix="intently-site-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    profile = Path(folder) / "profile_default"
    profile.mkdir()
    (profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n")
    os.environ["IPYTHONDIR"] = folder  # not the settings of whoever builds
    cache = get_cache(folder)
    pages = list(Path(app.srcdir).rglob("*.md"))
    pages.sort(key=lambda page: (len(page.parts), page))  # the gallery, which is longest, first
    for page in pages:
        if page.read_text(encoding="utf-8").startswith("---\nfile_format: mystnb"):
            cache.add_nb_to_project(str(page), read_data={"type": "plugin", "name": "myst_nb_md"})
    quiet = logging.getLogger("intently.site")
    quiet.setLevel(logging.WARNING)
    load_executor("local-parallel", cache, quiet).run_and_cache(timeout=nb_execution_timeout)


def _reference(app, config):
    import make_reference

    make_reference.write(Path(app.srcdir) / "reference")


def _bars(app, what, name, obj, options, lines):
    """A bar means an absolute value here, and a substitution in reStructuredText."""
    for n, line in enumerate(lines):
        if not line.startswith((" ", ">>>", "...")):
            lines[n] = re.sub(r"``.*?``|\|", lambda m: r"\|" if m[0] == "|" else m[0], line)


def _aliases(app, what, name, obj, options, signature, returned):
    """Print the name of an alias as it stands in the source."""
    alias = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
    return tuple(text and alias.sub(r"\1", text) for text in (signature, returned))


def _notebook(app, page, template, context, doctree):
    """Link each page that was run to its notebook."""
    if page.startswith("course/") or page == "gallery":
        up = "../" * page.count("/")
        target = f"{up}notebooks/{page}.ipynb"
        link = f'<p><a href="{target}" download>Download this page as a notebook</a></p>'
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{link}", 1)


def _beside(app, error):
    """The notebooks as they were run, and the pages that the gallery shows."""
    if error is None and app.builder.format == "html":
        _notebooks(app)
        _pages(Path(app.outdir))


def _notebooks(app):
    """Each page as it was run; MyST-NB itself writes pages from a cache without their outputs."""
    import nbformat
    from jupyter_cache import get_cache

    cache = get_cache(app.config.nb_execution_cache_path)
    for record in cache.list_project_records():
        _, notebook = cache.merge_match_into_notebook(cache.get_project_notebook(record.pk).nb)
        page = Path(record.uri).relative_to(app.srcdir).with_suffix(".ipynb")
        path = Path(app.outdir) / "notebooks" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
    shutil.rmtree(Path(app.outdir).parent / "jupyter_execute", ignore_errors=True)


def _pages(site):
    """The pages that the gallery shows, by the lines that it prints."""
    pictures = "pictures/mistakes"  # named by raw HTML, which Sphinx does not read
    shutil.copytree(Path(__file__).parent / pictures, site / pictures, dirs_exist_ok=True)
    gallery = (Path(__file__).parent / "gallery.md").read_text(encoding="utf-8")
    beginning = re.search(r"```\{code-cell\} python\n(.*?)```", gallery, re.S)[1]
    lines = re.findall(r"```python\n(.*?)```", gallery, re.S)
    script = "\n".join([beginning, *lines])
    subprocess.run([sys.executable, "-c", script], cwd=site, check=True)
