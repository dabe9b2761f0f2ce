"""Every example of the documentation runs, and prints what the page says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, RUN, list_pages, read_blocks
from tests.docs.session import Server, Session, matches, start_server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of `antiphon serve --scripted`, which most pages begin with."""
    server = start_server(["--scripted"], tmp_path_factory.mktemp("shared"))
    yield server
    server.stop()


WITH_EXAMPLES = [page for page in list_pages() if any(block.language in RUN for block in read_blocks(page))]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, shared: Server, tmp_path: Path) -> None:
    """Ours: a reader who copies the examples of a page in order gets what it shows."""
    blocks = read_blocks(page)
    session = Session(tmp_path, shared, blocks)
    try:
        for block in blocks:
            try:
                session.run(block)
            except AssertionError as error:
                raise AssertionError(f"{page.relative_to(ROOT)}:{block.line}: {error}") from error
    finally:
        session.close()


def test_an_output_that_differs_is_noticed() -> None:
    """Ours: the comparison lets only ids, times and `...` differ."""
    assert matches("id resp_0123456789abcdef01234567\n", "id resp_fedcba98765432100000aaaa\n")
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert not matches("tokens: 32 in", "tokens: 31 in")
    assert not matches("a\n", "a\nb\n")
