#!/usr/bin/env bash
# A reasoning adapter, budget-forced, with switcher and verifier, for qwen2.5-coder-0.5b: recipes/qwen2.5-coder/make.sh
#   --data DIR   public data sets (default: PITH_DATA)    --out DIR   where everything goes (default: build/qwen2.5-coder)
#   --scale S    the share of problems and of steps of GRPO that is used (default: 1); of one run, always the same
#   --tiny       a hundredth of everything and a few steps, to see that the stages fit together
#   --until NAME stop after a stage: data, distill, sft, grpo, verifier, switcher, ship, unmasked, evaluate
# Run it again after a stop: finished stages are skipped, the stage under way goes on where it was.
# Needs the program with training: scripts/setup.sh train && scripts/build.sh full, or PITH=.../pith. THREADS: of every stage.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

tiny=false
scale=1
out=
until=
data=${PITH_DATA:-}
while [ $# -gt 0 ]; do
  case "$1" in
    --tiny) tiny=true ;;
    --scale) scale=$2; shift ;;
    --out) out=$2; shift ;;
    --data) data=$2; shift ;;
    --until) until=$2; shift ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
case "$until" in
  "" | data | distill | sft | grpo | verifier | switcher | ship | unmasked | evaluate) ;;
  *) echo "qwen2.5-coder: --until $until is no stage" >&2; exit 2 ;;
esac
if [ -z "$data" ]; then echo "qwen2.5-coder: --data or PITH_DATA must name the folder of data sets" >&2; exit 2; fi
data=$(cd "$data" && pwd)
if [ -z "$out" ]; then out=$root/build/qwen2.5-coder; if $tiny; then out+=-tiny; fi; fi
pith=$(realpath "${PITH:-$root/bin/pith}")
threads=${THREADS:-$(nproc)}
student=${STUDENT:-qwen2.5-coder-0.5b}
teacher=${TEACHER:-qwen2.5-coder-1.5b}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$out"

# part N: the share of N.
part() { awk -v n="$1" -v s="$scale" 'BEGIN { k = int(n * s + 0.5); print k < 2 ? 2 : k }'; }
pick() { if $tiny; then echo "$2"; else echo "$1"; fi; }
# stage NAME FILE COMMAND...: skipped when FILE is there, which the command writes last.
stage() {
  local name=$1 file=$2
  shift 2
  if [ -e "$file" ]; then
    echo "qwen2.5-coder: $name: done"
  else
    echo "qwen2.5-coder: $name"
    local begin=$SECONDS
    "$@"
    if [ ! -e "$file" ]; then echo "qwen2.5-coder: $name did not write $out/$file" >&2; exit 1; fi
    echo "$name $((SECONDS - begin))" >> seconds.txt
  fi
  if [ "$name" = "$until" ]; then exit 0; fi
}

