"""Doubles: servers that misbehave in one named way each, and an honest one, to try a checker on.

`python -m antiphon.checker.doubles NAME PORT` serves one. They know no probe; the honest one passes them all.
"""

from antiphon.checker.doubles.families import FAMILIES
from antiphon.checker.doubles.honest import HonestDouble
from antiphon.checker.doubles.serving import DOUBLES, SINGLE_DOUBLES, list_double_names, serve_double

__all__ = ["DOUBLES", "FAMILIES", "SINGLE_DOUBLES", "HonestDouble", "list_double_names", "serve_double"]
