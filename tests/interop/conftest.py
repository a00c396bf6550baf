"""Which files of this folder are collected."""

collect_ignore = ["keras_drawing.py", "keras_layer_cases.py", "keras_loading_cases.py"]
"""`test_keras` runs these in processes of its own, one for each backend."""
