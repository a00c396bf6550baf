"""`interop/test_keras.py` runs `keras_cases.py` in a process of its own."""

collect_ignore = ["keras_cases.py"]
