package collective

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/internal/choice"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/collective/tuning"
)

// TestChoices: the library's tables choose as docs/guides/tuning.md says.
func TestChoices(t *testing.T) {
	const most = 1 << 40
	for _, tc := range []struct {
		profile string
		ranks   int
		kind    Collective
		windows Windows
		want    string
	}{
		{"h200-nvswitch", 2, AllReduce, 0, "[{1099511627776 all-reduce/one-shot}]"},
		{
			"h200-nvswitch", 4, AllReduce, 0, "[{262144 all-reduce/one-shot} {33554432 all-reduce/two-shot} " +
				"{34359738368 all-reduce/push-push} {1099511627776 all-reduce/two-shot}]",
		},
		{
			"h200-nvswitch", 8, AllReduce, 0, "[{65536 all-reduce/one-shot} {33554432 all-reduce/two-shot} " +
				"{34359738368 all-reduce/push-push} {1099511627776 all-reduce/two-shot}]",
		},
		{
			"h200-nvswitch", 2, AllReduce, Inputs | Outputs,
			"[{67108864 all-reduce/one-shot} {34359738368 all-reduce/push-push} {1099511627776 all-reduce/one-shot}]",
		},
		{
			"h200-nvswitch", 8, AllReduce, Inputs | Outputs,
			"[{65536 all-reduce/one-shot} {8388608 all-reduce/two-shot} {33554432 all-reduce/direct} " +
				"{34359738368 all-reduce/push-push} {1099511627776 all-reduce/two-shot}]",
		},
		{"h100-nvswitch", 4, AllToAll, 0, "[{1099511627776 all-to-all/flagged}]"},
		{
			"h200-nvswitch", 4, AllToAll, Outputs,
			"[{4194304 all-to-all/flagged} {137438953472 all-to-all/direct} {1099511627776 all-to-all/flagged}]",
		},
		{"h200-nvswitch", 4, AllToAll, Outputs | InPlace, "[{1099511627776 all-to-all/flagged}]"},
		{tuning.SharedMemory, 2, Broadcast, 0, "[{65536 broadcast/eager} {1099511627776 broadcast/pipeline}]"},
	} {
		q := Request{Collective: tc.kind, DType: weft.BFloat16, Ranks: tc.ranks, Windows: tc.windows}
		got := Choices(tc.profile != tuning.SharedMemory, Options{}, tuning.Builtin(tc.profile), q)
		if diff := cmp.Diff(tc.want, fmt.Sprint(got)); diff != "" || got[len(got)-1].Most != most {
			t.Errorf("%v on %d ranks, %v, -want +got:\n%s", tc.kind, tc.ranks, tc.windows, diff)
		}
	}
}

// TestChoiceIsPure: with the library's algorithms and tables too, what was asked before plays no part.
func TestChoiceIsPure(t *testing.T) {
	lists := map[bool][]*spec.Algorithm{}
	for onGPUs, all := range map[bool][]Algorithm{false: Algorithms(), true: GPUAlgorithms()} {
		for i := range all {
			lists[onGPUs] = append(lists[onGPUs], &all[i])
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		profile := rapid.SampledFrom([]string{tuning.SharedMemory, "h200-nvswitch", "x-shared"}).Draw(t, "profile")
		list, m := lists[profile != tuning.SharedMemory], tuning.Builtin(profile).Model()
		old := choice.New(list, nil, m)
		for range rapid.IntRange(1, 50).Draw(t, "requests") {
			q := Request{
				Collective: Collective(rapid.IntRange(0, int(spec.Collectives)-1).Draw(t, "collective")),
				DType:      weft.DType(rapid.IntRange(1, int(weft.Bool)).Draw(t, "type")),
				Op:         weft.Op(rapid.IntRange(0, int(weft.PreMulSum)).Draw(t, "op")),
				Windows:    Windows(rapid.IntRange(0, 15).Draw(t, "windows")),
				Ranks:      rapid.IntRange(1, 72).Draw(t, "ranks"), Slot: 1 << 20,
			}
			if q.Collective != Barrier {
				q.SetSent(rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(0, 1<<40)).Draw(t, "sent"))
			}
			fresh := choice.New(list, nil, m)
			for step, both := range [][2]int{
				{old.AtOnce(&q), fresh.AtOnce(&q)}, {old.AfterExchange(&q), fresh.AfterExchange(&q)},
			} {
				if both[0] != both[1] || both[0] >= 0 && !list[both[0]].Fits(stepped(q, step)) {
					t.Fatalf("%+v, step %d: algorithms %v", q, step, both)
				}
			}
			if old.AfterExchange(&q) < 0 && q.Collective != Barrier {
				t.Fatalf("%+v: nothing is chosen", q)
			}
		}
	})
}

