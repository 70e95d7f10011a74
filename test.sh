#!/usr/bin/env bash
# Builds everything and runs the tests: ./test.sh [--large] [--no-aarch64] [more arguments for ctest].
#   --large        also the tests that need the bigger models (label "large")
#   --no-aarch64   leave out the cross build that runs under qemu (label "aarch64")
# The output ends with ctest's own summary.
set -euo pipefail
cd "$(dirname "$0")"

large=false
aarch64=true
arguments=()
for argument in "$@"; do
  case "$argument" in
    --large) large=true ;;
    --no-aarch64) aarch64=false ;;
    *) arguments+=("$argument") ;;
  esac
done

step() { echo "test.sh: $*"; }

step "1/4 packages"
scripts/setup.sh "$(if $aarch64; then echo aarch64; else echo test; fi)"
scripts/setup.sh train

# With libtorch everything is built and tested; without it, all but training and quantization.
preset=full
if ! dpkg-query -W -f='${db:Status-Status}' libtorch-dev libopenblas-openmp-dev 2> /dev/null | grep -q '^installedinstalled$'; then
  preset=edge
  echo "test.sh: SKIPPED LOUDLY: libtorch cannot be had here; training and quantization are not built and not tested" >&2
fi

step "2/4 build (preset $preset)"
scripts/build.sh "$preset"

step "3/4 model smollm2-135m (98 MB; tests that need it are skipped loudly without it)"
if ! bin/pith pull smollm2-135m; then
  echo "test.sh: SKIPPED LOUDLY: smollm2-135m cannot be had here; the tests with a real model will not run" >&2
fi

excluded=()
if ! $large; then excluded+=(large); fi
if ! $aarch64; then excluded+=(aarch64); fi
if [ ${#excluded[@]} -gt 0 ]; then arguments+=(-LE "^($(IFS='|'; echo "${excluded[*]}"))$"); fi

step "4/4 ctest"
exec ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)" "${arguments[@]}"
