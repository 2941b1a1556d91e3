// Package plan has communication plans: programs for every block of every rank that together are a collective.
// A plan is written with [New], read with [Load], and proved right with [Verify] before it runs.
//
// A plan's blocks run at the same time. They meet at channels, by [Block.Signal] and [Block.Wait], or send packets,
// which carry flags beside the data and need neither. Each block has many threads, and the builder places the
// barriers among them, so that a program says only what ranks must know of each other.
//
// A file is the JSON of MSCCL++'s plans, and runs there too; see package spec.
//
//	p := plan.New("ring", plan.AllGather(4, 1), plan.Options{})
//	... channels, blocks and their operations; see the example ...
//	file, err := p.Build()
//	for _, finding := range plan.Verify(file).Findings { ... }
package plan
