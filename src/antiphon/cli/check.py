"""`antiphon check`: tries a Responses server's memory and prints what was found.

It knows no requirement: the checker does. Exit status: 0 all kept, 1 one broken, 2 none broken and some
undecided (or wrong use).
"""

import asyncio
import secrets
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from antiphon.checker import CheckOptions, Report, Requirement

#: Seeds are drawn below this when none is given.
SEEDS = 2**31


@click.command(
    short_help="Check whether a server keeps the state it claims.",
    epilog="""\b
Examples:
  antiphon check http://127.0.0.1:8300
  antiphon check localhost:11434 --model qwen3:4b
  antiphon check https://models.example/v1 --model M --key-env MODELS_KEY --junit state.xml
  antiphon check localhost:8000 --only state.continues --only stream
  antiphon check localhost:8300 --key-env ADA --second-key-env BEN
  antiphon check localhost:8300 --restart-command 'systemctl --user restart antiphon'
  antiphon check --print-script > check-responses-state.sh

\b
Exit status: 0 every requirement that was tried is kept; 1 at least one is
broken; 2 none is broken and at least one undecided, or wrong use; 130 interrupted.""",
)
@click.argument("url", required=False)
@click.option("--model", help="Model to ask; else the first one that the server lists.")
@click.option("--key-env", metavar="NAME", help="Environment variable that holds the server's API key.")
@click.option("--second-key-env", metavar="NAME", help="Variable with a key of another tenant.")
@click.option(
    "--restart-command",
    metavar="COMMAND",
    help="Shell command that restarts the server; run once, between two requests.",
)
@click.option("--only", multiple=True, metavar="ID|AREA", help="Try this requirement or area; repeatable.")
@click.option("--list", "lists", is_flag=True, help="List the requirements by areas and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write a JUnit XML file, too.")
@click.option("--seed", type=int, help="Decides every random word and id; else drawn and printed.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds that one probe may take.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=3),
    default=120,
    show_default=True,
    help="Length of the long chain.",
)
@click.option(
    "--window-tokens",
    type=click.IntRange(min=1),
    default=40_000,
    show_default=True,
    help="Size to which a history is grown to find the end of the window.",
)
@click.option(
    "--recall",
    "recall_words",
    metavar="N",
    type=click.IntRange(min=0, max=1000),
    default=0,
    show_default=True,
    help="Plant N random names and count how many the model brings back.",
)
@click.option("--mcp-url", metavar="URL", help="An MCP server that the server can reach, with a tool `say`.")
@click.option("--print-script", is_flag=True, help="Print a check that needs only sh and Python; then stop.")
def check(
    url: str | None,
    model: str | None,
    key_env: str | None,
    second_key_env: str | None,
    restart_command: str | None,
    only: tuple[str, ...],
    lists: bool,
    as_json: bool,
    junit: Path | None,
    seed: int | None,
    timeout_s: float,
    rounds: int,
    window_tokens: int,
    recall_words: int,
    mcp_url: str | None,
    print_script: bool,
) -> int:
    """Check the Responses server at URL: a host, a base or a full /responses URL."""
    from antiphon.checker import CheckOptions, read_script, run_restart_command
    from antiphon.cli.ask import read_key

    if print_script:
        click.echo(read_script(), nl=False)
        return 0
    requirements = choose_requirements(only)
    if lists:
        list_requirements(requirements)
        return 0
    if url is None:
        raise click.UsageError("Name the server: antiphon check URL")
    key, second_key = read_key(key_env), read_key(second_key_env, "--second-key-env")
    if key is not None and second_key is not None and key == second_key:
        raise click.UsageError("--second-key-env must name a key of another tenant; this is the same key.")
    options = CheckOptions(
        requirements=requirements,
        api_key=key.reveal() if key is not None else None,
        seed=secrets.randbelow(SEEDS) if seed is None else seed,
        timeout_s=timeout_s,
        rounds=rounds,
        window_tokens=window_tokens,
        second_key=second_key.reveal() if second_key is not None else None,
        restart=partial(run_restart_command, restart_command) if restart_command else None,
        recall_words=recall_words,
        mcp_url=mcp_url,
    )
    report = run(url, model, options, quiet=as_json)
    if junit is not None:
        write_junit(report, junit)
    return report.exit_status


def choose_requirements(only: tuple[str, ...]) -> "list[Requirement]":
    """The requirements that were named, or all; raises `UsageError` for a name that there is not."""
    from antiphon.checker import select_requirements

    try:
        return select_requirements(only)
    except KeyError as error:
        areas = ", ".join(dict.fromkeys(requirement.area for requirement in select_requirements()))
        told = f"There is no requirement or area {error.args[0]!r}. Areas: {areas}. --list names all requirements."
        raise click.UsageError(told) from None


def list_requirements(requirements: "list[Requirement]") -> None:
    """Id, sentence and source of each, by areas."""
    from antiphon.checker import render_area

    area = None
    for requirement in requirements:
        if requirement.area != area:
            area = requirement.area
            click.echo(render_area(area))
        click.echo(f"{requirement.id}\n    {requirement.sentence}\n    {requirement.source}")


def run(url: str, model: str | None, options: "CheckOptions", *, quiet: bool) -> "Report":
    """Run the check and print it: each result as it comes, by areas, or the whole as JSON."""
    from antiphon.checker import (
        Result,
        Verdict,
        find_wide_areas,
        render_area,
        render_json,
        render_result,
        render_summary,
        render_sums,
        run_check,
    )
    from antiphon.client import AddressError

    shown: list[str] = []
    areas = [requirement.area for requirement in options.requirements]
    several, wide = len(set(areas)) > 1, find_wide_areas(areas)
    tried: dict[str, Counter[Verdict]] = {area: Counter() for area in areas}

    def show(result: Result) -> None:
        if several and result.area not in shown:
            shown.append(result.area)
            click.echo(render_area(result.area))
        is_kept = result.verdict is Verdict.PASS
        sums = tried[result.area]
        sums[result.verdict] += 1
        # What was not asked for stands in the notes at the end.
        if result.area not in wide or not (is_kept or result.needs):
            click.echo(render_result(result))
        if result.area in wide and sums.total() == areas.count(result.area):
            click.echo(render_sums(result.area, sums))

    try:
        report = asyncio.run(run_check(url, model, options, None if quiet else show))
    except AddressError as error:
        raise click.UsageError(str(error)) from error
    if not quiet and report.unreachable is not None:
        click.echo(f"antiphon: {render_summary(report)}", err=True)
        return report
    click.echo(render_json(report) if quiet else f"\n{render_summary(report)}")
    return report


def write_junit(report: "Report", file: Path) -> None:
    """Write the JUnit file; a file that cannot be written is a failure of the command."""
    from antiphon.checker import render_junit

    try:
        file.write_text(render_junit(report), "utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
