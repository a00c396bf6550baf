"""Which files of this folder are collected."""

collect_ignore = ["keras_cases.py"]
"""`test_keras` runs it in processes of its own, one for each backend."""
