package plan_test

import (
	"fmt"

	"github.com/weftgo/weft/plan"
)

// twoShot is an all-reduce in place: every rank reduces its chunk of all inputs, and gives it to the others.
func twoShot(ranks int) *plan.Plan {
	p := plan.New("two-shot", plan.AllReduce(ranks, 1), plan.Options{InPlace: true})
	for r := range ranks {
		b := p.Rank(r).Block(0)
		own := p.Rank(r).Input().Chunk(r, 1)
		var peers []*plan.Channel
		var theirs []plan.Chunk
		for i := 1; i < ranks; i++ {
			peer := (r + i) % ranks
			peers = append(peers, p.Memory(r, peer))
			theirs = append(theirs, p.Rank(peer).Input().Chunk(r, 1))
		}
		b.RelaxedSignal(peers...) // this rank has begun, and its input is there
		b.RelaxedWait(peers...)
		b.Reduce(own, append([]plan.Chunk{own}, theirs...)...)
		for i, c := range peers {
			b.Put(c, theirs[i], own)
		}
		b.Signal(peers...)
		b.Wait(peers...)
	}
	return p
}

func Example() {
	file, err := twoShot(8).Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	verdict := plan.Verify(file)
	fmt.Println(verdict.Errors(), "errors,", len(verdict.Findings), "findings")
	for _, op := range file.Ranks[0].Blocks[0].Ops {
		fmt.Print(op.Kind, " ")
	}
	// Output:
	// 0 errors, 0 findings
	// rlxsignal rlxwait nop rres nop signal wait
}
