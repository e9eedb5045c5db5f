#!/usr/bin/env bash
# One call on a borrowed GPU: bash benchmarks/paper_scale.sh SECONDS QUEUE WORKERS, from a copy of the sources.
#
# Starts what is missing of WORKERS training processes under CUDA MPS. They outlast the call, so that the card works
# between two calls as well. Waits until SECONDS after its start, prints a table, and packs what is new into $OUT.
# QUEUE has to travel with every call: a machine that was given back in between comes anew, with nothing on it. What is
# home already must then not be in QUEUE, and the runs that others start from must be in the folder `runs` beside it.
set -u
began=$(date +%s)
place=${PLACE:-$HOME/paper_scale}
export PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
[ -f "$2" ] || { echo "there is no queue $2"; exit 1; }
if [ ! -d "$place" ]; then
    echo "a new machine: nothing is trained on it yet"
    mkdir -p "$place/runs"
    cp -r . "$place/code"
    [ -d runs ] && cp -r runs/. "$place/runs/"
    which nvidia-cuda-mps-control && setsid nvidia-cuda-mps-control -d
fi
cp "$2" "$place/queue"
cd "$place/code" || exit 1
train="python3 benchmarks/paper_scale.py train --queue $place/queue --runs $place/runs --minutes ${MINUTES:-28} --wait --beside $3"
for worker in $(seq "$3"); do
    log=$place/log.$worker
    [ -f "$log" ] && continue
    setsid bash -c "until $train ${OPTIONS:-}; do sleep 1; done" >"$log" 2>&1 &
done
while [ $(($(date +%s) - began)) -lt "$1" ]; do sleep 1; done
tail -n 5 "$place"/log.*
python3 benchmarks/paper_scale.py table --runs "$place/runs"
python3 benchmarks/paper_scale.py pack --runs "$place/runs" --out "$OUT" --unfinished
tar cf "$OUT/logs.tar" -C "$place" $(cd "$place" && ls log.*)
