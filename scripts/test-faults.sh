#!/bin/sh
# Stops and kills ranks at random moments: RUNS jobs (500), at moments that SEED gives. What fails
# runs alone again with FAULT=its number and the same SEED.
set -eu
. "$(dirname "$0")/env.sh"

seed=${SEED:-$(date +%s)}
printf 'RUNS=%s SEED=%s\n' "${RUNS:-500}" "$seed"
# Jobs mostly wait.
exec go test -count 1 -timeout 45m -parallel 6 -run TestFaults ./internal/eptest/faults -faults.runs="${RUNS:-500}" -faults.seed="$seed" -faults.only="${FAULT:--1}"
