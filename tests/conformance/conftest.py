"""What the conformance tests run against: our own server in this process."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest
from tools.checked_server import open_checked_server

from antiphon.client.app_run import AsgiApp

OpenApp = Callable[[], AbstractAsyncContextManager[AsgiApp]]


@pytest.fixture
def scripted_app(tmp_path: Path) -> OpenApp:
    """Opens our server with the scripted model and a store of its own; opened again, it has the same data."""
    return partial(open_checked_server, tmp_path)
