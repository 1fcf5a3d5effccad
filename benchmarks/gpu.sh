#!/usr/bin/env bash
# Everything to be known on a machine with a GPU, in about ten minutes; what has a result already is passed over.
#
#     benchmarks/gpu.sh                      results in benchmarks/results/gpu-*.json, output beside them in *.log
#     DEVICE=cpu SMALL=1 benchmarks/gpu.sh   the same in small on a CPU (results/small-cpu-*.json), to try the script
#
# OUT names another folder, LIMIT the seconds that one run may take. The exit code is 1 if a run failed.
set -uo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda} out=${OUT:-benchmarks/results} limit=${LIMIT:-150} failed=0
name=gpu
[ "$device" = cpu ] && name=cpu
[ -n "${SMALL:-}" ] && name=small-$name
PATH=$PWD/.venv/bin:$PATH
mkdir -p "$out"

# run WHAT COMMAND...: COMMAND writes the file of its result itself, or prints JSON as its last line.
run() {
  local file=$out/$name-$1.json log=$out/$name-$1.log
  [ -s "$file" ] && { echo "$1: there already"; return; }
  if timeout "$limit" "${@:2}" >"$log" 2>&1 && { [ -s "$file" ] || tail -n 1 "$log" >"$file"; } &&
    python -c 'import json, sys; json.load(open(sys.argv[1]))' "$file" 2>>"$log"; then
    echo "$1: $file"
  else
    rm -f "$file"
    failed=1
    echo "$1 failed: $log"
  fi
}

seconds=0.3 updates=20 turns=4 cores=() certified=() resumed=(rmc lstm concrete) steps=60000 pair=12800 small=() environment=()
torsos=(grid embedding atari-resnet) sizes=(32 256 1024) memories=(rmc lstm) update=(--repeats 20)
if [ -n "${SMALL:-}" ]; then
  seconds=0.01 updates=1 turns=1 cores=(lstm) certified=(--cores lstm) resumed=(lstm) steps=300 pair=300
  torsos=(grid) sizes=(4) memories=(lstm) update=(--repeats 1)
  small=(--unroll-length 4 --envs-per-update 4)
  environment=(--env-args path_lengths=1 num_distractors=0 max_steps=9)
fi

# One update: of every core and torso; recorded against eager; of more and more environments.
for torso in "${torsos[@]}"; do
  run update-$torso python benchmarks/update_time.py --device "$device" --torso $torso --cores "${cores[@]}" \
    "${update[@]}"
done
if [ "$device" != cpu ]; then
  run update-recorded python benchmarks/update_time.py --device "$device" --cuda-graph "${update[@]}"
fi
run update-sizes python benchmarks/update_time.py --device "$device" --cores "${memories[@]}" --envs "${sizes[@]}" \
  "${update[@]}"

# Acting with a stream of its own and without.
for stream in own shared; do
  [ "$device" = cpu ] && continue
  flags=()
  [ $stream = shared ] && flags=(--shared-stream)
  run acting-$stream python benchmarks/act_on.py --env boxworld --core lstm --device "$device" --act-on "$device" \
    --num-actors 2 --updates $updates --turns $turns "${flags[@]}"
done

# Two learners on a GPU each; it skips itself on a machine with one.
if [ "$device" = cpu ] || [ "$(python -c 'import torch; print(torch.cuda.device_count())')" -gt 1 ]; then
  run two-learners python benchmarks/on_device.py learners --device "$device" --cores lstm --steps $pair \
    "${small[@]}" "${environment[@]}"
fi

# The rest.
run cores python benchmarks/speed/cores.py "${cores[@]}" --device "$device" --threads 1 --batch-sizes 32 1024 --seconds $seconds \
  --json "$out/$name-cores.json"
for core in rmc lstm; do
  for kind in plain cuda-graph tf32; do
    flags=()
    [ $kind = cuda-graph ] && flags=(--cuda-graph)
    [ $kind = tf32 ] && flags=(--precision tf32)
    [ "$device" = cpu ] && [ $kind != plain ] && continue
    run boxworld-$core-$kind python benchmarks/act_on.py --env boxworld --core $core --device "$device" \
      --act-on "$device" --num-actors 2 --updates $updates --turns $turns "${small[@]}" "${flags[@]}"
  done
done
for together in on off; do
  [ -n "${SMALL:-}" ] && [ $together = off ] && continue
  run t-maze-population-$together python benchmarks/act_on.py --env t-maze --core concrete --device "$device" \
    --act-on "$device" --num-actors 2 --population 9 --pbt.together $together --updates 9 --turns $turns "${small[@]}"
done
run resume python benchmarks/on_device.py resume --device "$device" --cores "${resumed[@]}" --steps $steps \
  "${small[@]}" "${environment[@]}"
run certificate python benchmarks/on_device.py certificate --device "$device" "${certified[@]}"
exit $failed
