"""Other libraries' attention, weight for weight: `load(foreign)` gives our block, `dump` theirs.

One module for each library (`torch`, `diffusers`, `keras`, `transformers`), imported by those who
have it. Every parameter is consumed, or the call refuses and names what is left over; what the
other side does differently is said in the module's first lines. In every mask of ours True means
attend.
"""
