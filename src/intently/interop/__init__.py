"""Other libraries' attention, weight for weight: `load(foreign)` gives our block.

`dump`, in `torch` and `diffusers`, is the way back. Each library has a module (`torch`,
`diffusers`, `keras`, `transformers`), whose first lines say what the library does differently.
Every parameter is consumed, or the call raises an error that names the leftover. In all our masks,
True means attend.
"""

from intently.foundation.on_demand import listed, names

__all__ = ["diffusers", "keras", "torch", "transformers"]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__ = names(__name__, {})
__dir__ = listed(__name__)
