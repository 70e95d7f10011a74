#!/usr/bin/env bash
# Answers one question with the default model: ./run.sh [QUESTION].
# The first run installs missing packages, builds the program and fetches the model; later runs go straight to the answer.
set -euo pipefail
cd "$(dirname "$0")"

model=qwen2.5-coder-0.5b
question=${1:-"Natalia sold 48 hair clips in April, and half as many in May. How many did she sell in both months together? Reason step by step."}

step() { echo "run.sh: $*" >&2; }

step "1/4 packages"
scripts/setup.sh run >&2

step "2/4 build (preset edge)"
scripts/build.sh edge pith >&2

step "3/4 model $model"
bin/pith pull "$model" >&2

step "4/4 answer"
# Not exec: "since the program starts" is to mean the program, not this script.
bin/pith ask -m "$model" --stats "$question"
