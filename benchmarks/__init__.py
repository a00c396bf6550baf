"""Benchmarks, a folder a subject; each runs from the root of the repository.

    python -m benchmarks.core           # attention against PyTorch's; benchmarks.core.gpu on a GPU
    python -m benchmarks.blocks         # attention layers against those of other libraries
    python -m benchmarks.watching       # what watching costs
    python -m benchmarks.editing        # what edits cost, and the effects of all heads
    python -m benchmarks.page           # the page in Chromium, and figures
    python -m benchmarks.translation    # training and translating against other libraries
    python -m benchmarks.breadth        # what watch sees of models that others wrote
    python -m benchmarks.checking       # the examiner over planted, shipped and no mistakes

All take ``--help``. `measure` times and measures memory, `report` writes tables.
"""
