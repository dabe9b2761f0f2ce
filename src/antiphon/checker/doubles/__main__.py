"""`python -m antiphon.checker.doubles NAME PORT`: serves one double."""

import sys

from antiphon.checker.doubles import DOUBLES, list_double_names, serve_double

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in DOUBLES or not sys.argv[2].isdigit():
        sys.exit(
            "usage: python -m antiphon.checker.doubles NAME PORT\nnames: " + " ".join(list_double_names())
        )
    serve_double(sys.argv[1], int(sys.argv[2]))
