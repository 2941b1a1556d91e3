package spec

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/weftgo/weft"
)

// Algorithm is one way to run a collective: an engine's own, which stands in a file of its own and is
// listed there, or a user's, which a group is made with. All ranks give a group the same ones.
type Algorithm struct {
	// Name is unique among all algorithms of a group: "all-reduce/pipeline".
	Name       string
	Collective Collective
	Variant    Variant

	// What the algorithm needs of a request. Zero values need nothing. All of it is the same on every rank,
	// so every rank finds the same algorithms fit.
	Needs              Windows      // operands that lie in windows; see [Request.Windows]
	MinBytes, MaxBytes int          // of [Request.Bytes]; a MaxBytes of 0 is no bound
	InPlace            Placement    // on GPUs all ranks of a call are in place then, or none: see PlacedAlike
	WorldSize          int          // ranks that take part
	RanksPerHost       int          // of them on each host
	DTypes             []weft.DType // one of them, if there are any
	Ops                []weft.Op    // the same, of reductions
	Supports           func(Request) bool
	Demands            string // what Supports wants of a call, in errors: "needs inputs in windows"

	// Cost is the time that a request is expected to take, in microseconds. Of all algorithms that fit, the one
	// that costs least runs. An algorithm without it runs only where a call or a group names it, or a selector
	// chooses it.
	Cost func(Request, *Model) float64

	// Tags are for selectors and reports. One has a meaning here: an algorithm with "opt-in", which says why, runs only
	// where a call or a group names it, or a selector chooses it, whatever it costs.
	Tags map[string]string

	// Kernel makes it a user's algorithm, on GPUs. Program makes it one of what is no kernel: a plan, say.
	Kernel  *Kernel
	Program Program

	// Prepare, of a user's algorithm, makes the context of a key: what its calls need beside the Kernel's memory.
	// All ranks call it at the same time, so it may make collective calls: the same ones on each, whatever fails
	// on one. A context with a method Close() error is
	// closed with the group. Without a Key there is one context, which is made with the group; else that of a
	// key is made in its first call, which cannot be captured. There are at most [MaxKeys], and they live as
	// long as the group does.
	Prepare func(ctx context.Context, env *Env) (any, error)
	// Key is the key of a call: the same text on every rank.
	Key func(*Call) string

	// Eager algorithms on the host send their data in the round that opens the operation, before any
	// rank knows where the others' operands lie.
	Eager bool
}

// Variant is what a call wants beside the collective, which takes algorithms of its own on GPUs.
type Variant uint8

// A call wants nothing more, or it has a Norm, or Words.
const (
	Plain Variant = iota
	WithNorm
	WithWords
)

const optIn = "opt-in"

// OptIn says whether the algorithm has the tag "opt-in": its results have other bits, say.
func (a *Algorithm) OptIn() bool { return a.Tags[optIn] != "" }

// Placement says whether an algorithm takes an output that is the input.
type Placement uint8

// An algorithm takes operands in any placement, or only outputs that are the input, or only others.
const (
	AnyPlace Placement = iota
	OnlyInPlace
	OnlyApart
)

// Fits says whether the algorithm can do what is asked.
func (a *Algorithm) Fits(q Request) bool { return a.misfit(&q) == "" }

// Misfit is the error of a call that names the algorithm, which does not fit.
func (a *Algorithm) Misfit(q Request) error {
	where := ""
	if q.Windows != 0 {
		where = fmt.Sprintf(", windows: %v", q.Windows)
	}
	return weft.Unsupportedf("%v: %s %s, and the call has %d bytes of %v on %d ranks%s; name another algorithm or none",
		q.Collective, a.Name, a.misfit(&q), q.Bytes, q.DType, q.Ranks, where)
}

// misfit says why the algorithm cannot do what is asked, or nothing.
func (a *Algorithm) misfit(q *Request) string {
	inPlace := q.Windows&InPlace != 0
	switch {
	case a.Collective != q.Collective:
		return "is for another collective"
	case a.Variant != q.Variant:
		return "is not for calls with a norm or words, or for those alone"
	case q.Windows&a.Needs != a.Needs:
		return fmt.Sprintf("needs %v in windows, on GPUs those of a symmetric call", a.Needs&^q.Windows)
	case q.Bytes < a.MinBytes:
		return "is for more bytes"
	case a.MaxBytes > 0 && q.Bytes > a.MaxBytes:
		return "is for fewer bytes"
	case a.InPlace == OnlyInPlace && !inPlace && q.Bytes > 0: // operands without bytes lie nowhere
		return "takes outputs that are inputs alone"
	case a.InPlace == OnlyApart && inPlace:
		return "takes no outputs that are inputs"
	case q.MixedPlace && a.Program != nil && a.Collective.PlacedAlike():
		return "takes outputs that are inputs on all ranks, or on none"
	case a.WorldSize > 0 && a.WorldSize != q.Ranks, a.RanksPerHost > 0 && a.RanksPerHost != q.Ranks:
		return "is for another number of ranks"
	case len(a.DTypes) > 0 && !slices.Contains(a.DTypes, q.DType):
		return "is for other types"
	case len(a.Ops) > 0 && q.Collective.Reduces() && !slices.Contains(a.Ops, q.Op):
		return "is for other operations"
	case a.Supports != nil && !a.Supports(*q):
		return cmp.Or(a.Demands, "refuses the call")
	}
	return ""
}

// Estimate is the time that a request is expected to take: what was measured on the machine, or else the
// algorithm's Cost. Without either it is not known.
func (a *Algorithm) Estimate(q *Request, m *Model) (us float64, known bool) {
	if row := m.measured(a.Name, q); row != nil {
		return row.at(q.Sent), true
	}
	if a.Cost == nil {
		return 0, false
	}
	return a.Cost(*q, m), true
}
