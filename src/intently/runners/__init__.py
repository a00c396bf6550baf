"""Running the model of a folder on a text or a picture while it is watched."""
