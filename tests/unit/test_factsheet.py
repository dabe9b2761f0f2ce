"""The factsheet: exact names are found in whatever stands around them, told once, and the newest find room."""

import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.context import fact_patterns
from antiphon.context.fact_patterns import FactKind, find_facts
from antiphon.context.factsheet import BYTES_PER_TOKEN, SEPARATOR, extract_facts

ROOM = 100_000
MIB = 1 << 20


def list_facts(*texts: str) -> dict[str, list[str]]:
    """The facts of texts, by kind, with room for all."""
    lines, dropped = extract_facts(texts, budget_tokens=ROOM)
    assert dropped == 0
    return {kind: rest.split(SEPARATOR) for kind, _, rest in (line.partition(": ") for line in lines)}


def measure(lines: tuple[str, ...]) -> float:
    """What the lines cost, as the budget counts."""
    return len("\n".join(lines).encode()) / BYTES_PER_TOKEN


FACTS: dict[FactKind, tuple[str, ...]] = {
    "Paths": (
        "src/antiphon/context/seal.py",
        "a.py:12",
        "src/main.rs:40:5",
        "docs/guide.md#L10-L20",
        "tests/unit/test_a.py::test_it_works",
        "/usr/lib/python3/dist-packages",
        "/v1/responses/compact",
        "./run.sh",
        "../shared/notes.txt",
        "~/.config/antiphon.toml",
        r"C:\Users\ada\project\main.cs",
        r"C:\Users\ada\main.cs:14",
        r"\\server\share\report.docx",
        r"src\core\parser.cpp",
        "C:/tools/bin/gcc.exe",
        "app/(shop)/[id]/page.tsx",
        "node_modules/@types/node/index.d.ts",
        "Makefile",
        "pyproject.toml",
        ".gitignore",
        ".env.local",
        "feature/seal-keys",
        "src/größe/ключ.py",
    ),
    "Ids": (
        "550e8400-e29b-41d4-a716-446655440000",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "PROJ-123",
        "CVE-2024-12345",
        "ORA-00942",
        "call_abc123",
        "msg_0f9a",
        "resp_68af4030592c81938ec0a5fbab4a3e9f",
        "chatcmpl-9XyZ12ab",
        "toolu_01AbCdEfGh",
        "web-7d9f8b6c5d-x2x4z",
        "ord_4711",
        "#1234",
    ),
    "Hashes": (
        "3f2a1b9",
        "9fceb02d0ae598e95dc970b74767f19372d61af8",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "E3B0C44298FC1C14",
    ),
    "Errors": (
        "E0432",
        "TS2345",
        "ERR_MODULE_NOT_FOUND",
        "E_ACCESS",
        "PERMISSION_DENIED",
        "KeyError",
        "FooException",
        "DeprecationWarning",
        "ECONNREFUSED",
        "SIGSEGV",
        "HTTP 404",
        "errno 13",
        "exit code 137",
        "SQLSTATE 42P01",
        "0x80070005",
    ),
    "URLs": (
        "https://example.com/a/b?x=1&y=2#top",
        "http://localhost:8080/health",
        "postgres://app@db:5432/main",
        "wss://example.com/v1/responses",
        "https://en.wikipedia.org/wiki/Seal_(mechanical)",
    ),
    "Numbers": (
        "250 ms",
        "1.5 s",
        "1,536 MiB",
        "16GB",
        "12.5 %",
        "99.9%",
        "1024px",
        "8192 tokens",
        "40 tok/s",
        "localhost:8080",
        "10.0.0.7:443",
        "redis.internal:6379",
        "port 5432",
        "v1.2.3",
        "2.31.0",
        "1.0.0-rc.1",
        "requests==2.31.0",
        "react@18.2.0",
        "$12.50",
        "21.5 °C",
    ),
}
#: What may stand around a fact: prose, brackets, quotes, Markdown, code, JSON, the end of a text.
AROUND = (
    "{}",
    "Look at {} again.",
    "It is {}, or so it seems",
    "see ({}).",
    "[{}]",
    "say '{}'!",
    'say "{}";',
    "`{}`",
    "the value={}\n",
    "\t{}\r\n",
    "a line\n{}\nanother",
    "name: {}",
)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", get_args(FactKind))
def test_a_fact_is_found_whatever_stands_around_it(kind: FactKind, around: str) -> None:
    """Ours: the kinds that a summary may not lose; each stands in the sheet as it stood in the text."""
    found = {fact: list_facts(around.format(fact)).get(kind, []) for fact in FACTS[kind]}
    assert found == {fact: [fact] for fact in FACTS[kind]}


