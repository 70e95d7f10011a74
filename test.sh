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

step "1/5 packages"
scripts/setup.sh "$(if $aarch64; then echo aarch64; else echo test; fi)"
scripts/setup.sh train

step "2/5 build (preset edge)"
scripts/build.sh edge

step "3/5 model smollm2-135m (98 MB; tests that need it are skipped loudly without it)"
if ! bin/pith pull smollm2-135m; then
  echo "test.sh: SKIPPED LOUDLY: smollm2-135m cannot be had here; the tests with a real model will not run" >&2
fi

excluded=()
if ! $large; then excluded+=(large); fi
if ! $aarch64; then excluded+=(aarch64); fi
if [ ${#excluded[@]} -gt 0 ]; then arguments+=(-LE "^($(IFS='|'; echo "${excluded[*]}"))$"); fi

# Training and quantization, where libtorch can be had; what both builds share comes out of the compiler cache.
failed=0
if dpkg-query -W -f='${db:Status-Status}' libtorch-dev libopenblas-openmp-dev 2> /dev/null | grep -q '^installedinstalled$'; then
  step "4/5 training: build (preset full) and its tests"
  scripts/build.sh full
  ctest --test-dir build/full --output-on-failure -j "$(nproc)" -L '^train$' || failed=1
else
  echo "test.sh: SKIPPED LOUDLY: libtorch cannot be had here; training and quantization are not built and not tested" >&2
fi

step "5/5 ctest"
ctest --test-dir build/edge --output-on-failure -j "$(nproc)" "${arguments[@]}" || failed=1
exit $failed