prepare() {
  rm -rf data.part
  python3 "$here/prepare.py" "$data" data.part --scale "$(pick 1 0.005)"
  mv data.part data
}
# The teacher samples with 8-bit activations: what is kept is graded anyway.
distill() {
  "$pith" distill -m "$teacher" --activations a8 --data data/distill.jsonl --limit "$(part 1200)" --samples 3 --keep 2 --style both --temp 0.7 \
    --budget 400 --prompt boxed --row-prompt boxed,plain --threads "$threads" --out traces.part --work distill.run
  mv traces.part traces.jsonl
}
# train_sft NAME EXTRA...
train_sft() {
  local name=$1
  shift
  "$pith" train sft -m "$student" --dataset traces.jsonl --eval-split "$(pick 0.03 0)" --max-length 1024 --lora-r 16 \
    --per-device-train-batch-size 2 --gradient-accumulation-steps 2 --num-train-epochs 2 --learning-rate 2e-4 \
    --max-steps "$(pick -1 3)" --eval-steps "$(pick 40 0)" --save-steps "$(pick 10 1)" --seed 1 --threads "$threads" --resume --output-dir "$name" "$@"
  cp "$here/pith_reasoning.json" "$name/"
}
# Fewer steps are larger ones: 5e-5 for 150 of them, four times that at most.
grpo_rate() { awk -v s="$scale" 'BEGIN { r = 5e-5 / s; print (r > 2e-4 ? 2e-4 : r) }'; }
train_grpo() {
  "$pith" train grpo -m "$student" --adapter sft --dataset data/grpo.jsonl --prompt boxed --budgets 100,200,300,400 \
    --budget-window 0.25 --num-generations 8 --per-device-train-batch-size 4 --gradient-accumulation-steps "$(pick 8 4)" \
    --max-completion-length "$(pick 520 60)" --cap-at-window --max-steps "$(pick "$(part 150)" 2)" --learning-rate "$(grpo_rate)" --beta 1e-3 --temperature 0.8 \
    --save-steps "$(pick 5 1)" --seed 1 --threads "$threads" --resume --output-dir grpo
  cp "$here/pith_reasoning.json" grpo/
}
train_verifier() {
  "$pith" features -m "$student" --kind verifier --adapter grpo --reason on --input data/verifier.jsonl --limit "$(part 1000)" --prompt boxed --parallel 8 \
    --temp 0.8 --budget 400 --threads "$threads" --out features-verifier
  if ! "$pith" train verifier --features features-verifier --seed 1 --out grpo; then
    # So few samples may have no right one.
    $tiny || exit 1
    echo "qwen2.5-coder: SKIPPED LOUDLY: no verifier, --tiny had no right response to learn from" >&2
  fi
  touch verifier.done
}
train_switcher() {
  local prompt
  for prompt in plain boxed; do
    "$pith" features -m "$student" --kind switcher --direct data/direct.jsonl --reasoned data/reasoned.jsonl --limit "$(part 600)" --prompt "$prompt" \
      --threads "$threads" --out "features-switcher-$prompt"
  done
  "$pith" train switcher --features features-switcher-plain features-switcher-boxed --seed 1 --out grpo
  touch switcher.done
}
ship() {
  rm -rf ship.part
  "$pith" export peft --type int8 "$student" grpo ship.part
  mv ship.part ship
}
# evaluate NAME SUITE ARGUMENTS...
evaluate() {
  local name=$1 suite=$2
  shift 2
  # Where it was complete this takes a moment; where it was stopped it goes on.
  "$pith" eval "$suite" --data "$data" -m "$student" --threads "$threads" --out "eval/$name" "$@"
}
evaluate_all() {
  local n
  n=$(pick 300 2)
  evaluate base gsm8k --limit "$n" --temp 0 --budget 100,200,300,400,640 --reason off
  evaluate sft gsm8k --limit "$n" --temp 0 --budget 100,200,300,400,640 --adapter sft --reason on
  evaluate unmasked gsm8k --limit "$n" --temp 0 --budget 640 --adapter unmasked --reason on
  evaluate unmasked-everywhere gsm8k --limit "$n" --temp 0 --budget 640 --adapter unmasked --reason on --no-mask-prompt-adapter
  evaluate grpo gsm8k --limit "$n" --temp 0 --budget 100,200,300,400,640 --adapter ship --reason on
  evaluate votes gsm8k --limit "$n" --temp 0.7 --top-p 1 --parallel 8 --budget 400 --adapter ship --reason on
  evaluate base-math math500 --limit "$(pick 100 2)" --temp 0 --budget 640 --reason off
  evaluate sft-math math500 --limit "$(pick 100 2)" --temp 0 --budget 640 --adapter sft --reason on
  evaluate grpo-math math500 --limit "$(pick 100 2)" --temp 0 --budget 640 --adapter ship --reason on
  touch eval/all
}

stage data data prepare
stage distill traces.jsonl distill
stage sft sft/pith_reasoning.json train_sft sft
stage grpo grpo/pith_reasoning.json train_grpo
stage verifier verifier.done train_verifier
stage switcher switcher.done train_switcher
stage ship ship ship
stage unmasked unmasked/pith_reasoning.json train_sft unmasked --no-mask-prompt-adapter
stage evaluate eval/all evaluate_all
