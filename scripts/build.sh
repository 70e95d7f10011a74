#!/usr/bin/env bash
# Configures (once) and builds a preset, and leaves the program at bin/pith (and bin/pith-train): scripts/build.sh [PRESET] [ninja targets].
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-edge}
shift || true
dir=build/$preset
if [ ! -f "$dir/build.ninja" ]; then
  echo "build: configuring $dir"
  cmake --preset "$preset" > "/dev/null"
fi
# Ninja prints its progress; a build with nothing to do says so in one line.
ninja -C "$dir" "$@"
mkdir -p bin
ln -sfn "../$dir/bin/pith" bin/pith
if [ -x "$dir/bin/pith-train" ]; then ln -sfn "../$dir/bin/pith-train" bin/pith-train; fi
