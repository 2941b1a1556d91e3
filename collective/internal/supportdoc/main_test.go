package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/collective/spec"
)

// TestPageIsCurrent compares docs/guides/collectives-support.md with what the rules say now.
func TestPageIsCurrent(t *testing.T) {
	got, err := os.ReadFile("../../../docs/guides/collectives-support.md")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	if d := cmp.Diff(page(), string(got)); d != "" {
		t.Errorf("docs/guides/collectives-support.md is not what the rules say; run make generate (-want +got):\n%s", d)
	}
}

// TestPageIsTrue makes every reduction that the page names on the host: it is taken exactly if the page says so,
// and else refused in the page's words.
func TestPageIsTrue(t *testing.T) {
	comm, err := weft.Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer comm.Close()
	g, err := collective.New(t.Context(), comm, collective.Options{Scratch: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var because notes
	calls, refusals := 0, 0
	for k := range spec.Collectives {
		for dtype := weft.BFloat16; k.Reduces() && dtype.Size() > 0; dtype++ {
			for op := weft.Sum; op.Valid(); op++ {
				n := 3 * dtype.Size()
				raw := make([]byte, 3*n)
				of := func(from, n, elems int, dtype weft.DType) weft.Tensor {
					x := weft.TensorOf(raw[from : from+n])
					x.DType, x.Shape = dtype, []int{elems}
					return x
				}
				call := collective.Call{Collective: k, Op: op, In: of(0, n, 3, dtype), Out: of(n, n, 3, dtype)}
				call.Counts.Send = []int{3}
				if op == weft.PreMulSum {
					scalar := spec.ScalarType(dtype)
					call.Scalar = weft.TensorOf(make([]byte, 8))
					call.Scalar.DType, call.Scalar.Shape = scalar, []int{1}
				}
				says, err := reduction(&because, op, dtype), g.Do(t.Context(), nil, call)
				calls++
				if (err == nil) != (says == "yes") {
					t.Errorf("%v, %v of %v: %v, and the page says %q", k, op, dtype, err, says)
				}
				if err != nil {
					refusals++
					why := because[says[len("refused (")]-'1']
					if !errors.Is(err, weft.ErrUnsupported) || !strings.HasSuffix(err.Error(), why) {
						t.Errorf("%v, %v of %v: %v; the page says %q", k, op, dtype, err, why)
					}
				}
			}
		}
	}
	if calls != 4*16*6 || refusals != 4*(6+2) {
		t.Errorf("%d calls, %d of them refused", calls, refusals)
	}
}
