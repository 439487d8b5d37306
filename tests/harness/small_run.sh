# small_run.sh: sourced after program.sh by tests that look into training: a text and a small model, run bare and looked at.
device=${RINGZERO_TEST_DEVICE:-host}
small="--layers 2 --heads 2 --channels 16 --positions 16 --batch 2 --steps 4 --warmup 2 --validate-every 0 --validate-batches 2 --device $device"
for ((i = 0; i < 300; i++)); do echo "the ring sends chunk $((i * 7 % 11)) to every rank"; done >"$work/text"

# train ARGUMENTS…: the small model on the text; all that it prints in $work/out.
train() { timeout 30 "$ringzero" train --data "$work/text" $small "$@" >"$work/out" 2>&1; }

numbers() { grep -oE '"(loss|norm|val_loss)":[-0-9.e+]+' "$1"; }

# same_numbers "LOOKING…" ARGUMENTS…: trains twice, the second time with the options that look; the figures, in $work/bare and
# $work/seen, have the same bits, and what is measured is what is predicted.
same_numbers() {
    local looking=($1)
    shift
    train "$@" --json "$work/bare" || fail "$*: $(cat "$work/out")"
    train "$@" --json "$work/seen" "${looking[@]}" || fail "$* ${looking[*]}: $(cat "$work/out")"
    [ -n "$(numbers "$work/bare")" ] || fail "$*: no losses"
    cmp -s <(numbers "$work/bare") <(numbers "$work/seen") || fail "$*: other bits with ${looking[*]}"
    grep -q "measured and predicted: OK" "$work/out" || fail "$*: $(cat "$work/out")"
}
