"""Any model of a folder, run on a text or a picture while it is watched."""
