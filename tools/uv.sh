#!/bin/sh
# Prints the path of uv: from the PATH, or else from our cache, where it is installed once.
set -eu
version=0.13.7
if command -v uv >/dev/null 2>&1; then command -v uv; exit 0; fi
home="${XDG_CACHE_HOME:-$HOME/.cache}/aliquot/uv-$version"
if [ ! -x "$home/bin/uv" ]; then
  python=$(command -v python3) || { echo "install Python 3.11 or newer first" >&2; exit 1; }
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; found $("$python" --version)" >&2; exit 1; }
  echo "installing uv $version into $home" >&2
  rm -rf "$home.part"; mkdir -p "$(dirname "$home")"
  "$python" -m venv "$home.part" >&2
  "$home.part/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$version" >&2
  mv "$home.part" "$home"
fi
echo "$home/bin/uv"
