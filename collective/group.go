package collective

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/internal/gpu"
	"github.com/weftgo/weft/collective/internal/host"
	"github.com/weftgo/weft/collective/internal/proxied"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/collective/tuning"
	"github.com/weftgo/weft/device"
)

// MaxHidden is the longest row of a [Norm] on GPUs.
const MaxHidden = gpu.MaxHidden

// DefaultScratch is the staging memory of a rank on the host unless [Options] say otherwise, and
// MaxScratch the most they may ask for. DefaultStaging and MaxStaging are the same of a rank on a GPU.
const (
	DefaultScratch = 4 << 20
	MaxScratch     = 1 << 30
	DefaultStaging = 64 << 20
	MaxStaging     = 64 << 30
)

// Options configures [New]. All ranks pass the same.
type Options struct {
	// Scratch is about how many bytes of each rank's memory the group uses to stage operands that
	// lie in no window. An eighth of it is the most that one round carries. 0 means
	// [DefaultScratch]; more than [MaxScratch] is refused. It is of groups on the host.
	Scratch int

	// Staging is how many bytes of each GPU's memory hold what peers send. Larger operands take
	// several launches: [GPUCaps] says of what size. 0 means what WEFT_COLLECTIVE_STAGING says, or else
	// [DefaultStaging]; more than [MaxStaging] is refused. Between hosts it is pinned memory of the host, which operands
	// go through piece by piece. Elsewhere, beside it, pieces of large operands take half as much, words by which moved
	// floats keep all their bits a quarter, and messages a quarter, these 16 MiB at most, but for each rank 4 KiB at
	// least.
	Staging int

	// SMs bounds the multiprocessors of a GPU that a group's kernels fill, those of all ranks that share it together.
	// 0: three quarters of those that other groups and handles have left.
	SMs int

	// SerialGroup, on GPUs, is the number of a serial group: see the Spec of package ep, whose handles may
	// be in it. 0: none.
	SerialGroup int

	// DTypes are element types whose reductions a group on GPUs loads kernels for when it is made, and
	// not when the first of them is called. A captured call cannot load any.
	DTypes []weft.DType

	// Force names algorithms that are used wherever they support the request, in this order,
	// instead of those that are faster. Results do not depend on it.
	Force []string

	// Algorithms are users' own, beside the library's: plans (package plan/executor), and on GPUs kernels, which the
	// group compiles when it is made. Calls find them as they find the library's: by name, by Force, by Select. All
	// ranks give the same ones: a difference is [weft.ErrMismatch] and names the algorithm. The algorithms are the
	// group's, and their memory and their code go with it.
	Algorithms []Algorithm

	// Select, if there is one, chooses the algorithm of a call that names none, of those that fit it. It depends on
	// nothing but its arguments, so all ranks choose the same. On the host it does not yet know which operands lie in
	// windows; and where an algorithm of these takes outputs that are inputs alone, or others alone, a call for which it
	// chooses by that is in place on all ranks or on none. "": the group chooses.
	Select func(q Request, fit []Algorithm) string

	// Tuning is the file of tables from which the group takes what algorithms cost: see package tuning. Empty:
	// the one that WEFT_TUNING names, or else weft/tuning.json in the user's cache directory, if there is one.
	// "none": the library's own tables. All ranks must find the same table.
	Tuning string

	// Loopback is for measuring only. It makes the only rank of a communicator on a GPU the first of so
	// many, whose windows are regions of its own GPU's memory. Every load, store and wait of an
	// operation is made, but no wait lasts, and what peers send are zeros. 0: the ranks are real.
	Loopback int
}

// The kinds of operations, and what algorithms say of themselves: see package spec.
type (
	Collective = spec.Collective
	Algorithm  = spec.Algorithm
	Request    = spec.Request
	Windows    = spec.Windows
	Counts     = spec.Counts
	Call       = spec.Call
	Kernel     = spec.Kernel
	Program    = spec.Program
	Runner     = spec.Runner
	Launch     = spec.Launch
	Env        = spec.Env
	Placement  = spec.Placement
	Model      = spec.Model

	DeviceCounts = spec.DeviceCounts
	Transfer     = spec.Transfer
	Norm         = spec.Norm
	Words        = spec.Words
)

