"""The C++ of the native kernel under sanitizers."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/intently/core/kernels/native/source"
INTEL = platform.machine() in ("x86_64", "AMD64")
COMPILER = shutil.which("g++") or shutil.which("clang++")
SETS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma"],
}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Every job of every instruction set, on arrays of their exact size, against double."""
    common = [str(COMPILER), "-O1", "-std=c++17", "-w", f"-I{SOURCE}"]
    watched = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    empty = tmp_path / "empty.cpp"
    empty.write_text("int main() { return 0; }")
    tried = subprocess.run([*common, *watched, str(empty), "-o", str(tmp_path / "empty")])
    if tried.returncode or subprocess.run([str(tmp_path / "empty")]).returncode:
        pytest.skip("the compiler has no sanitizers")
    running = []
    for name, flags in SETS.items() if INTEL else [("portable", [])]:
        out = str(tmp_path / f"{name}.o")
        file = str(SOURCE / "kernel.cpp")
        running.append(subprocess.Popen([*common, *watched, *flags, "-c", file, "-o", out]))
    assert not any(process.wait() for process in running)
    main = str(Path(__file__).parent / "native/sanitized.cpp")
    objects = [str(path) for path in sorted(tmp_path.glob("*.o"))]
    intel = ["-DINTENTLY_AVX"] if INTEL else []
    program = str(tmp_path / "sanitized")
    subprocess.run([*common, *watched, *intel, main, *objects, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
