package spec

import (
	"cmp"
	"fmt"

	"github.com/weftgo/weft"
)

// Tuning is how a handle moves rows. It decides how long operations take and never what they give.
// Weft chooses what is zero: on GPUs from what [TuningTable] says of such a handle, or else from
// what was measured on the machines of docs/benchmarks/README.md. Like the rest of a Spec it is the
// same on every rank.
type Tuning struct {
	// Dispatch and Combine are for the kernels of handles on GPUs.
	Dispatch KernelTuning `json:"dispatch,omitzero"`
	Combine  KernelTuning `json:"combine,omitzero"`
	// HostCopy is for handles on the host.
	HostCopy HostCopy `json:"host_copy,omitempty"`
}

// HostCopy is how a dispatch on the host copies a row that several experts of a rank receive.
type HostCopy uint8

const (
	// FanOut reads the row once and writes all its copies; it is the default.
	FanOut HostCopy = iota
	// CopyEach reads the row again for each of its copies.
	CopyEach
	hostCopies
)

var hostCopyNames = [hostCopies]string{"fan-out", "copy-each"}

func (c HostCopy) String() string { return name(hostCopyNames[:], c) }

// KernelTuning is how one kernel works. Zeros are Weft's choice. Dispatches of the packed layouts,
// and of a Capacity that can overflow, store rows at their places, and combines of such rows read
// them there, unless ranks sum first (partial reductions, by expert) or a copy of the rows would
// take too much memory; all others move rows through slots. Some of it is about the ones, some
// about the others.
type KernelTuning struct {
	// Threads is how many threads a block has: 64 to 512, a multiple of 32; at most 256 of a
	// dispatch by values with one unit.
	Threads int `json:"threads,omitempty"`

	// Of slots:

	// Protocol is how who receives knows that a row is there.
	Protocol Protocol `json:"protocol,omitempty"`
	// Units, of a dispatch, is how many pieces of 512 bytes of a row a warp moves at a time: 1, 2
	// or 4; 1 for rows quantised from fp32, at most 2 for others that are quantised on the way.
	Units int `json:"units,omitempty"`
	// Senders is how many of 16 blocks send while the others receive, 1 to 15; -1: all do both. It
	// is heeded where rows are their own flags.
	Senders int `json:"senders,omitempty"`
	// Dependent says whether the next kernel may be placed while this one ends: 1, or -1 if not.
	// GPUs before Hopper have no such launches.
	Dependent int `json:"dependent,omitempty"`

	// Of places:

	// Blocks is how many blocks there are at most, 1 to 1024. There are never more than there is
	// room for, which [Spec].SMs bounds.
	Blocks int `json:"blocks,omitempty"`
	// Bulk says whether rows go by bulk copies: 1, or -1 if threads move them. GPUs before Hopper
	// have no such copies, and rows that are quantised on the way need threads.
	Bulk int `json:"bulk,omitempty"`
	// Warps is how many warps of a block move rows by bulk copies, 1 to 16, and no more than it
	// has. There are fewer if shared memory has no room for their parts.
	Warps int `json:"warps,omitempty"`
	// Parts is how many parts of a row a warp moves by bulk copies one after the other, 1 to 16.
	// There are more if shared memory has no room for so large ones.
	Parts int `json:"parts,omitempty"`
}

// slots leaves what is about slots, and places what is about places.
func (k KernelTuning) slots() KernelTuning {
	return KernelTuning{Protocol: k.Protocol, Units: k.Units, Senders: k.Senders, Dependent: k.Dependent}
}

func (k KernelTuning) places() KernelTuning {
	return KernelTuning{Blocks: k.Blocks, Bulk: k.Bulk, Warps: k.Warps, Parts: k.Parts}
}

// Protocol is how who receives a row knows that it is there.
type Protocol uint8

