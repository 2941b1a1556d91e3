#!/bin/sh
# Four ranks on this machine train a small mixture-of-experts model, then the exchange they used is
# measured.
set -eu
. "$(dirname "$0")/env.sh"

sh scripts/build.sh weft moe

printf '\nTraining a mixture-of-experts model: 4 ranks, experts spread over them.\n'
GOROOT=$(go env GOROOT) "$build/weft" run -n 4 "$build/moe" # which trains on the standard library's source

printf '\nMeasuring the exchange: 4 ranks, results verified in the same run.\n'
"$build/weft" bench ep --ranks 2,4 --tokens 1,8,64,512 --report "$build/report.html"

printf '\nThe report, with plots: %s\n' "$build/report.html"
