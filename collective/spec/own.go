package spec

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	enginehost "github.com/weftgo/weft/engine/host"
)

// Kernel is the kernel of a user's algorithm. Its only parameter is a [device.AlgorithmArgs], and a group
// launches it as it launches its own kernels: device/algorithm.cuh says what such a kernel does.
//
// A kernel that only needs what its parameter has needs no hook: each call is one launch of as many blocks and
// threads as the call says, or else the Kernel.
type Kernel struct {
	// Source is CUDA C++17, compiled for each rank's GPU when the group is made. It includes "weft.cuh", any other
	// header of package device, and Headers. Defines are macros.
	Source           string
	Headers, Defines map[string]string
	Cubin            []byte // compiled code, in place of Source
	Name             string // of the kernel: "mine", "layer::mine", "mine<float>"

	// Blocks and Threads are the most of a launch. 0: as many blocks as the GPU has room for, 512 threads. All
	// blocks must be resident at once, so there are fewer where the GPU has no room for more.
	Blocks, Threads int
	Shared          int // bytes of a block's dynamic shared memory

	// Scratch is how many bytes of each rank's memory all ranks reach, and Local how many only this rank's GPU
	// does. Both are zeros in the beginning, and again after ranks were masked. Each key has its own.
	Scratch, Local int

	// Extras are the names of what each call brings as [Call.Extras]: at most 8.
	Extras []string

	// Launch, if there is one, is called in place of the one launch. It may set the kernel's arguments, start it
	// any number of times, the same on every rank, and enqueue whatever else in the stream, or not start it.
	Launch func(*Launch) error
}

// Launch is a call of a user's algorithm on its way to the GPU. It is the hook's until that returns.
type Launch struct {
	Call            *Call
	Context         any // what Prepare made
	Stream          *cuda.Stream
	Args            *device.AlgorithmArgs // of the kernel, as the call says; Values are zeros
	Blocks, Threads int                   // as the call says; a hook may make them fewer
	Run             func() error          // see Start
}

// Start enqueues the kernel.
func (l *Launch) Start() error { return l.Run() }

// Program is what runs the calls of a user's algorithm that has no kernel: see package plan/executor. A WorldSize of
// the algorithm is that of communicators then, whose masked ranks count, and in others the program is not opened.
type Program interface {
	// Text is what the ranks of a group compare of it.
	Text() string
	// Open makes it ready on this rank. It is collective, and fails on all ranks or on none. The host gives the rounds
	// of the group, and GPUs the room that its kernels have, which may be shared.
	Open(ctx context.Context, comm *weft.Comm, rounds *enginehost.Rounds, room *enginegpu.Room) (Runner, error)
}

// Runner is a Program on one rank.
type Runner interface {
	// Run runs a call that fits the algorithm, or enqueues it in a stream. On the host ranks have met before, and have
	// said where their operands lie in the round that they published last.
	Run(ctx context.Context, s *weft.Stream, c *Call) error
	// Close gives its memory up, unless work that uses it still runs.
	Close() (released bool, err error)
}

// Env is what a user's Prepare makes a context for.
type Env struct {
	Comm *weft.Comm
	Key  string
	Call *Call // the first of the key; nil of an algorithm without keys
	// Scratch and Local are the Kernel's, and may be changed, to the same on every rank.
	Scratch, Local int
}

// MaxKeys is how many contexts a user's algorithm has in a group, at most. They live as long as it does.
const MaxKeys = 64

// MaxThreads is the most threads of a block: so many that have 64 registers each fit on an SM.
const MaxThreads = 1024

var ownName = regexp.MustCompile(`^[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*$`)

// MaxOwnBytes is the most scratch or local memory that a user's algorithm may ask for: more than any GPU has, and
// little enough to be counted with.
const MaxOwnBytes = 1 << 40

