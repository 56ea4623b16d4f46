#!/usr/bin/env bash
# Puts the clients into a directory: `install.sh DIRECTORY PYTHON`. It is an environment of stubs that a stranger makes
# of the .proto files, with the newest libraries; below it stand tritonclient's, which wants older ones, and what node
# needs. What cannot be had for node is said and left out; its tests are skipped then.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
directory=$1 python=$2
stamp=$(cat "$here/requirements.txt" "$here/package.json" "$here/install.sh" | cksum)
[ "$(cat "$directory/installed" 2>/dev/null)" = "$stamp" ] && exit 0

"$python" -m venv "$directory"
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
"$python" -m venv "$directory/triton"
"$directory/triton/bin/python" -m pip install --quiet --disable-pip-version-check 'tritonclient[grpc]==2.73.0'

if command -v npm >/dev/null; then
    cp "$here/package.json" "$directory/package.json"
    npm install --prefix "$directory" --no-audit --no-fund --silent || echo "left out: the packages for node" >&2
else
    echo "left out: the clients for node, there is no npm" >&2
fi
echo "$stamp" >"$directory/installed"
