"""The examiner: what an attention computes, whether it is right, and which mistake it makes.

`check` takes a function or a module, ours or anybody's, and returns a `Report`.
"""

from intently.check.checking import check
from intently.check.finding import Finding
from intently.check.report import Report

__all__ = ["Finding", "Report", "check"]