const (
	// ChosenProtocol is Weft's choice.
	ChosenProtocol Protocol = iota
	// ValueProtocol: values are their own flags: who receives polls the rows themselves. Not for
	// rows of any bits: opaque ones, and UE8M0 scales.
	ValueProtocol
	// FlagProtocol: a word tells of all rows of a block at once. Of rank-major rows received
	// tensors then have to be released in the order in which they came: see [Spec.Live].
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

// mostValueTokens bounds what slots whose rows are their own flags may take of memory and time:
// each is looked at and filled again in every operation.
const mostValueTokens = 4096

// ValidateTuning says what is wrong with the Tuning, if anything.
func (s Spec) ValidateTuning(e Engine, ranks int) error {
	if s.Tuning == (Tuning{}) {
		return nil
	}
	if s.Tuning.HostCopy >= hostCopies {
		return weft.Invalidf("Tuning.HostCopy: host copy %v", s.Tuning.HostCopy)
	}
	d, c := s.Tuning.Dispatch, s.Tuning.Combine
	if e != GPUEngine {
		if d != (KernelTuning{}) || c != (KernelTuning{}) {
			return weft.Unsupportedf("only kernels of GPUs are tuned; leave Tuning.Dispatch and Tuning.Combine out")
		}
		return nil
	}
	if s.Tuning.HostCopy != FanOut {
		return weft.Unsupportedf("Tuning.HostCopy is for handles on the host; leave it out on GPUs")
	}
	if c != (KernelTuning{}) && !s.Combines() {
		return weft.Unsupportedf("this handle has no sums, which Tuning.Combine is about; leave that out")
	}
	if err := s.validateKernelTuning("Dispatch", d, s.placed(ranks), MostUnits(s)); err != nil {
		return err
	}
	if err := s.validateKernelTuning("Combine", c, s.pulls(ranks), 0); err != nil {
		return err
	}
	if d.Protocol == ValueProtocol && s.anyBits() {
		return weft.Unsupportedf("opaque rows and UE8M0 scales may be any bits, so they cannot be their own " +
			"flags; tune dispatch to flags")
	}
	if s.Quantize != weft.InvalidDType && (d.Bulk > 0 || d.Warps != 0 || d.Parts != 0) {
		return weft.Unsupportedf("rows that are quantised on the way need threads; leave Bulk, Warps and " +
			"Parts of Tuning.Dispatch out")
	}
	if t := Choose(s, ranks); t.ValueDispatch && t.DispatchUnits == 1 && t.DispatchThreads > unitThreads {
		return weft.Invalidf("Tuning.Dispatch: %d threads for values with one unit: want at most %d",
			t.DispatchThreads, unitThreads)
	}
	return nil
}

// validateKernelTuning says what is wrong with the tuning of one kernel, whose rows go to places or
// through slots.
func (s Spec) validateKernelTuning(what string, t KernelTuning, places bool, mostUnits int) error {
	switch {
	case places && t.slots() != (KernelTuning{}):
		return weft.Unsupportedf("Tuning.%s: this handle has no slots; leave Protocol, Units, Senders and "+
			"Dependent out, which are about them", what)
	case !places && t.places() != (KernelTuning{}):
		return weft.Unsupportedf("Tuning.%s: rows of this handle go through slots; leave Blocks, Bulk, "+
			"Warps and Parts out, which are about others", what)
	}
	for _, f := range []struct {
		what string
		ok   bool
	}{
		{fmt.Sprintf("%d threads: want 64 to 512, a multiple of 32", t.Threads), t.Threads == 0 ||
			t.Threads >= 64 && t.Threads <= 512 && t.Threads%32 == 0},
		{fmt.Sprintf("protocol %v", t.Protocol), t.Protocol < protocols},
		{fmt.Sprintf("%d units: want 1, 2 or 4, at most %d", t.Units, mostUnits), t.Units == 0 ||
			t.Units <= mostUnits && (t.Units == 1 || t.Units == 2 || t.Units == 4)},
		{fmt.Sprintf("%d senders of 16: want 1 to 15, or -1 for none apart", t.Senders), t.Senders >= -1 && t.Senders <= 15},
		{fmt.Sprintf("dependent %d: want 1 or -1", t.Dependent), t.Dependent >= -1 && t.Dependent <= 1},
		{
			fmt.Sprintf("values for %d tokens: want flags from more than %d on", s.MaxTokens, mostValueTokens),
			t.Protocol != ValueProtocol || s.MaxTokens <= mostValueTokens,
		},
		{fmt.Sprintf("%d blocks: want 1 to 1024", t.Blocks), t.Blocks >= 0 && t.Blocks <= 1024},
		{fmt.Sprintf("bulk %d: want 1 or -1", t.Bulk), t.Bulk >= -1 && t.Bulk <= 1},
		{"Warps and Parts are about bulk copies: want Bulk 0 or 1", t.Bulk >= 0 || t.Warps == 0 && t.Parts == 0},
		{fmt.Sprintf("%d warps: want 1 to 16, and as many threads", t.Warps), t.Warps >= 0 &&
			t.Warps <= cmp.Or(t.Threads, placedThreads)/32},
		{fmt.Sprintf("%d parts: want 1 to 16", t.Parts), t.Parts >= 0 && t.Parts <= 16},
	} {
		if !f.ok {
			return weft.Invalidf("Tuning.%s: %s", what, f.what)
		}
	}
	return nil
}
