#!/bin/sh
# Print the newest Python from 3.11 on that really runs (version managers leave shims that do not), or say what to do.
for name in "$PYTHON" python3.13 python3.12 python3.11 python3; do
    [ -n "$name" ] || continue
    path=$(command -v "$name" 2>/dev/null) || continue
    if "$path" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "$path"
        exit 0
    fi
done
echo "Tidemill needs Python 3.11 or newer with its venv module; none was found." >&2
echo "Install it (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3" >&2
exit 1
