#!/usr/bin/env bash
# Installs what a build needs: system packages that are missing (Debian or
# Ubuntu), then a virtual environment with the pinned Python packages.
# Usage: setup.sh VENV [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
python=${2:-python3}

say() { echo "set-up: $*"; }
die() {
    echo "set-up: $*" >&2
    exit 1
}

# The Debian packages of what is not here, found by asking for the thing
# itself, so that a compiler or a Python from elsewhere counts.
missing_packages() {
    has gcc || has cc || echo build-essential
    has cmake || echo cmake
    has ninja || echo ninja-build
    has "$python" || echo python3
    python_can 'import ensurepip, venv' || echo python3-venv
    python_can 'import os, sysconfig
path = sysconfig.get_path("include")
assert os.path.exists(os.path.join(path, "Python.h"))' || echo python3-dev
}

has() { command -v "$1" >/dev/null; }

python_can() { "$python" -c "$1" 2>/dev/null; }

install_packages() {
    local sudo=()
    has apt-get || die "please install the counterparts of: $*"
    if [ "$(id -u)" != 0 ]; then
        has sudo || die "please install as root: apt-get install $*"
        sudo=(sudo)
    fi
    say "installing $*"
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "$@"
}

make_venv() {
    say "making $venv"
    "$python" -m venv --clear "$venv"
    say "installing Python packages (PyTorch is large: a few minutes)"
    "$venv/bin/pip" install --disable-pip-version-check \
        -r requirements-dev.txt
}

mapfile -t packages < <(missing_packages)
if [ ${#packages[@]} -gt 0 ]; then
    install_packages "${packages[@]}"
fi
python_can 'import sys; assert sys.version_info >= (3, 10)' ||
    die "$python is too old: tide needs Python 3.10 or newer"
make_venv
say "done"
