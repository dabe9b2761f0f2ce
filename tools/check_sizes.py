"""Fails when a module has more than 800 lines or a function more than 70: the tail is what spoils code."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES = 800
FUNCTION_LINES = 70
FOLDERS = ("src", "tools", "bench", "tests")


def find_faults(root: Path) -> Iterator[str]:
    """One line for each module or function over its limit."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            name = path.relative_to(root)
            lines = text.count("\n")
            if lines > MODULE_LINES:
                yield f"{name}: {lines} lines; a module has at most {MODULE_LINES}"
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    size = (node.end_lineno or node.lineno) - node.lineno + 1
                    if size > FUNCTION_LINES:
                        yield f"{name}:{node.lineno}: {node.name} has {size} lines; at most {FUNCTION_LINES}"


def main() -> int:
    """Print the faults; the exit status is 1 when there are any."""
    faults = list(find_faults(Path(__file__).resolve().parent.parent))
    for fault in faults:
        print(fault)
    print(f"sizes: {len(faults)} over the limit")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