// Group runs the collectives of one communicator, on the host or on GPUs, where its ranks are.
// Several groups may live at once; they share nothing.
//
// The methods of a group are collective, but for messages: every unmasked rank calls them in the same
// order with agreeing arguments, from one goroutine at a time. Masked ranks take no part: a sum leaves
// them out, an average counts only the others, and their parts of a gathered tensor are left alone.
//
// [Group.Start] begins a call and does not wait. On the host any other method returns when the rank's
// result is complete and its operands are the caller's again. On GPUs it enqueues its work in the stream,
// and operands are borrowed until that has run; without a stream it waits for the work. Operands lie where
// that GPU reaches them, at multiples of the size of their elements.
//
// On the host an error that wraps [weft.ErrMismatch], [weft.ErrInvalid] or [weft.ErrUnsupported] is
// returned by every rank in the same call, with nothing moved, and the group goes on. On GPUs ranks do
// not meet before they enqueue: what is wrong with a rank's own arguments is returned there with
// nothing enqueued, and its peers wait until it makes the right call or their deadline ends. Counts of an
// all-gather-v or an all-to-all-v, and messages, that are not the peer's fail both with [weft.ErrMismatch],
// as the communicator's failure. Any other error is that, too, and leaves outputs undefined.
//
// The first call on GPUs after SetMask begins the group anew: it ends when all ranks that go on have made
// one, also if it is one of messages.
//
// With WEFT_CHECK=1 in the environment when a group is made, on all ranks, they meet on the host before
// each call and compare all of it: the algorithm that it names, or on GPUs the one that each has chosen, scalars,
// counts that all ranks pass, places of symmetric operands. Then on GPUs too every rank returns
// [weft.ErrMismatch], with both calls, or another rank's refusal, and nothing is enqueued. Ranks that are masked
// take no part. A call in a capture is not compared, so then all ranks capture a call or none. Messages never
// are: their pairs compare them.
//
// With WEFT_CHECK=1 groups of one communicator are called in the same order on all ranks, and
// while a started call runs nothing else of the communicator is.
//
// A group of which calls were started is closed before its communicator.
//
// Peers may read operands in windows where they lie. Such a window stays open on every
// rank until the operation has returned there: a rank that needs one which it has closed returns
// [weft.ErrClosed], and that is the communicator's failure.
type Group struct {
	comm   *weft.Comm
	engine spec.Engine
	ranks  int // the communicator's, or those of a loopback
	call   spec.Call
	norm   spec.Norm // of the call, if it has one

	messages spec.Call // of point-to-point: nothing else of it is set
	batch    Batch     // the same messages

	selector func(Request, []Algorithm) string
	all      []Algorithm // the engine's, for the selector
	fit      []Algorithm // those of them that fit a call

	profile   string // of the machine
	algorithm string // of the last call
	works     works
	queue     queue           // on the host
	logged    map[string]bool // algorithms, by name; nil: nothing is logged

	gate     *weft.Gate
	released bool
}

// All engines.
var (
	_ spec.Engine = (*host.Engine)(nil)
	_ spec.Engine = (*gpu.Engine)(nil)
	_ spec.Engine = (*proxied.Engine)(nil)
)

// New makes a group. It is collective, and allocates all memory that peers reach, but for that of users' algorithms
// with keys. Later calls allocate what they use again and again: a [Work] of [Group.Start], kernels of a type.
func New(ctx context.Context, comm *weft.Comm, opts Options) (*Group, error) {
	const op = "new group"
	var err error
	switch {
	case opts.Scratch < 0 || opts.Scratch > MaxScratch:
		err = weft.Invalidf("%s: scratch memory of %d bytes; it may be 0 to %d", op, opts.Scratch, MaxScratch)
	case opts.Staging < 0 || opts.Staging > MaxStaging:
		err = weft.Invalidf("%s: staging memory of %d bytes; it may be 0 to %d", op, opts.Staging, MaxStaging)
	case opts.SMs < 0 || opts.SerialGroup < 0:
		err = weft.Invalidf("%s: %d SMs, serial group %d", op, opts.SMs, opts.SerialGroup)
	case opts.Loopback != 0 && (comm.Size() != 1 || comm.Device() == nil || opts.Loopback < 0 ||
		opts.Loopback > device.MaxRanks):
		err = weft.Invalidf("%s: a loopback of %d ranks; one rank on a GPU has one of up to %d", op, opts.Loopback,
			device.MaxRanks)
	default:
		for _, t := range opts.DTypes {
			if why := spec.Reducible(spec.AllReduce, weft.Sum, t); why != nil {
				err = fmt.Errorf("%s: %w", op, why)
			}
		}
		for _, name := range opts.Force {
			if !known(comm, opts.Algorithms, name) {
				err = weft.Invalidf("%s: there is no algorithm %q", op, name)
			}
		}
	}
	if err == nil {
		err = checkOwn(comm, op, opts.Algorithms, opts.Loopback)
	}
	opts.Scratch = defaulted(opts.Scratch, DefaultScratch)
	check, unclear := checked()
	err = cmp.Or(err, unclear)
	if opts.Staging == 0 {
		opts.Staging, unclear = staging()
		err = cmp.Or(err, unclear)
	}
	summary := fmt.Sprintf("Scratch: %d, Staging: %d, SMs: %d, SerialGroup: %d, DTypes: %v, Force: %s, "+
		checkVariable+": %t, Algorithms: %s, Select: %t", opts.Scratch, opts.Staging, opts.SMs, opts.SerialGroup, opts.DTypes,
		strings.Join(opts.Force, " "), check, namesOf(opts.Algorithms), opts.Select != nil)
	if err := comm.Operations().VerifySame(ctx, op, summary, err); err != nil {
		return nil, err
	}
	own, err := compared(ctx, comm, op, opts.Algorithms)
	if err != nil {
		return nil, err
	}
	g := &Group{comm: comm, ranks: max(comm.Size(), opts.Loopback), selector: opts.Select}
	var table *tuning.Table
	if g.profile, table, err = tuned(ctx, comm, op, opts.Tuning); err != nil {
		return nil, err
	}
	switch {
	case betweenGPUs(comm):
		g.engine, err = proxied.New(ctx, comm, proxied.Options{
			Staging: opts.Staging, Scratch: opts.Scratch, SMs: opts.SMs, SerialGroup: opts.SerialGroup, Force: opts.Force,
			Model: table.Model(), Own: own, Check: check, DTypes: opts.DTypes,
		})
	case comm.Device() != nil:
		g.engine, err = gpu.New(ctx, comm, gpu.Options{
			Staging: opts.Staging, SMs: opts.SMs, SerialGroup: opts.SerialGroup, Force: opts.Force, Model: table.Model(),
			DTypes: opts.DTypes, Own: own, Loopback: opts.Loopback, Check: check,
		})
	default:
		if g.engine, err = host.New(ctx, comm, host.Options{
			Scratch: opts.Scratch, Force: opts.Force, Model: table.Model(), Own: own, Check: check,
		}); err != nil {
			err = fmt.Errorf("%s: %w", op, err)
		}
	}
	if err != nil {
		return nil, err
	}
	if g.selector != nil {
		g.all = g.engine.Algorithms()
	}
	if comm.Operations().Logger().Enabled(ctx, slog.LevelInfo) {
		g.logged = map[string]bool{}
	}
	g.gate = comm.Operations().Gate("group")
	return g, nil
}

