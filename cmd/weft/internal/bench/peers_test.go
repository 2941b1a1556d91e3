package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/bench/collective"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// python puts a shell script in Python's place.
func python(t *testing.T, script string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEFT_PYTHON", file)
}

func TestPeersAreRead(t *testing.T) {
	python(t, `[ "$1" = -c ] && exit 0
echo talk
[ "$NCCL_NVLS_ENABLE$TORCH_SYMM_MEM_DISABLE_MULTICAST" = 01 ] && [ -f "$6" ] && [ $7 = exchange ] || exit 3
echo '{"contract": "'$5'", "op": "all-to-all", "wire_bytes": '$8', "p50_us": 8.5, "ranks": 2, "verified": true}'
echo '{"contract": "other", "skipped": "because"}'
`)
	got := MeasurePeers(t.Context(), 2, []int64{4096, 1})
	if len(got) != 2 || got[0].Contract != "2" || got[0].WireBytes != 4096 || got[0].P50 != 8.5 ||
		got[0].Engine != "peer" || !*got[0].Verified ||
		got[1].Skipped != "because" || got[1].Op != "all-to-all" {
		t.Errorf("%+v", got)
	}
}

func TestCollectivePeers(t *testing.T) {
	python(t, `[ "$1" = -c ] && exit 0
[ "$7 $8 $9 ${10} ${11} ${12}" = "alltoall bf16 sum graph 64 4096" ] || exit 3
echo '{"contract": "NCCL all_to_all_single", "bytes": 4096, "p50_us": 8, "p99_us": 9, "verified": true}'
echo '{"contract": "NCCL all_to_all_single", "bytes": 12, "p50_us": 8}'
`)
	var rows []measure.Record
	for _, n := range []int64{64, 4096} {
		rows = append(rows, measure.Record{
			Op: "alltoall", Engine: "gpu", Ranks: 2, DType: "bf16", Mode: "graph", GPU: &measure.GPU{GPUs: 2},
			Collective: &measure.Collective{Bytes: n, Bus: 0.5, Algorithm: "all-to-all/flagged"},
		})
	}
	s := collective.Sweep{Kind: "alltoall", DType: "bf16", Op: "sum"}
	got, err := MeasureCollectivePeers(t.Context(), 2, true, s, rows)
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if r := got[0]; r.Engine != "nccl" || r.Bytes != 4096 || r.UsP50 != 8 || r.P99 != 9 || r.AlgBW != 0.512 ||
		r.BusBW != 0.256 || !r.Verified || r.Algorithm != "NCCL all_to_all_single" || r.Ranks != 2 {
		t.Errorf("%+v %+v", r, r.Collective)
	}
	if rows[1].Algorithm != "all-to-all/flagged" {
		t.Error("our row has changed")
	}
	for i := range rows {
		rows[i].GPU = nil
	}
	python(t, `[ "$1" = -c ] && exit 0
[ "$5 $7 $8 $9 ${10} ${11} ${12}" = "2 alltoall bf16 sum host 64 4096" ] || exit 3
echo '{"contract": "Gloo all_to_all_single", "bytes": 64, "p50_us": 8, "p99_us": 9, "verified": true}'
`)
	rows[0].SetCeiling(4)
	got, err = MeasureHostPeers(t.Context(), s, rows)
	if err != nil || len(got) != 1 || got[0].Engine != "gloo" || got[0].Bytes != 64 || got[0].Floor != 0.008 ||
		got[0].FloorRatio != 0.001 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := MeasureHostPeers(t.Context(), s, nil); err == nil || !strings.Contains(err.Error(), "there is one") {
		t.Error(err)
	}
	for gpus, want := range map[int]string{1: "there is one", 3: "one rank on each GPU"} {
		if _, err := MeasureCollectivePeers(t.Context(), gpus, true, s, rows); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%d GPUs: %v", gpus, err)
		}
	}
	python(t, `[ "$1" = -c ] || echo '{"contract": "alltoall", "skipped": "because"}'`)
	if _, err := MeasureCollectivePeers(t.Context(), 2, true, s, rows); err == nil || err.Error() != "because" {
		t.Error(err)
	}
}

func TestPeersAreSkippedByName(t *testing.T) {
	check := func(gpus int, want string) {
		t.Helper()
		got := MeasurePeers(t.Context(), gpus, []int64{64})
		if len(got) != len(measuredPeers) {
			t.Fatalf("%+v", got)
		}
		for i, p := range got {
			if p.Contract != measuredPeers[i] || !strings.Contains(p.Skipped, want) {
				t.Errorf("%+v, want %q", p, want)
			}
		}
	}
	check(1, "there is one")
	t.Setenv("WEFT_PYTHON", "/nowhere/python")
	check(2, "/nowhere/python")
	python(t, "exit 1")
	check(2, "has no PyTorch")
	python(t, "[ \"$1\" = -c ] || { echo first >&2; echo the reason >&2; exit 1; }")
	check(2, "the reason")
	python(t, "[ \"$1\" = -c ] || echo '{broken'")
	check(2, "{broken")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	begun := filepath.Join(t.TempDir(), "begun")
	python(t, "[ \"$1\" = -c ] || { : >"+begun+"; exec sleep 600; }")
	go func() {
		for {
			if _, err := os.Stat(begun); err == nil || ctx.Err() != nil {
				cancel(errors.New("a signal"))
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if got := MeasurePeers(ctx, 2, []int64{64}); len(got) == 0 || got[0].Skipped != "they were ended: a signal" {
		t.Errorf("ended on the way: %+v", got)
	}
	for _, name := range measuredPeers { // as the script calls them
		if !strings.Contains(string(peersScript), `"`+name+`"`) {
			t.Errorf("the script knows no %s", name)
		}
	}
}

func TestQuotedPeersSayWhereTheyAreFrom(t *testing.T) {
	for _, p := range slices.Concat(QuotedPeers(), QuotedThroughputPeers()) {
		if p.Date == "" || p.Source == "" || p.P50 <= 0 || p.Contract == "" || (p.Tokens > 0) == (p.WireBytes > 0) {
			t.Errorf("%+v", p)
		}
	}
}
