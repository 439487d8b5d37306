#!/bin/bash
# `ringzero train --on-death shrink`: a rank is killed in mid-run; the others go on from the newest checkpoint, and from there on
# their losses, norms and ledger are those of a run that resumes it with so few ranks, bit for bit. Before the first checkpoint
# they begin anew; a shard group that no longer divides the ranks becomes all of them.
# ctest: timeout=120 labels=plain
set -u
. "$(dirname "$0")/harness/program.sh"
for ((i = 0; i < 400; i++)); do echo "line $i of a text to learn, $((i * i % 97)) and $((i * 7 % 31))"; done >"$work/text"
common=(--data "$work/text" --layers 2 --heads 2 --channels 32 --positions 32 --batch 4 --warmup 2 --validate-every 0 --steps 400)

# steps FILE: step, loss, learning rate and norm of each line.
steps() { grep -o '^{"step":[0-9]*,"loss":[^,]*,"lr":[^,]*,"norm":[^,]*' "$1"; }

# loses NAME RANKS LINES ARGUMENTS…: the last rank is killed when so many steps are done; the run ends well all the same.
loses() {
    local name=$1 ranks=$2 lines=$3 job victim
    shift 3
    mkdir "$work/$name"
    "$ringzero" train --ranks "$ranks" "${common[@]}" --on-death shrink --checkpoint "$work/$name" --json "$work/$name.json" "$@" >"$work/$name.out" 2>&1 &
    job=$!
    for ((i = 0; i < 6000; i++)); do
        [ "$(cat "$work/$name.json" 2>/dev/null | wc -l)" -ge "$lines" ] && break
        sleep 0.02
    done
    victim=$(awk '{print $NF}' "/proc/$job/task/$job/children")
    kill -9 "$victim"
    wait $job || fail "$name: exit code $?: $(cat "$work/$name.out")"
    grep -q '^# differs\|"ok":false' "$work/$name.out" "$work/$name.json" && fail "$name: the ledger is wrong: $(cat "$work/$name.out")"
    [ "$(tail -1 "$work/$name.json" | grep -c '"ledger"')" -eq 1 ] || fail "$name: no ledger: $(cat "$work/$name.out")"
}

# continues NAME RANKS COUNT ARGUMENTS…: its last COUNT steps are those of a run with so many ranks.
continues() {
    local name=$1 ranks=$2 count=$3
    shift 3
    run train --ranks "$ranks" "${common[@]}" --json "$work/reference.json" "$@"
    [ "$(steps "$work/reference.json" | wc -l)" -eq "$count" ] || fail "$name: the reference has not $count steps"
    steps "$work/$name.json" | tail -"$count" | cmp -s - <(steps "$work/reference.json") ||
        fail "$name: other steps than a run with $ranks ranks: $(diff <(steps "$work/$name.json" | tail -"$count") <(steps "$work/reference.json") | head -4)"
    [ "$(tail -1 "$work/$name.json" | sed 's/"steps"[^}]*//')" = "$(tail -1 "$work/reference.json" | sed 's/"steps"[^}]*//')" ] ||
        fail "$name: another ledger than a run with $ranks ranks: $(tail -qn 1 "$work/$name.json" "$work/reference.json")"
}

for stage in 0 3; do
    loses "stage$stage" 3 202 --stage $stage --checkpoint-every 200
    grep -qx '# 2 ranks from here on, from the checkpoint of step 200' "$work/stage$stage.out" ||
        fail "stage $stage: does not say where it goes on: $(cat "$work/stage$stage.out")"
    continues "stage$stage" 2 200 --stage $stage --resume "$work/stage$stage/step-00000200"
done

loses early 3 3 --stage 2 --checkpoint-every 400
grep -qx '# 2 ranks from here on, from the start: there is no checkpoint yet' "$work/early.out" || fail "early: $(cat "$work/early.out")"
continues early 2 400 --stage 2

loses groups 4 202 --stage 2 --shard-group 2 --checkpoint-every 200
grep -qx '# 3 ranks from here on, all in one shard group, from the checkpoint of step 200' "$work/groups.out" || fail "groups: $(cat "$work/groups.out")"
continues groups 3 200 --stage 2 --resume "$work/groups/step-00000200"

refused '--on-death is shrink, expected --checkpoint DIR and --checkpoint-every N with it' train --data "$work/text" --on-death shrink --checkpoint "$work/none"
refused '--on-death is "pray", expected end or shrink' train --data "$work/text" --on-death pray
exit $failed