// stepped is the request for which an algorithm must fit: before the exchange no window is known.
func stepped(q Request, step int) Request {
	if step == 0 {
		q.Windows = 0
	}
	return q
}

// TestEveryAlgorithmCosts: all of the library's can be chosen by cost, in every profile, but for those that have
// none and must be named.
func TestEveryAlgorithmCosts(t *testing.T) {
	for _, profile := range []string{tuning.SharedMemory, "h200-nvswitch", "h100-nvswitch", "x-shared", "x-peers"} {
		all := GPUAlgorithms()
		if profile == tuning.SharedMemory {
			all = Algorithms()
		}
		m := tuning.Builtin(profile).Model()
		for _, a := range all {
			if a.Cost == nil {
				continue
			}
			measured := slices.ContainsFunc(m.Measured, func(r spec.Measured) bool { return r.Algorithm == a.Name })
			last := 0.0
			for n := 0; n < 1<<32; n = 2*n + 1 {
				q := spec.Request{Collective: a.Collective, DType: weft.Float32, Ranks: 4, Slot: 1 << 24}
				q.SetSent(n)
				us, known := a.Estimate(&q, m)
				if !known || !(us > 0) || us < last && !measured { // measured times vary
					t.Fatalf("%s, %s of %d bytes: %v us, %t, after %v", profile, a.Name, n, us, known, last)
				}
				last = us
			}
		}
	}
}

// TestCaps: how much a launch takes follows from the memory and the number of ranks.
func TestCaps(t *testing.T) {
	for _, tc := range []struct {
		dtype          weft.DType
		staging, ranks int
		want           [3]int
	}{
		{weft.BFloat16, 0, 2, [3]int{11184768, 11184640, 11184768}},
		{weft.BFloat16, 0, 4, [3]int{5592320, 11184640, 5592320}},
		{weft.BFloat16, 0, 8, [3]int{2796160, 11184128, 2796160}},
		{weft.Int32, 0, 8, [3]int{1398080, 5592064, 1398080}},
		{weft.Float64, 3 << 20, 4, [3]int{262144, 524288, 262144}},
	} {
		one, two, part := GPUCaps(tc.dtype, Options{Staging: tc.staging}, tc.ranks)
		if got := [3]int{one, two, part}; got != tc.want {
			t.Errorf("%v, %d bytes, %d ranks: %v, want %v", tc.dtype, tc.staging, tc.ranks, got, tc.want)
		}
	}
}

// TestSelectorsOfTheHost: a selector chooses among all algorithms that fit, for calls with a norm and words as well,
// and knows how much ranks send.
func TestSelectorsOfTheHost(t *testing.T) {
	const ranks, n = 3, 8
	j := newJob(t, ranks)
	var asked atomic.Pointer[Request]
	groups := j.group(t, Options{Select: func(q Request, fit []Algorithm) string {
		asked.Store(&q)
		if len(fit) == 0 {
			return "nothing fits"
		}
		return fit[len(fit)-1].Name
	}})
	counts := Counts{Send: []int{0, 1, n}}
	for _, tc := range []struct {
		call func(me int) Call
		sent int
	}{
		{func(int) Call {
			x := make([]float32, 2*n)
			return Call{
				Collective: AllReduce, In: weft.TensorOf(x), Out: weft.TensorOf(x),
				Norm: &Norm{Gamma: weft.TensorOf(make([]float32, n))},
			}
		}, 4 * 2 * n},
		{func(me int) Call {
			x := make([]float32, ranks*n)
			return Call{
				Collective: AllGather, In: weft.TensorOf(x[me*n:][:n]), Out: weft.TensorOf(x),
				Words: Words{Progress: weft.TensorOf(make([]uint64, ranks))},
			}
		}, 4 * n},
		{func(me int) Call {
			return Call{
				Collective: ReduceScatterV, Counts: counts, In: weft.TensorOf(make([]float32, n+1)),
				Out: weft.TensorOf(make([]float32, counts.Send[me])),
			}
		}, 4 * (n + 1)},
	} {
		var requests [ranks]Request
		for r := range ranks { // one after the other: what a selector is asked needs no other rank
			c := tc.call(r)
			if err := groups[r].check(&c); err != nil {
				t.Fatal(err)
			}
			name, err := groups[r].selected(&c)
			if err != nil || name != c.Collective.String()+"/pipeline" && name != "all-reduce/two-shot" {
				t.Errorf("%v: rank %d selects %q, %v", &c, r, name, err)
			}
			requests[r] = *asked.Load()
		}
		if requests[0] != requests[1] || requests[0] != requests[2] || requests[0].Sent != tc.sent {
			t.Errorf("ranks choose by %+v, want %d bytes", requests, tc.sent)
		}
		j.must(t, func(ctx context.Context, r int) error { return groups[r].Do(ctx, nil, tc.call(r)) })
	}
}
