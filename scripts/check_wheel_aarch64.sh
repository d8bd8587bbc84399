#!/usr/bin/env bash
# Run the wheel for 64-bit ARM without such a machine: unpack Debian's Python 3.11 for arm64, install the wheel with its
# dependencies' own ARM wheels, and under qemu-user, on a processor with dot products and on one without, compute tiny
# models on every instruction set. Their logits are compared with this machine's, bit by bit; then the tests of the
# native executor run there. No compiler is involved.
#
# Needs Debian or Ubuntu with qemu-user; downloads about 80 MB. `dpkg --add-architecture arm64` must have been run, as
# this script does not change the system: it says so where it has not. Usage: scripts/check_wheel_aarch64.sh [WHEEL]
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=$(realpath "${1:-$(ls dist/tidemill-*cp311*aarch64.whl)}")
python=${PYTHON:-.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

command -v qemu-aarch64 >/dev/null || { echo "qemu-aarch64 is missing: apt-get install qemu-user" >&2; exit 1; }
dpkg --print-foreign-architectures | grep -qx arm64 || {
    echo "run first: dpkg --add-architecture arm64 && apt-get update" >&2; exit 1; }

echo "Python for arm64, and the wheel with its dependencies"
packages=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libstdc++6 libgcc-s1 zlib1g libexpat1
    libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1)
mkdir "$work/debs" "$work/root"
(cd "$work/debs" && apt-get download -qq "${packages[@]/%/:arm64}" 2>/dev/null)
for package in "$work"/debs/*.deb; do dpkg -x "$package" "$work/root"; done
platforms=()
for glibc in 36 35 34 31 28 26 24 17; do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
"$python" -m pip --disable-pip-version-check --quiet install --target "$work/site" --no-compile --only-binary :all: \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none "${platforms[@]}" \
    "$wheel" pytest pytest-asyncio pytest-timeout hypothesis safetensors psutil

emulated() { # emulated CPU ARGUMENTS...: Python for arm64 that sees the installed wheel, and not src/
    local cpu=$1 lib=lib/aarch64-linux-gnu
    shift
    env -u PYTHONPATH QEMU_CPU="$cpu" qemu-aarch64 -L "$work/root" \
        -E LD_LIBRARY_PATH="$work/root/$lib:$work/root/usr/$lib" -E PYTHONHOME="$work/root/usr" \
        -E PYTHONPATH="$work/site" -E PYTHONDONTWRITEBYTECODE=1 "$work/root/usr/bin/python3.11" "$@"
}

"$python" scripts/machine_answers.py write "$work/here.npz"
for cpu in max cortex-a57; do
    emulated "$cpu" scripts/machine_answers.py write "$work/$cpu.npz"
    "$python" scripts/machine_answers.py compare "$work/here.npz" "$work/$cpu.npz"
done
emulated max -m pytest -q -p no:cacheprovider --timeout 0 -m "not slow" \
    tests/executors/native/test_operations.py tests/golden/test_tiny_llama.py
