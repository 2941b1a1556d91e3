package weft_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/ep"
)

// layer sends a token to experts 1 and 2, wherever they live, and returns the weighted sum of what
// they make of it.
func layer(ctx context.Context, options ...weft.Option) ([]float32, error) {
	comm, err := weft.Join(ctx, options...) // this rank and its peers, from weft run, torchrun, Slurm, MPI or Kubernetes
	if err != nil {
		return nil, err
	}
	defer comm.Close()
	handle, err := ep.NewHandle(ctx, comm, ep.Spec{Experts: 4, TopK: 2, Hidden: 4, MaxTokens: 1, Payload: ep.FP32})
	if err != nil {
		return nil, err
	}
	routing, err := handle.Prepare(ctx, nil, weft.TensorOf([]int32{1, 2}, 1, 2),
		weft.TensorOf([]float32{0.75, 0.25}, 1, 2))
	if err != nil {
		return nil, err
	}
	received, err := handle.Dispatch(ctx, nil, ep.DispatchArgs{
		Routing: routing, Rows: ep.Rows{Data: weft.TensorOf([]float32{1, 2, 3, 4}, 1, 4)},
	})
	if err != nil {
		return nil, err
	}
	experts(comm.Rank(), received.Data) // [experts of this rank, rows of an expert, hidden], in place
	out := make([]float32, 4)
	return out, handle.Combine(ctx, nil, ep.CombineArgs{
		Routing: routing, Rows: received.Data, Out: weft.TensorOf(out, 1, 4),
	})
}

// experts stands for matrix products: expert e multiplies its rows by e.
func experts(rank int, rows weft.Tensor) {
	local, all := rows.Shape[0], weft.SliceOf[float32](rows)
	for i := range all {
		all[i] *= float32(rank*local + i*local/len(all))
	}
}

// Two ranks with two experts each. Here they are goroutines; as processes they would leave the
// option out.
func Example() {
	meeting, err := bootstrap.NewInProcess(2)
	if err != nil {
		fmt.Println(err)
		return
	}
	var outs [2][]float32
	var errs [2]error
	var ranks sync.WaitGroup
	for r, b := range meeting {
		ranks.Go(func() { outs[r], errs[r] = layer(context.Background(), weft.WithBootstrap(b)) })
	}
	ranks.Wait()
	for r := range outs {
		fmt.Println("rank", r, outs[r], errs[r])
	}
	// Output:
	// rank 0 [1.25 2.5 3.75 5] <nil>
	// rank 1 [1.25 2.5 3.75 5] <nil>
}

// The example in the README is the one that compiles here.
func TestReadmeExample(t *testing.T) {
	if _, err := os.Stat("readme_test.go"); err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, rest, _ := strings.Cut(read("readme_test.go"), "// layer sends")
	code, _, _ := strings.Cut(rest, "\n}\n")
	if want := "```go\n// layer sends" + code + "\n}\n```\n"; !strings.Contains(read("README.md"), want) {
		t.Errorf("README.md does not show the example as it stands here:\n%s", want)
	}
}
