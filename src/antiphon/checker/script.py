"""The check that needs nothing but sh and Python, shipped as a file beside this one."""

from importlib import resources


def read_script() -> str:
    """The text of `check-responses-state.sh`."""
    return resources.files("antiphon.checker").joinpath("check-responses-state.sh").read_text("utf-8")
