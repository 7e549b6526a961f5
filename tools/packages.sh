#!/bin/sh
# Installs missing Debian packages that tests use; only as root, and only if there is apt-get.
set -eu
missing=
# program:package
for pair in tmux:tmux curl:curl openssl:openssl podman:podman crun:crun \
  containerd:containerd runc:runc ip:iproute2 iptables:iptables busybox:busybox-static; do
  command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -x /usr/lib/cni/bridge ] || missing="$missing containernetworking-plugins"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "not installed:$missing; tests that need them skip, or fail with CI=true" >&2
  exit 0
fi
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # a list of words
apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1 || {
  apt-get update -qq >/dev/null && apt-get install -qq -y --no-install-recommends $missing >/dev/null
}
