#!/usr/bin/env bash
# get_arm64.sh - put the arm64 builds of jansson, utf8proc and cmocka into build/arm64/root.
#
# For the aarch64 preset: a cross build whose tests run under qemu-user. The packages are downloaded
# and unpacked beside this tree by an apt of their own (own state, own cache), so the system's
# package state is left alone and no foreign architecture is added to it.
set -euo pipefail
cd "$(dirname "$0")/.."
root=build/arm64/root
[ -f $root/.ready ] && exit 0

work=$(pwd)/build/arm64
rm -rf "$work"
mkdir -p "$work"/{state/lists/partial,cache/archives/partial,deb,root}
: >"$work/state/status"
apt=(apt-get -q -o "Dir::State=$work/state" -o "Dir::State::status=$work/state/status"
    -o "Dir::Cache=$work/cache" -o APT::Architecture=arm64 -o APT::Architectures=arm64
    -o APT::Sandbox::User=root -o Acquire::Retries=3)
"${apt[@]}" update >/dev/null
(cd "$work/deb" && "${apt[@]}" download libjansson-dev libjansson4 libutf8proc-dev libutf8proc2 \
    libcmocka-dev libcmocka0 >/dev/null)
for package in "$work"/deb/*.deb; do
    dpkg-deb -x "$package" $root
done
rm -rf "$work/state" "$work/cache" "$work/deb"
touch $root/.ready
