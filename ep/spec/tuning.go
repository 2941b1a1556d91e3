package spec

import (
	"cmp"
	"fmt"

	"github.com/weftgo/weft"
)

// Tuning is how a handle moves rows. It changes how long operations take, never their results. Weft
// chooses the members that are zero: on GPUs from the ep.TuningTable, or else from measurements on
// the machines of docs/benchmarks/README.md. Like the rest of a Spec it is the same on every rank.
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

// KernelTuning is how one kernel works. Zeros are Weft's choice. Some members are for slot mode,
// some for direct mode. Dispatches of the packed layouts, and of a Capacity that can overflow, are
// in direct mode; all others are in slot mode. A combine is in the mode of its dispatch, with two
// exceptions that use slot mode: partial reductions by expert, and a staging buffer that would take
// too much memory.
type KernelTuning struct {
	// Threads of a block: 64 to 512, a multiple of 32. At most 256 for a dispatch with values as
	// flags and one unit.
	Threads int `json:"threads,omitempty"`

	// Slot mode:

	// Protocol is how a receiver knows that a row has arrived.
	Protocol Protocol `json:"protocol,omitempty"`
	// Units, of a dispatch, is the number of 512-byte units of a row that a warp moves at a time:
	// 1, 2 or 4. It is 1 for rows quantised from fp32, and at most 2 for other quantised rows.
	Units int `json:"units,omitempty"`
	// Senders is how many of 16 blocks send while the others receive: 1 to 15; -1: all do both. It
	// has an effect only with values as flags.
	Senders int `json:"senders,omitempty"`
	// Dependent says whether the next kernel may be scheduled while this one ends: 1, or -1 if not.
	// GPUs before Hopper have no such launches.
	Dependent int `json:"dependent,omitempty"`

	// Direct mode:

	// Blocks is the most blocks, 1 to 1024. [Spec].SMs bounds them too.
	Blocks int `json:"blocks,omitempty"`
	// Bulk says whether bulk copies move rows: 1, or -1 if threads do. GPUs before Hopper have no
	// bulk copies, and quantising needs threads.
	Bulk int `json:"bulk,omitempty"`
	// Warps is the number of warps of a block that move rows by bulk copies: 1 to 16, and at most
	// those of the block. Fewer do if shared memory has no room for their parts.
	Warps int `json:"warps,omitempty"`
	// Parts is the number of parts in which a warp moves a row by bulk copies, one after the other:
	// 1 to 16. There are more if shared memory has no room for parts of that size.
	Parts int `json:"parts,omitempty"`
}

// slots keeps the members for slot mode, direct those for direct mode.
func (k KernelTuning) slots() KernelTuning {
	return KernelTuning{Protocol: k.Protocol, Units: k.Units, Senders: k.Senders, Dependent: k.Dependent}
}

func (k KernelTuning) direct() KernelTuning {
	return KernelTuning{Blocks: k.Blocks, Bulk: k.Bulk, Warps: k.Warps, Parts: k.Parts}
}

// Protocol is how a receiver knows that a row has arrived.
type Protocol uint8

const (
	// ChosenProtocol is Weft's choice.
	ChosenProtocol Protocol = iota
	// ValueProtocol: values are their own flags, and the receiver polls the rows. It does not work
	// for rows of any bits: opaque rows and UE8M0 scales.
	ValueProtocol
	// FlagProtocol: one word says that all rows of a block have arrived. Rank-major batches must
	// then be released in the order of their arrival: see [Spec.Live].
	FlagProtocol
	protocols
)

var protocolNames = [protocols]string{"chosen", "values", "flags"}

func (p Protocol) String() string { return name(protocolNames[:], p) }

// ParseProtocol is the inverse of [Protocol.String].
func ParseProtocol(s string) (Protocol, error) {
	return parse[Protocol]("protocol", protocolNames[:], s)
}

// MarshalText returns the protocol's name.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses the protocol's name.
func (p *Protocol) UnmarshalText(b []byte) (err error) {
	*p, err = ParseProtocol(string(b))
	return err
}

// values reports whether values are their own flags; chosen is Weft's choice.
func (p Protocol) values(chosen bool) bool {
	if p == ChosenProtocol {
		return chosen
	}
	return p == ValueProtocol
}

// apply overrides Weft's choices.
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

// mostValueTokens bounds the memory and time of slots with values as flags: every operation polls
// and refills all of them.
const mostValueTokens = 4096

// Check refuses what no handle on GPUs can have, whatever its Spec.
func (t Tuning) Check() error {
	if t.HostCopy != FanOut {
		return weft.Invalidf("Tuning.HostCopy is for handles on the host")
	}
	return cmp.Or(t.Dispatch.check("Dispatch"), t.Combine.check("Combine"))
}

func (k KernelTuning) check(what string) error {
	direct := k.direct() != KernelTuning{}
	if direct && k.slots() != (KernelTuning{}) {
		return weft.Invalidf("Tuning.%s is for slot mode and for direct mode", what)
	}
	return (Spec{}).validateKernelTuning(what, k, direct, MostUnits(Spec{}))
}

// ValidateTuning checks the Tuning.
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
		return weft.Unsupportedf("this handle cannot combine; leave Tuning.Combine out")
	}
	if err := s.validateKernelTuning("Dispatch", d, s.direct(ranks), MostUnits(s)); err != nil {
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
		return weft.Unsupportedf("quantising needs threads; leave Bulk, Warps and Parts of Tuning.Dispatch out")
	}
	if t := Choose(s, ranks); t.ValueDispatch && t.DispatchUnits == 1 && t.DispatchThreads > unitThreads {
		return weft.Invalidf("Tuning.Dispatch: %d threads for values with one unit: want at most %d",
			t.DispatchThreads, unitThreads)
	}
	return nil
}

// validateKernelTuning checks the tuning of one kernel, in direct mode or in slot mode.
func (s Spec) validateKernelTuning(what string, t KernelTuning, direct bool, mostUnits int) error {
	switch {
	case direct && t.slots() != (KernelTuning{}):
		return weft.Unsupportedf("Tuning.%s: this handle has no slots; leave Protocol, Units, Senders and "+
			"Dependent out", what)
	case !direct && t.direct() != (KernelTuning{}):
		return weft.Unsupportedf("Tuning.%s: rows of this handle go through slots; leave Blocks, Bulk, "+
			"Warps and Parts out", what)
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
		{"Warps and Parts tune bulk copies: want Bulk 0 or 1", t.Bulk >= 0 || t.Warps == 0 && t.Parts == 0},
		{fmt.Sprintf("%d warps: want 1 to 16, and as many threads", t.Warps), t.Warps >= 0 &&
			t.Warps <= cmp.Or(t.Threads, directThreads)/32},
		{fmt.Sprintf("%d parts: want 1 to 16", t.Parts), t.Parts >= 0 && t.Parts <= 16},
	} {
		if !f.ok {
			return weft.Invalidf("Tuning.%s: %s", what, f.what)
		}
	}
	return nil
}
