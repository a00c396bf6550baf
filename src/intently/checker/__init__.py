"""The examiner: what an attention computes, whether it is right, and which mistake it makes.

`check` takes a function or a module, ours or anybody's, and returns a `Report`.
"""

from intently.checker.checking import check
from intently.checker.report.finding import Finding
from intently.checker.report.report import Report
from intently.foundation.on_demand import listed

__all__ = ["Finding", "Report", "check"]

__dir__ = listed(__name__)
