package bench

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
[ "$NCCL_NVLS_ENABLE$TORCH_SYMM_MEM_DISABLE_MULTICAST" = 01 ] && [ -f "$6" ] || exit 3
echo '{"contract": "'$5'", "op": "all-to-all", "wire_bytes": '$7', "p50_us": 8.5, "ranks": 2, "verified": true}'
echo '{"contract": "other", "skipped": "because"}'
`)
	got := MeasurePeers(t.Context(), 2, []int64{4096, 1})
	if len(got) != 2 || got[0].Contract != "2" || got[0].WireBytes != 4096 || got[0].P50 != 8.5 ||
		got[0].Engine != "peer" || !*got[0].Verified ||
		got[1].Skipped != "because" || got[1].Op != "all-to-all" {
		t.Errorf("%+v", got)
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
