"""The examples of a guide for one client: the programs in its language, and what the guide says they print.

It runs nothing; `tests/docs` runs the server's side of the same page. Invariant: every block of the language is among
the examples, and an output belongs to the block before it.
"""

from typing import NamedTuple

from tests.docs.blocks import ROOT, Block, read_blocks
from tests.docs.session import matches

ADDRESS = "http://127.0.0.1:8300/v1"
#: What stands before the expected output of a client's program.
OUTPUT = "output of the program"
MARK = "--next-example--"


class Example(NamedTuple):
    """A block of a program, and what it prints, if the guide says so."""

    block: Block
    output: str | None


def read_examples(name: str, *languages: str) -> list[Example]:
    """The blocks of these languages in `docs/guides/NAME`, in order."""
    blocks = read_blocks(ROOT / "docs" / "guides" / name)
    examples = []
    for number, block in enumerate(blocks):
        if block.language in languages:
            after = blocks[number + 1] if number + 1 < len(blocks) else None
            shown = after.text if after is not None and after.comment == OUTPUT else None
            examples.append(Example(block, shown))
    assert len([each for each in blocks if each.comment == OUTPUT]) == sum(
        example.output is not None for example in examples
    )
    return examples


def check_outputs(name: str, examples: list[Example], outputs: list[str]) -> None:
    """Each example printed what the guide says."""
    for example, was in zip(examples, outputs, strict=True):
        wanted = example.output or ""
        assert matches(wanted, was), f"{name}:{example.block.line}\n{wanted}\n--- but was ---\n{was}"
