#!/usr/bin/env bash
# Puts the clients into a directory: `install.sh DIRECTORY PYTHON`. What cannot be had is said and left out; its tests
# are skipped then.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
directory=$1 python=$2
stamp=$(cat "$here/requirements.txt" "$here/package.json" | cksum)
[ "$(cat "$directory/installed" 2>/dev/null)" = "$stamp" ] && exit 0

"$python" -m venv "$directory"
pip() { "$directory/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
if ! pip -r "$here/requirements.txt"; then
    while read -r requirement; do
        pip "$requirement" || echo "left out: $requirement cannot be installed" >&2
    done <"$here/requirements.txt"
fi

if command -v npm >/dev/null; then
    cp "$here/package.json" "$directory/package.json"
    npm install --prefix "$directory" --no-audit --no-fund --silent || echo "left out: the packages for node" >&2
else
    echo "left out: the clients for node, there is no npm" >&2
fi

if ! command -v chromium >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } \
        >/dev/null 2>&1 || echo "left out: chromium" >&2
fi
echo "$stamp" >"$directory/installed"
