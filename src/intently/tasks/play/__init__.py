"""A translator inside a page: type, watch it translate, and change what it attends.

`save_play` writes one HTML file in which the translator itself runs, without a server or a network;
``intently play`` serves the same page to this machine.
"""

from intently.foundation.on_demand import listed
from intently.tasks.play.contents import LARGEST, Contents, packed
from intently.tasks.play.writing import save_play, whole

__all__ = ["LARGEST", "Contents", "packed", "save_play", "whole"]

__dir__ = listed(__name__)