@pytest.mark.parametrize("kind", get_args(FactKind))
def test_facts_are_found_in_the_strings_of_json(kind: FactKind) -> None:
    """Ours: arguments and many results are JSON, whose escapes would run into the names behind them."""
    for fact in FACTS[kind]:
        escaped = fact.replace("\\", "\\\\")
        for text in (
            f'{{"output":"first\\n{escaped}\\n\\"last\\"","n":1}}',
            f'assistant calls exec: {{"command":["bash","-lc","cat {escaped}"]}}',
            f'result: {{"output":"cut off\\n{escaped}\\nhere',
            f'[{{"deep":[["{escaped}"]]}}]',
        ):
            assert fact in list_facts(text).get(kind, []), text


def test_what_json_tells_in_numbers_is_found_by_its_key() -> None:
    """Ours: `status` and `exit_code` are facts only with their names."""
    assert list_facts('{"status":503,"exit_code":2,"port":8080,"error":{"code":"rate_limit_exceeded"}}') == {
        "Errors": ["HTTP 503", "exit_code: 2", "rate_limit_exceeded"],
        "Numbers": ["port: 8080"],
    }


@pytest.mark.parametrize(
    "text",
    [
        "and/or, n/a, TCP/IP, he/she, 24/7, km/h, 2026/11/30",
        "application/json and text/html",
        "</div> <br/> <p>",
        "files that end in .py or .tar.gz",
        "console.log(x), self.log, this.db, x.c, os.path.join(a)",
        "UTF-8, SHA-256, RFC-9110, ISO-8859 and x86_64 are no ids",
        "Error: an Exception or a Warning of no class",
        "2026-11-30T10:15:00Z at 12:30",
        "1234567 rows_of_nothing 42",
        r"\d+\w* and \n\t",
        "exit code 0",
        "std::vector<int> and a ? b : c",
        "[]{}()<>,;:!?#@&=+-*/\\|~^%$",
        "",
    ],
)
def test_ordinary_words_are_no_facts(text: str) -> None:
    """Ours: what fills the sheet with nothing takes the room of what matters."""
    found = list_facts(text)
    found.pop("Numbers", None)
    assert found == {}


def test_what_gives_access_is_not_told_again() -> None:
    """Ours, security: a key that stood in a result once is not copied into every window after it."""
    keys = ("sk-proj-abcdefgh12345678", "ghp_abcdefgh123456789012345678901234", "AKIA1234567890ABCDEF")
    assert list_facts(" ".join(keys), "{'api_key': 'hf_abcdefgh123456'}") == {}


def test_a_patch_names_its_files_without_its_prefixes() -> None:
    """Ours: `a/` and `b/` stand in no tree."""
    patch = "diff --git a/src/old.py b/src/new.py\n--- a/src/old.py\n+++ b/src/new.py\n@@ -1 +1 @@\n-x\n+y\n"
    assert list_facts("\n" + patch) == {"Paths": ["src/old.py", "src/new.py"]}


def test_quotes_hold_a_path_with_spaces_together() -> None:
    """Ours: Windows and macOS name folders so; a command with arguments is no path."""
    assert list_facts(
        r'open("C:\Program Files\Foo Bar\x y.exe") and "/Volumes/a/My Project/b.py"', '"/bin/cat a b"'
    ) == {"Paths": [r"C:\Program Files\Foo Bar\x y.exe", "/Volumes/a/My Project/b.py", "/bin/cat"]}


def test_a_fact_is_told_once_where_it_was_mentioned_last() -> None:
    """Ours: what was talked of last is needed soonest."""
    assert list_facts("a.py b.py c.py a.py", "d.py b.py")["Paths"] == ["c.py", "a.py", "d.py", "b.py"]


def test_facts_of_an_earlier_sheet_come_first_unless_told_again() -> None:
    """Ours: a second compaction keeps what the first one kept."""
    earlier, _ = extract_facts(["x.py y.py z.py E0432"], budget_tokens=ROOM)
    assert earlier == ("Paths: x.py; y.py; z.py", "Errors: E0432")
    lines, dropped = extract_facts(["new.py x.py"], earlier=earlier, budget_tokens=ROOM)
    assert (lines, dropped) == (("Paths: y.py; z.py; new.py; x.py", "Errors: E0432"), 0)


def test_lines_of_another_version_are_kept() -> None:
    """Ours: a seal may be older or newer than its server."""
    lines, _ = extract_facts(["a.py"], earlier=("Colours: teal; olive", "no kind at all"), budget_tokens=ROOM)
    assert lines == ("Paths: a.py", "Colours: teal; olive", "Other: no kind at all")
    assert extract_facts([], earlier=lines, budget_tokens=ROOM) == (lines, 0)


