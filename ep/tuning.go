package ep

import (
	"fmt"

	"github.com/weftgo/weft"
)

// Tuning is how the kernels of a handle on GPUs go about moving rows. It decides how long they take and never what they give. What is zero, Weft chooses: from what
// [TuningTable] says of such a handle, or else from what was measured on the machines of docs/performance.md. Like the rest of a Spec it is the same on every rank.
type Tuning struct {
	Dispatch KernelTuning `json:"dispatch,omitzero"` // of rows that go through slots: expert-major and rank-major ones
	Combine  KernelTuning `json:"combine,omitzero"`  // of rows that are stored at their homes: all but token-major ones
}

// KernelTuning is how one kernel works. Zeros are Weft's choice.
type KernelTuning struct {
	// Protocol is how who receives knows that a row is there.
	Protocol Protocol `json:"protocol,omitempty"`
	// Units, of a dispatch, is how many pieces of 512 bytes of a row a warp moves at a time: 1, 2 or 4; 1 for rows quantised from fp32, at most 2 for others that are
	// quantised on the way.
	Units int `json:"units,omitempty"`
	// Senders is how many of 16 blocks send while the others receive, 1 to 15; -1: all do both. It is heeded where rows are their own flags.
	Senders int `json:"senders,omitempty"`
	// Threads is how many threads a block has: 64 to 512, a multiple of 32; at most 256 of a dispatch by values with one unit.
	Threads int `json:"threads,omitempty"`
	// Dependent says whether the next kernel may be placed while this one ends: 1, or -1 if not. GPUs before Hopper have no such launches.
	Dependent int `json:"dependent,omitempty"`
}

// Protocol is how who receives a row knows that it is there.
type Protocol uint8

const (
	// ChosenProtocol is Weft's choice.
	ChosenProtocol Protocol = iota
	// ValueProtocol: values are their own flags: who receives polls the rows themselves. Not for rows of any bits: opaque ones, and UE8M0 scales.
	ValueProtocol
	// FlagProtocol: a word tells of all rows of a block at once. Of rank-major rows received tensors then have to be released in the order in which they came: see
	// [Spec.Live].
	FlagProtocol
	protocols
)

var protocolNames = [protocols]string{"chosen", "values", "flags"}

func (p Protocol) String() string { return name(protocolNames[:], p) }

// ParseProtocol is the inverse of [Protocol.String].
func ParseProtocol(s string) (Protocol, error) {
	return parse[Protocol]("protocol", protocolNames[:], s)
}

// MarshalText gives the protocol's name.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText takes the protocol's name.
func (p *Protocol) UnmarshalText(b []byte) (err error) {
	*p, err = ParseProtocol(string(b))
	return err
}

// values says whether rows are their own flags, which they are by Weft's choice or not.
func (p Protocol) values(chosen bool) bool {
	if p == ChosenProtocol {
		return chosen
	}
	return p == ValueProtocol
}

// apply takes what was chosen.
func (k KernelTuning) apply(dependent *bool, senders, threads *int) {
	if k.Dependent != 0 {
		*dependent = k.Dependent > 0
	}
	if k.Senders != 0 {
		*senders = max(0, k.Senders)
	}
	if k.Threads != 0 {
		*threads = k.Threads
	}
}

// mostValueTokens bounds what slots whose rows are their own flags may take of memory and time: each is looked at and filled again in every operation.
const mostValueTokens = 4096

// validateTuning says what is wrong with the Tuning, if anything.
func (s Spec) validateTuning(e Engine, ranks int) error {
	if s.Tuning == (Tuning{}) {
		return nil
	}
	if e != GPUEngine {
		return weft.Unsupportedf("only kernels of GPUs are tuned; leave Tuning out")
	}
	for _, k := range []struct {
		what      string
		tuning    KernelTuning
		slots     bool
		mostUnits int
	}{
		{"Dispatch", s.Tuning.Dispatch, !s.placed(ranks), mostUnits(s)},
		{"Combine", s.Tuning.Combine, s.combines() && !(s.placed(ranks) && !s.Layout.byExpert()), 0},
	} {
		t := k.tuning
		if t == (KernelTuning{}) {
			continue
		}
		if !k.slots {
			return weft.Unsupportedf("this handle has no slots for what Tuning.%s is about; leave that out", k.what)
		}
		for _, f := range []struct {
			what string
			ok   bool
		}{
			{fmt.Sprintf("protocol %v", t.Protocol), t.Protocol < protocols},
			{fmt.Sprintf("%d units: want 1, 2 or 4, at most %d", t.Units, k.mostUnits), t.Units == 0 || t.Units <= k.mostUnits && (t.Units == 1 || t.Units == 2 || t.Units == 4)},
			{fmt.Sprintf("%d senders of 16: want 1 to 15, or -1 for none apart", t.Senders), t.Senders >= -1 && t.Senders <= 15},
			{fmt.Sprintf("%d threads: want 64 to 512, a multiple of 32", t.Threads), t.Threads == 0 || t.Threads >= 64 && t.Threads <= 512 && t.Threads%32 == 0},
			{fmt.Sprintf("dependent %d: want 1 or -1", t.Dependent), t.Dependent >= -1 && t.Dependent <= 1},
			{
				fmt.Sprintf("values for %d tokens: want flags from more than %d on", s.MaxTokens, mostValueTokens),
				t.Protocol != ValueProtocol || s.MaxTokens <= mostValueTokens,
			},
		} {
			if !f.ok {
				return weft.Invalidf("Tuning.%s: %s", k.what, f.what)
			}
		}
	}
	if s.Tuning.Dispatch.Protocol == ValueProtocol && s.anyBits() {
		return weft.Unsupportedf("opaque rows and UE8M0 scales may be any bits, so they cannot be their own flags; tune dispatch to flags")
	}
	if t := tune(s, ranks); !t.placed && t.valueDispatch && t.dispatchUnits == 1 && t.dispatchThreads > unitThreads {
		return weft.Invalidf("Tuning.Dispatch: %d threads for values with one unit: want at most %d", t.dispatchThreads, unitThreads)
	}
	return nil
}
