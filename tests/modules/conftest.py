"""The matrices of these tests are tiny."""

from ..one_thread import one_thread as one_thread
