"""The scripts of this folder import each other, also where pytest collects them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