// String says of which communicator the group is.
func (g *Group) String() string {
	if g.gate.Closed() {
		return "group, closed"
	}
	return fmt.Sprintf("group of %v", g.comm)
}

// Algorithms are the group's: the library's, and users' own.
func (g *Group) Algorithms() []Algorithm { return g.engine.Algorithms() }

// checkVariable has the ranks of groups that are made compare all their calls: see [Group].
const checkVariable = "WEFT_CHECK"

func checked() (bool, error) {
	switch v := os.Getenv(checkVariable); v {
	case "", "0":
		return false, nil
	case "1":
		return true, nil
	default:
		return false, weft.Invalidf("%s=%s: it is 1, 0 or empty", checkVariable, v)
	}
}

// stagingVariable is how many bytes of staging memory groups on GPUs have whose options do not say.
const stagingVariable = "WEFT_COLLECTIVE_STAGING"

func staging() (int, error) {
	v := os.Getenv(stagingVariable)
	if v == "" {
		return DefaultStaging, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > MaxStaging {
		return 0, weft.Invalidf("%s=%s: it is a number of bytes, 1 to %d", stagingVariable, v, MaxStaging)
	}
	return n, nil
}

// betweenGPUs says whether ranks are on GPUs of several hosts. The host engine makes their calls, by its algorithms.
func betweenGPUs(comm *weft.Comm) bool { return comm.Device() != nil && comm.Operations().Spans() }

// Algorithms lists the algorithms on the host.
func Algorithms() []Algorithm { return host.Algorithms() }

// GPUAlgorithms lists those on GPUs.
func GPUAlgorithms() []Algorithm { return gpu.Algorithms() }

func known(comm *weft.Comm, own []Algorithm, name string) bool {
	all := Algorithms()
	if comm.Device() != nil && !betweenGPUs(comm) {
		all = GPUAlgorithms()
	}
	for _, a := range slices.Concat(all, own) {
		if a.Name == name {
			return true
		}
	}
	return false
}

// Profile names the machine in tables of package tuning.
func (g *Group) Profile() string { return g.profile }

// Close gives the group's memory up on this rank. Peers that are still in an operation that this
// rank has finished may go on reading it. It waits until what was started has ended, and on a GPU until
// nothing of the group's runs, for the communicator's deadline at most; if work still runs, the error
// wraps [weft.ErrTimeout], and a later Close gives the memory up. While another goroutine is inside a call of
// the group, the error wraps [weft.ErrBusy], and the group goes on: [weft.Comm.Abort] ends the call.
func (g *Group) Close() (err error) {
	if g.released {
		return nil
	}
	const op = "close group"
	if err := g.queue.rest(g.comm.Deadline()); err != nil {
		return fmt.Errorf("%s: calls that were started still run: %w", op, err)
	}
	if err := g.gate.Close(op); err != nil {
		return err
	}
	g.queue.close()
	if g.released, err = g.engine.Close(); g.released {
		err = errors.Join(err, g.works.close())
	}
	return err
}
