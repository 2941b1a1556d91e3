package spec

// Algorithm is one way to run a collective, as callers see it. Each stands in a file of an engine's
// own, and is listed there.
type Algorithm struct {
	// Name is unique among all algorithms of an engine: "all-reduce/pipeline".
	Name       string
	Collective Collective

	// Supports says whether the algorithm can do what is asked. Like the choice itself it depends on
	// the request alone.
	Supports func(Request) bool

	// Eager algorithms on the host send their data in the round that opens the operation, before any
	// rank knows where the others' operands lie.
	Eager bool
}
