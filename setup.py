"""Builds the native kernels where a C++ compiler is there, and bundles the scripts of the page.

Everything else is in pyproject.toml.

`kernel.cpp` is compiled once for each instruction set of the machine's kind; which one runs is
decided when the module is loaded. Without a compiler, or where it fails, the package is installed
without them, and kernels in PyTorch's operations serve every call.
"""

from __future__ import annotations

import platform
import runpy
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

MODULE = "intently.core.kernels.native._native"
SOURCE = Path("src/intently/core/kernels/native/source")
FLAGS = ["-O2", "-g0", "-std=c++17", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=fast"]
SETS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": [
        "-mavx512f",
        "-mavx512dq",
        "-mavx512bw",
        "-mavx512vl",
        "-mfma",
        "-mprefer-vector-width=512",
    ],
}
"""Compiler flags of each instruction set; NEON belongs to every 64-bit ARM."""


class Kernels(build_ext):
    """Compiles the kernels once for each instruction set."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the sets beside the module; a failure leaves the package without kernels."""
        if self.compiler.compiler_type == "msvc":
            self.warn("the kernels need GCC or Clang; installing without them")
            return
        intel = platform.machine().lower() in ("x86_64", "amd64", "i686")
        quiet = ["-Wno-psabi", "-Wno-unknown-warning-option", "-Wno-maybe-uninitialized"]
        options = {"include_dirs": [str(SOURCE)], "depends": ext.depends}
        try:
            for name in SETS if intel else ["portable"]:
                place = str(Path(self.build_temp) / name)
                args = [*FLAGS, *quiet, *SETS[name]]
                one = [str(SOURCE / "kernel.cpp")]
                ext.extra_objects += self.compiler.compile(
                    one, output_dir=place, extra_postargs=args, **options
                )
            ext.extra_compile_args = FLAGS + (["-DINTENTLY_AVX"] if intel else [])
            super().build_extension(ext)
        except Exception as error:
            self.warn(f"the native kernels were not built: {error}")


class Scripts(build_py):
    """Writes the scripts of the page as bundles in place of their modules."""

    def run(self) -> None:
        """Copy the package, then bundle; an editable installation bundles when it runs."""
        super().run()
        page = Path(self.build_lib) / "intently/show/page"
        if self.editable_mode or not page.exists():
            return
        script = runpy.run_path(str(page / "script.py"))
        (page / "bundles").mkdir(exist_ok=True)
        for entry in script["ENTRIES"]:
            code = script["bundle"]([entry], page / "modules")
            (page / "bundles" / f"{entry}.js").write_text(code, encoding="utf-8")
        shutil.rmtree(page / "modules")


class Wheel(bdist_wheel):
    """One wheel for every Python: the module is written against the stable interface.

    Where it was not built, the wheel is a pure one, for every machine, and its name says so.
    """

    def finalize_options(self) -> None:
        """Name the oldest Python it serves."""
        self.py_limited_api = "cp311"
        super().finalize_options()

    def run(self) -> None:
        """Build first, to see whether there is a module."""
        if not self.skip_build:
            self.run_command("build")
        build = self.get_finalized_command("build_ext")
        if not Path(build.get_ext_fullpath(MODULE)).is_file():
            self.distribution.ext_modules = []
            self.root_is_pure = True
        super().run()


setup(
    ext_modules=[
        Extension(
            MODULE,
            sources=[str(SOURCE / name) for name in ("module.cpp", "threads.cpp")],
            depends=[str(path) for path in SOURCE.glob("*.hpp")],
            include_dirs=[str(SOURCE)],
            libraries=[] if sys.platform in ("win32", "darwin") else ["dl", "pthread"],
            language="c++",
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": Kernels, "build_py": Scripts, "bdist_wheel": Wheel},
)
