"""Other libraries' attention, weight for weight: `load(foreign)` gives our block, `dump` theirs.

Each library has a module (`torch`, `diffusers`, `keras`, `transformers`), whose first lines say
what the library does differently. Every parameter is consumed, or the call raises an error that
names the leftover. In all our masks, True means attend.
"""
