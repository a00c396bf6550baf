"""Attention code with planted mistakes.

A *base* is attention as people write it, and right. A *slip* is a small edit of its source that
plants one mistake of a named *kind*. A *mutant* is a base with a slip, compiled. The base with the
same shapes and weights but without the slip is the mutant's `correct`.
"""
