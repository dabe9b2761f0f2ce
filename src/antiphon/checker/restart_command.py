"""Runs the shell command with which the server under check is restarted.

It knows no server. Invariant: the command ends in bounded time, or it is killed with everything it started
in the foreground; what it started in the background is the server, and stays.
"""

import asyncio
import os
import signal
import tempfile
from contextlib import suppress

from antiphon.checker.answers import tidy
from antiphon.checker.undecided import UndecidedError

#: Until the command must have ended.
COMMAND_S = 60.0


async def run_restart_command(command: str, timeout_s: float = COMMAND_S) -> None:
    """Run it to its end; raises `UndecidedError` with what it said where it fails or takes too long."""
    # A file, not a pipe: a server that it starts may hold its standard error open for ever.
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                status = await process.wait()
        except TimeoutError:
            raise UndecidedError(f"the restart command did not end in {timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if status:
            said.seek(0)
            told = tidy(said.read(4096).decode(errors="replace"))
            raise UndecidedError(f"the restart command failed with status {status}: {told}")
