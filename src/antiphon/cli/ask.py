"""`antiphon ask`: one question to any Responses server, the answer streamed to standard output.

It remembers the last response of each server for `--continue`; the conversation itself is the server's.
"""

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from antiphon.cli.continuations import Continuation
    from antiphon.client import ResponsesClient
    from antiphon.config import Secret
    from antiphon.protocol.events import Event

DEFAULT_URL = "http://127.0.0.1:8300"


@click.command(
    short_help="Ask a question and stream the answer.",
    epilog="""\b
Examples:
  antiphon ask "Remember the code word: marmalade."
  antiphon ask --continue "What was the code word?"
  antiphon ask --url http://localhost:11434 --model qwen3:4b "Hello"
  git diff | antiphon ask --instructions "Review this." -

\b
Exit status: 0 answered; 1 the server failed or cannot be reached; 2 wrong use;
130 interrupted.""",
)
@click.argument("question")
@click.option("--continue", "continues", is_flag=True, help="Go on from the last answer of this server.")
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
            return await ask_server(client, base + prefix, question, **options)
        finally:
            await client.close()

    return asyncio.run(run())


def read_key(variable: str | None) -> "Secret | None":
    """The key in the variable that was named; raises `UsageError` when it holds none."""
    if variable is None:
        return None
    from antiphon.config import read_secret

    key = read_secret(variable)
    if key is None:
        raise click.UsageError("--key-env must name an environment variable that is set.")
    return key


async def ask_server(
    client: "ResponsesClient",
    url: str,
    question: str,
    *,
    continues: bool,
    model: str | None,
    instructions: str | None,
    usage: bool,
) -> int:
    """Stream one answer and remember it; returns the exit status."""
    from antiphon.cli.continuations import Continuation, load_continuations, record_continuation
    from antiphon.client import ConnectionFailedError
    from antiphon.config import find_user_folders

    folder = find_user_folders().state
    last = load_continuations(folder).get(url) if continues else None
    if continues and last is None:
        raise click.UsageError(f"There is nothing to continue at {url}. Ask without --continue first.")
    try:
        model = model or (last.model if last is not None else await find_first_model(client))
        body = build_body(question, model, instructions, last)
        response = await stream_answer(client, body)
    except ConnectionFailedError as error:
        hint = "Is a server running there? Start one with: antiphon serve --scripted"
        raise ConnectionFailedError(f"{error.message.rstrip('.')}. {hint}") from error
    status = report_end(response)
    if usage:
        report_usage(response)
    if status == 0 and isinstance(response.get("id"), str):
        record_continuation(folder, url, Continuation(response["id"], model))
    return status


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


async def stream_answer(client: "ResponsesClient", body: dict[str, Any]) -> dict[str, Any]:
    """Print the deltas as they come; returns the response of the terminal event, {} when none came."""
    import msgspec

    from antiphon.protocol.events import ResponseCompleted, ResponseFailed, ResponseIncomplete

    response: dict[str, Any] = {}
    async with client.stream(body) as events:
        async for event in events:
            print_delta(event)
            if isinstance(event, ResponseCompleted | ResponseFailed | ResponseIncomplete):
                response = msgspec.json.decode(event.response)
    click.echo()
    return response


def print_delta(event: "Event") -> None:
    """Visible text goes to standard output at once; refusals too."""
    from antiphon.protocol.events import OutputTextDelta, RefusalDelta

    if isinstance(event, OutputTextDelta | RefusalDelta):
        click.echo(event.delta, nl=False)


def report_end(response: dict[str, Any]) -> int:
    """Say on standard error how the answer ended, unless it is complete; returns the exit status."""
    status = response.get("status")
    if status == "completed":
        return 0
    if status == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason", "the server gives no reason")
        click.echo(f"antiphon: the answer was cut short: {reason}", err=True)
        return 0
    error = (response.get("error") or {}).get("message", "the stream ended without an end of the answer")
    click.echo(f"antiphon: {error}", err=True)
    return 1


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
