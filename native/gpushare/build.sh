#!/bin/sh
# Builds libgpushare for both machines into a folder, against glibc 2.17, so that the oldest images load it.
# usage: build.sh PYTHON FOLDER (a python with the package ziglang)
set -eu
python=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
for machine in x86_64 aarch64; do
  "$python" -m ziglang cc -target "$machine-linux-gnu.2.17" -std=gnu11 -O2 -g0 -fPIC -shared -s \
    -fvisibility=hidden -Wall -Wextra -Werror -Wl,-Bsymbolic -Wl,-soname,libgpushare.so -Wl,-z,relro -Wl,-z,now \
    "$here"/*.c -ldl -lpthread -o "$out/libgpushare-$machine.so.part"
  mv "$out/libgpushare-$machine.so.part" "$out/libgpushare-$machine.so"
done
