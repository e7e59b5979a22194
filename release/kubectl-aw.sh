#!/bin/sh
# `kubectl aw` as krew installs it. The first call makes a virtual environment beside this file and installs the wheel into
# it, with the packages that commands of people need; `kubectl krew uninstall aw` removes both.
set -eu
here=$(dirname "$(readlink -f "$0")")
python=${KUBECTL_AW_PYTHON:-python3}

if [ ! -e "$here/venv/ready" ]; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "kubectl aw: Python 3.11 or newer is needed: set KUBECTL_AW_PYTHON to its path" >&2
        exit 1
    }
    echo "kubectl aw: installing its packages into $here/venv, once" >&2
    rm -rf "$here/venv"
    "$python" -m venv "$here/venv"
    "$here/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$here"/*.whl
    touch "$here/venv/ready"
fi
exec "$here/venv/bin/kubectl-aw" "$@"