// CheckOwn says what is wrong with a user's algorithm.
func (a *Algorithm) CheckOwn() error {
	k := a.Kernel
	switch {
	case !ownName.MatchString(a.Name) || len(a.Name) > 96:
		return weft.Invalidf("algorithm %q: a name is letters, digits, and any of ._+-/", a.Name)
	case a.Collective >= Collectives:
		return weft.Invalidf("algorithm %s: there is no %v", a.Name, a.Collective)
	case (k == nil) == (a.Program == nil):
		return weft.Invalidf("algorithm %s: it has both a kernel and a program, or neither; give one of the two", a.Name)
	case k == nil:
		return a.checkSelection()
	case (k.Source == "") == (len(k.Cubin) == 0):
		return weft.Invalidf("algorithm %s: a kernel is a source or a cubin", a.Name)
	case k.Name == "":
		return weft.Invalidf("algorithm %s: its kernel has no name", a.Name)
	case k.Blocks < 0 || k.Threads < 0 || k.Threads > MaxThreads || k.Shared < 0 || k.Scratch < 0 || k.Local < 0:
		return weft.Invalidf("algorithm %s: %d blocks, %d threads (of up to %d), %d bytes shared, %d scratch, %d local",
			a.Name, k.Blocks, k.Threads, MaxThreads, k.Shared, k.Scratch, k.Local)
	case max(k.Scratch, k.Local) > MaxOwnBytes:
		return weft.Invalidf("algorithm %s: %d bytes scratch, %d local; there may be %d", a.Name, k.Scratch, k.Local,
			MaxOwnBytes)
	case len(k.Extras) > device.Values:
		return weft.Invalidf("algorithm %s: %d extras; there may be %d", a.Name, len(k.Extras), device.Values)
	case a.Collective.Varies() && k.Launch == nil:
		return weft.Invalidf("algorithm %s: %v has counts, which a launch hook gives the kernel; it has none", a.Name,
			a.Collective)
	}
	for i, name := range k.Extras {
		if name == "" || slices.Contains(k.Extras[:i], name) {
			return weft.Invalidf("algorithm %s: extras %q", a.Name, k.Extras)
		}
	}
	return a.checkSelection()
}

// checkSelection says what is wrong with the calls that a user's algorithm is for.
func (a *Algorithm) checkSelection() error {
	switch {
	case a.Variant != Plain || a.Eager:
		return weft.Invalidf("algorithm %s: it is eager, or for calls with a norm or words, as the library's alone may be; "+
			"leave these out", a.Name)
	case a.MinBytes < 0 || a.MaxBytes < 0 || a.MaxBytes > 0 && a.MaxBytes < a.MinBytes:
		return weft.Invalidf("algorithm %s: %d to %d bytes", a.Name, a.MinBytes, a.MaxBytes)
	case slices.ContainsFunc(a.DTypes, func(t weft.DType) bool { return t.Size() == 0 }):
		return weft.Invalidf("algorithm %s: types %v, of which one is none", a.Name, a.DTypes)
	case slices.ContainsFunc(a.Ops, func(op weft.Op) bool { return !op.Valid() }):
		return weft.Invalidf("algorithm %s: reductions %v, of which one is none", a.Name, a.Ops)
	case a.WorldSize < 0 || a.RanksPerHost < 0 || a.InPlace > OnlyApart:
		return weft.Invalidf("algorithm %s: world of %d ranks, %d on a host, placement %d", a.Name, a.WorldSize,
			a.RanksPerHost, a.InPlace)
	case a.Needs&^a.Collective.windowsAlike() != 0:
		return weft.Invalidf("algorithm %s: it needs %v in windows, and of some operand ranks of one %v do not know whether "+
			"all have it there; need others or none", a.Name, a.Needs, a.Collective)
	case a.InPlace != AnyPlace && !a.Collective.PlacedAlike():
		return weft.Invalidf("algorithm %s: it asks whether operands are in place, which ranks of one %v may be and others "+
			"not; take any placement", a.Name, a.Collective)
	}
	return nil
}

// OwnText is what the ranks of a group compare of a user's algorithm: all but its name, and of its tags "opt-in"
// alone. Of code it is a hash, and of hooks that there are any.
func (a *Algorithm) OwnText() string {
	k := a.Kernel
	if k == nil {
		k = &Kernel{}
	}
	hooks := ""
	for i, has := range []bool{
		a.Supports != nil, a.Cost != nil, a.Key != nil, a.Prepare != nil, k.Launch != nil,
	} {
		if has {
			hooks += [...]string{" supports", " cost", " key", " prepare", " launch"}[i]
		}
	}
	if a.Program != nil {
		return fmt.Sprintf("%v, needs %v, %d to %d bytes, placement %d, world %d of %d a host, types %v, ops %v, opt-in %t, "+
			"%s, hooks [%s]", a.Collective, a.Needs, a.MinBytes, a.MaxBytes, a.InPlace, a.WorldSize, a.RanksPerHost, a.DTypes,
			a.Ops, a.OptIn(), a.Program.Text(), strings.TrimSpace(hooks))
	}
	code := kernel.Spec{
		Source: k.Source + string(k.Cubin), Headers: k.Headers, Defines: k.Defines, Kernels: []string{k.Name},
	}.Key()
	return fmt.Sprintf("%v, needs %v, %d to %d bytes, placement %d, world %d of %d a host, types %v, ops %v, "+
		"opt-in %t, extras [%s], %d x %d threads, shared %d, scratch %d, local %d, kernel %s, source %s, hooks [%s]",
		a.Collective, a.Needs, a.MinBytes, a.MaxBytes, a.InPlace, a.WorldSize, a.RanksPerHost, a.DTypes, a.Ops, a.OptIn(),
		strings.Join(k.Extras, " "), k.Blocks, k.Threads, k.Shared, k.Scratch, k.Local, k.Name, code.String()[:16],
		strings.TrimSpace(hooks))
}