def test_several_sheets_become_one() -> None:
    """Ours: an input may hold several compaction items."""
    lines, _ = extract_facts(
        [], earlier=("Paths: a.py; b.py", "Ids: PROJ-123", "Paths: c.py; a.py"), budget_tokens=ROOM
    )
    assert lines == ("Paths: b.py; c.py; a.py", "Ids: PROJ-123")


def test_what_finds_no_room_is_the_oldest_and_is_counted() -> None:
    """Ours: nothing is lost silently."""
    texts = [f"src/file_{number:04}.py" for number in range(1000)]
    lines, dropped = extract_facts(texts, budget_tokens=200)
    (line,) = lines
    kept = line.removeprefix("Paths: ").split(SEPARATOR)
    assert kept == texts[dropped:]
    assert 180 < measure(lines) <= 200


def test_a_flood_of_one_kind_leaves_room_for_the_others() -> None:
    """Ours: one long listing must not cost the hash that everything hangs on."""
    rare = "9fceb02d0ae598e95dc970b74767f19372d61af8 PROJ-123 E0432 https://example.com/x 250 ms"
    flood = "\n".join(f"src/file_{number:04}.py" for number in range(5000))
    lines, dropped = extract_facts([rare, flood], budget_tokens=300)
    assert [line.partition(":")[0] for line in lines] == list(get_args(FactKind))
    assert all(fact in "\n".join(lines) for fact in rare.split())
    assert dropped > 4900
    assert measure(lines) <= 300


def test_no_room_at_all_is_no_fault() -> None:
    """Ours: a tiny window."""
    assert extract_facts(["a.py PROJ-123"], budget_tokens=0) == ((), 2)


PIECES = st.sampled_from([fact for kind in FACTS.values() for fact in kind])
WORDS = st.one_of(
    PIECES, st.text(max_size=12), st.sampled_from(['{"a":"', '"}', "\\n", "://", "/", "`", "=="])
)
TEXTS = st.lists(st.lists(WORDS, max_size=30).map(" ".join), max_size=5)


@given(TEXTS, st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_a_sheet_is_within_its_budget_and_reads_back_as_itself(texts: list[str], budget: int) -> None:
    """Ours: the same texts give the same lines, and a pass over nothing new changes nothing."""
    lines, dropped = extract_facts(texts, budget_tokens=budget)
    assert measure(lines) <= budget
    assert (lines, dropped) == extract_facts(iter(texts), budget_tokens=budget)
    assert extract_facts([], earlier=lines, budget_tokens=budget) == (lines, 0)
    everything, none = extract_facts(texts, budget_tokens=ROOM * 10)
    assert none == 0
    told = {fact for line in lines for fact in line.partition(": ")[2].split(SEPARATOR)}
    whole = [fact for line in everything for fact in line.partition(": ")[2].split(SEPARATOR)]
    assert told <= set(whole)
    assert len(whole) - sum(len(line.partition(": ")[2].split(SEPARATOR)) for line in lines) == dropped


@given(st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_every_fact_stands_in_its_text_and_on_one_line(text: str) -> None:
    """Ours: the rules name, they do not write; only statuses get a name of their own."""
    for found in find_facts(text):
        assert "\n" not in found.text
        assert SEPARATOR not in found.text
        assert found.text == found.text.strip() != ""
        if not found.text.startswith(("HTTP ", "SQLSTATE ")):
            assert found.text in text


HOSTILE = (
    "a/",
    "1",
    "ab12",
    "://",
    "a://",
    "1,",
    "1.",
    "a-",
    "a_1",
    '"/ ',
    '"/a A a',
    "/[",
    "/[aaaa",
    "code=",
    "http ",
    ":",
    "(",
    "a(",
    "#1",
    "a.",
    "1 ",
    "\\",
    "a\\",
    "a.b:",
    "@a",
    "v1.",
    "\n+++ a/",
    "É/",
    " ",
    "[{",
    '{"a":',
    '["',
    "\\n",
    "A_1-",
    "E0432 ",
)


def list_patterns() -> dict[str, re.Pattern[str]]:
    """Every pattern of the module."""
    return {name: value for name, value in vars(fact_patterns).items() if isinstance(value, re.Pattern)}


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_one_piece_is_read_in_linear_time(piece: str) -> None:
    """Ours, security: a result is whatever a tool printed. The test's own time-out is the bound; quadratic work on a
    megabyte would take hours."""
    text = piece * (MIB // len(piece))
    lines, _ = extract_facts([text, f"{text}\nsrc/end.py"], budget_tokens=ROOM)
    assert sum(map(len, lines)) < 3 * ROOM


def test_no_pattern_repeats_what_repeats_without_a_bound() -> None:
    """Ours, security: of two unbounded repetitions in one another comes exponential time."""
    for name, pattern in list_patterns().items():
        assert not re.search(r"[*+]\)(?:[*+]|\{\d+,\})", pattern.pattern), name
