"""`antiphon ask`: one question to any Responses server, the answer streamed to standard output.

It remembers the last response of each server and key for `--continue`; the conversation itself is the
server's. It calls no tools: a call is shown, and its output is left to programs.
"""

import asyncio
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from antiphon.protocol.errors import AntiphonError

if TYPE_CHECKING:
    from pathlib import Path

    from antiphon.cli.continuations import Continuation
    from antiphon.client import ClientError, ResponsesClient, UnreachableError
    from antiphon.config import Secret
    from antiphon.protocol.events import Event

DEFAULT_URL = "http://127.0.0.1:8300"
#: Items of an output that a client must answer with an output of its own.
ANSWERED_CALLS = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "computer_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "mcp_approval_request",
    }
)


@click.command(
    short_help="Ask a question and stream the answer.",
    epilog="""\b
Examples:
  antiphon ask "Remember the code word: marmalade."
  antiphon ask -c "What was the code word?"
  antiphon ask --url http://localhost:11434 --model qwen3:4b "Hello"
  git diff | antiphon ask --instructions "Review this." -

\b
Exit status: 0 answered; 1 the server failed or cannot be reached; 2 wrong use;
130 interrupted.""",
)
@click.argument("question")
@click.option(
    "--continue", "-c", "continues", is_flag=True, help="Go on from the last answer of this server (and key)."
)
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Host, base or full /responses URL.")
@click.option("--model", help="Model to ask; else the last one (--continue) or the server's first.")
@click.option("--instructions", help="System text for this question alone; it is not inherited.")
@click.option("--key-env", metavar="NAME", help="Environment variable that holds the server's API key.")
@click.option("--usage", is_flag=True, help="Print the token counts to standard error.")
def ask(question: str, url: str, key_env: str | None, **options: Any) -> int:
    """Ask QUESTION (- reads it from standard input) and stream the answer."""
    from antiphon.client import NetworkTransport, ResponsesClient, resolve_responses_url

    if question == "-":
        question = sys.stdin.read()
    if not question.strip():
        raise click.UsageError("The question is empty.")
    try:
        base, prefix = resolve_responses_url(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    key = read_key(key_env)

    async def run() -> int:
        client = ResponsesClient(
            NetworkTransport(base), key.reveal() if key is not None else None, prefix=prefix
        )
        try:
            return await ask_server(client, base + prefix, question, key=key, key_env=key_env, **options)
        finally:
            await client.close()

    return asyncio.run(run())


def read_key(variable: str | None, option: str = "--key-env") -> "Secret | None":
    """The key in the variable that was named; raises `UsageError` when it holds none."""
    if variable is None:
        return None
    from antiphon.config import read_secret

    key = read_secret(variable)
    if key is None:
        raise click.UsageError(f"{option} names {variable}, which is no environment variable that is set.")
    return key


def explain_unreachable(error: "UnreachableError", url: str) -> "UnreachableError":
    """The error with what to do about it, where the server would be on this machine."""
    from antiphon.client import UnreachableError
    from antiphon.config import is_loopback

    if not is_loopback(urlsplit(url).hostname or ""):
        return error
    hint = "Is a server running there? Start one with: antiphon serve"
    return UnreachableError(f"{error.message.rstrip('.')}. {hint}")


def explain_unknown_key(error: "ClientError", variable: str | None) -> AntiphonError:
    """What to do about status 401: name a key, or another one than the variable holds."""
    if variable is None:
        return AntiphonError(
            f"{error.message} Name the variable that holds the server's API key with --key-env."
        )
    return AntiphonError(f"{error.message} The key in {variable} is not known to this server.")


async def ask_server(
    client: "ResponsesClient",
    url: str,
    question: str,
    *,
    key: "Secret | None" = None,
    key_env: str | None = None,
    continues: bool,
    model: str | None,
    instructions: str | None,
    usage: bool,
) -> int:
    """Stream one answer and remember it; returns the exit status."""
    from antiphon.cli.continuations import Continuation, forget_continuation, name_place, record_continuation
    from antiphon.client import ClientError, UnreachableError
    from antiphon.config import find_user_folders

    folder = find_user_folders().state
    place = name_place(url, key.reveal() if key is not None else None)
    last = find_last(folder, place, url) if continues else None
    if not continues:
        # A new conversation: should it break off, `--continue` must not go on with the one before it.
        forget_continuation(folder, place)
    answer = Answer()
    try:
        model = model or (last.model if last is not None else await find_first_model(client))
        await answer.stream(client, build_body(question, model, instructions, last))
    except UnreachableError as error:
        raise explain_unreachable(error, url) from error
    except ClientError as error:
        if error.status == 401:
            raise explain_unknown_key(error, key_env) from error
        if error.status < 500 or not error.request_id:
            raise
        raise AntiphonError(f"{error.message} (request id {error.request_id})") from error
    status = answer.report_end()
    if usage:
        report_usage(answer.response)
    if status == 0 and isinstance(answer.response.get("id"), str):
        record_continuation(folder, place, Continuation(answer.response["id"], model, tuple(answer.calls)))
    return status


def find_last(folder: "Path", place: str, url: str) -> "Continuation":
    """Where to go on; raises `UsageError` when there is nothing, or when a question cannot come next."""
    from antiphon.cli.continuations import load_continuations

    last = load_continuations(folder).get(place)
    if last is None:
        raise click.UsageError(f"There is nothing to continue at {url}. Ask without --continue first.")
    if last.calls:
        raise click.UsageError(
            f"The last answer called {', '.join(last.calls)} and waits for the output, which `ask` cannot give. "
            f"Send it through the API as function_call_output with previous_response_id {last.response_id}, "
            "or ask without --continue."
        )
    return last


async def find_first_model(client: "ResponsesClient") -> str:
    """The first model that the server lists."""
    listed = (await client.list_models()).body
    models = listed.get("data") if isinstance(listed, dict) else None
    if not models or not isinstance(models, list):
        raise click.UsageError("The server lists no models; name one with --model.")
    return str(models[0].get("id"))


def build_body(
    question: str, model: str, instructions: str | None, last: "Continuation | None"
) -> dict[str, Any]:
    """The request, with nothing in it that was not asked for."""
    body: dict[str, Any] = {"model": model, "input": question}
    if instructions is not None:
        body["instructions"] = instructions
    if last is not None:
        body["previous_response_id"] = last.response_id
    return body


class Answer:
    """One answer, printed as it comes. `response` is that of its terminal event, {} when none came."""

    def __init__(self) -> None:
        self.response: dict[str, Any] = {}
        #: What was called and needs an output before the conversation can go on.
        self.calls: list[str] = []
        self._request_id = ""
        self._is_line_open = False

    async def stream(self, client: "ResponsesClient", body: dict[str, Any]) -> None:
        """Send the request and print text and calls at once."""
        import msgspec

        from antiphon.protocol.events import ResponseCompleted, ResponseFailed, ResponseIncomplete

        try:
            async with client.stream(body) as events:
                self._request_id = events.headers.get("x-request-id", "")
                async for event in events:
                    self._print(event)
                    if isinstance(event, ResponseCompleted | ResponseFailed | ResponseIncomplete):
                        self.response = msgspec.json.decode(event.response)
        finally:
            self._end_line()

    def _print(self, event: "Event") -> None:
        """Visible text goes to standard output; refusals and calls too."""
        import msgspec

        from antiphon.protocol.events import OutputItemDone, OutputTextDelta, RefusalDelta

        if isinstance(event, OutputTextDelta | RefusalDelta):
            click.echo(event.delta, nl=False)
            self._is_line_open = True
        elif isinstance(event, OutputItemDone):
            item = msgspec.json.decode(event.item)
            call = render_call(item)
            if call is None:
                return
            self._end_line()
            click.echo(call)
            # A call that was cut off is no question to answer.
            if item.get("status", "completed") == "completed":
                self.calls.append(item.get("name") or item["type"])

    def _end_line(self) -> None:
        if self._is_line_open:
            click.echo()
        self._is_line_open = False

    def report_end(self) -> int:
        """Say on standard error how it ended, unless it is complete; returns the exit status."""
        status = self.response.get("status")
        if status == "completed":
            return 0
        if status == "incomplete":
            details = self.response.get("incomplete_details") or {}
            reason = details.get("reason", "the server gives no reason")
            click.echo(f"antiphon: the answer was cut short: {reason}", err=True)
            return 0
        error = self.response.get("error") or {}
        said = error.get("message", "the answer broke off: the server ended it before its end")
        request_id = f" (request id {self._request_id})" if self._request_id else ""
        click.echo(f"antiphon: {said}{request_id}", err=True)
        return 1


def render_call(item: dict[str, Any]) -> str | None:
    """A call that needs an output of the caller, on one line; None for every other item."""
    if item.get("type") not in ANSWERED_CALLS:
        return None
    given = item.get("arguments", item.get("input", item.get("action", "")))
    if not isinstance(given, str):
        import msgspec

        given = msgspec.json.encode(given).decode()
    return f"{item.get('name') or item['type']}({given})"


def report_usage(response: dict[str, Any]) -> None:
    """The token counts, on standard error."""
    usage = response.get("usage")
    if not usage:
        click.echo("tokens: the server did not count", err=True)
        return
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    click.echo(
        f"tokens: {usage.get('input_tokens')} in ({cached} cached), {usage.get('output_tokens')} out",
        err=True,
    )
