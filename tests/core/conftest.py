"""The matrices of these tests are tiny."""

from hypothesis import settings

from ..one_thread import one_thread as one_thread

settings.register_profile("same every time", deadline=None, derandomize=True, database=None)
settings.load_profile("same every time")
