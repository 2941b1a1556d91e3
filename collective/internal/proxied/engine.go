package proxied

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/internal/choice"
	"github.com/weftgo/weft/collective/internal/gpu"
	"github.com/weftgo/weft/collective/internal/host"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/engine/gpu/proxy"
)

// Options configures an [Engine]. All ranks pass the same.
type Options struct {
	Staging     int              // bytes of pinned memory that operands go through
	Scratch     int              // of the host engine's
	SMs         int              // that copy
	SerialGroup int              // as in [enginegpu.Want]
	Force       []string         // algorithms that are used wherever they fit the request
	Model       *spec.Model      // what algorithms cost, on the host
	Own         []spec.Algorithm // users', of programs, which were checked and compared
	Check       bool             // ranks compare their calls before they enqueue
	DTypes      []weft.DType     // whose reductions within a host are loaded from the beginning
}

// Engine runs the collectives of a communicator whose ranks are on GPUs of several hosts.
type Engine struct {
	comm  *weft.Comm
	host  *host.Engine
	near  *gpu.Engine // of each host's ranks; nil: some host has one alone
	proxy *proxy.Proxy
	check bool

	algorithms []spec.Algorithm
	runners    map[string]spec.Runner // of users' algorithms, by name
	placed     bool                   // one of these asks whether operands are in place
	choice     *choice.Chooser
	room       int // of the host engine's rounds
	live       []int

	memory *cuda.HostMemory
	area   int    // bytes of each of the four
	wide   *rooms // for calls that are made whole
}

const opNew = "new group"

// areas are the input and the output of two pieces.
const areas = 4

// New makes an engine. It is collective.
func New(ctx context.Context, comm *weft.Comm, o Options) (*Engine, error) {
	e := &Engine{
		comm: comm, check: o.Check, runners: map[string]spec.Runner{}, area: o.Staging / areas &^ 63,
		wide: &rooms{context: comm.Device().Context()},
	}
	if least := 64 * comm.Size(); e.area < least {
		return nil, weft.Invalidf("%s: staging memory of %d bytes; %d ranks need %d", opNew, o.Staging, comm.Size(),
			areas*least)
	}
	if err := e.open(ctx, o); err != nil {
		_, again := e.Close()
		return nil, errors.Join(err, again)
	}
	return e, nil
}

func (e *Engine) open(ctx context.Context, o Options) (err error) {
	if e.host, err = host.New(ctx, e.comm, host.Options{Scratch: o.Scratch, Force: o.Force, Model: o.Model}); err != nil {
		return fmt.Errorf("%s: %w", opNew, err)
	}
	e.room, e.algorithms = e.host.Rounds().Room(), append(e.host.Algorithms(), o.Own...)
	list := make([]*spec.Algorithm, len(e.algorithms))
	for i := range e.algorithms {
		list[i] = &e.algorithms[i]
	}
	e.choice = choice.New(list, o.Force, o.Model)
	e.memory, err = e.comm.Device().Context().AllocHost(areas*e.area+scratchBytes, cuda.HostOptions{})
	if err := e.comm.Operations().VerifySame(ctx, opNew, "pinned memory", err); err != nil {
		return err
	}
	beside := (*enginegpu.Room)(nil)
	if e.least(func(int) bool { return true }) > 1 {
		if e.near, err = gpu.New(ctx, e.comm, gpu.Options{
			Staging: o.Staging, SMs: o.SMs, SerialGroup: o.SerialGroup, Model: o.Model, DTypes: o.DTypes, Within: true,
		}); err != nil {
			return err
		}
		beside = e.near.Room()
	}
	e.proxy, err = proxy.New(ctx, e.comm, proxy.Spec{
		Op: opNew, Owner: "group", Words: words, SMs: o.SMs, SerialGroup: o.SerialGroup, Beside: beside,
	})
	if err != nil {
		return err
	}
	for i := range o.Own {
		a := &o.Own[i]
		e.placed = e.placed || a.InPlace != spec.AnyPlace
		r, err := a.Program.Open(ctx, e.comm, nil, e.proxy.Room())
		if err != nil {
			return fmt.Errorf("algorithm %s: %w", a.Name, err)
		}
		e.runners[a.Name] = r
	}
	return nil
}

// least is how many ranks that count has the host that has the fewest of those that have any.
func (e *Engine) least(counts func(rank int) bool) (n int) {
	hosts := map[int]int{}
	for r := range e.comm.Size() {
		if counts(r) {
			hosts[e.comm.Host(r)]++
		}
	}
	n = e.comm.Size()
	for _, ranks := range hosts {
		n = min(n, ranks)
	}
	return n
}

// Close implements [spec.Engine].
func (e *Engine) Close() (released bool, err error) {
	var errs []error
	for name, r := range e.runners { // behind hand-overs, which the proxy serves
		if released, err = r.Close(); !released {
			return false, err
		}
		delete(e.runners, name)
		errs = append(errs, err)
	}
	if e.proxy != nil {
		if released, err = e.proxy.Close(); !released {
			return false, err
		}
		errs = append(errs, err)
	}
	if e.near != nil {
		if released, err = e.near.Close(); !released {
			return false, err
		}
		errs = append(errs, err)
	}
	errs = append(errs, e.wide.close())
	if e.host != nil {
		_, err := e.host.Close()
		errs = append(errs, err)
	}
	if e.memory != nil {
		errs = append(errs, e.memory.Close())
	}
	return true, errors.Join(errs...)
}

// Begin implements [spec.Engine].
func (e *Engine) Begin(op string) error { return e.comm.Operations().Begin(op) }

// Algorithms implements [spec.Engine].
func (e *Engine) Algorithms() []spec.Algorithm { return slices.Clone(e.algorithms) }

// Request implements [spec.Engine]. Operands lie in no window of the host's.
func (e *Engine) Request(c *spec.Call) (spec.Request, error) {
	e.live = e.live[:0]
	for r := range e.comm.Size() {
		if !e.comm.Masked(r) {
			e.live = append(e.live, r)
		}
	}
	q := host.RequestOf(c, e.live, e.hosts(), e.room)
	if e.placed && c.InPlace && c.Collective.PlacedAlike() {
		q.Windows |= spec.InPlace
	}
	return q, nil
}

// hosts is how many have live ranks.
func (e *Engine) hosts() int {
	seen := map[int]bool{}
	for _, r := range e.live {
		seen[e.comm.Host(r)] = true
	}
	return len(seen)
}

// Run implements [spec.Engine]. What is wrong with the arguments of one rank is returned there alone, unless calls are
// checked.
func (e *Engine) Run(ctx context.Context, s *weft.Stream, c *spec.Call, refused error) (string, error) {
	name := ""
	if refused == nil {
		name, refused = e.accept(c)
	}
	if err := e.agree(ctx, s, c, name, refused); err != nil {
		return "", err
	}
	if r := e.runners[name]; r != nil {
		return name, r.Run(ctx, s, c)
	}
	return name, e.start(ctx, s, c, name)
}

// Exchange implements [spec.Engine].
func (e *Engine) Exchange(ctx context.Context, s *weft.Stream, c *spec.Call, refused error) error {
	if refused != nil {
		return refused
	}
	return e.start(ctx, s, c, "")
}

// start enqueues a call.
func (e *Engine) start(ctx context.Context, s *weft.Stream, c *spec.Call, algorithm string) error {
	name := c.Name()
	stream, err := e.proxy.Enter(ctx, name, s)
	if err != nil {
		return err
	}
	errand := &errand{Engine: e, call: own(c)}
	errand.call.Algorithm = algorithm
	if n := errand.whole(); n > 0 {
		capturing, err := enginegpu.Capturing(stream)
		if err == nil {
			errand.wide, err = e.wide.of(n, capturing, name)
		}
		if err != nil {
			return err
		}
	}
	if algorithm == spec.AllReduce.String()+"/hierarchical" && e.near != nil && c.Bytes > 0 {
		if ranks := e.least(func(r int) bool { return !e.comm.Masked(r) }); ranks > 1 {
			if err := e.startAcross(ctx, stream, errand, ranks); err != nil {
				return err
			}
			return e.proxy.Finish(ctx, s)
		}
	}
	if err := e.proxy.Start(stream, numberOf(c), name, errand.run); err != nil {
		return err
	}
	return e.proxy.Finish(ctx, s)
}

// accept chooses the algorithm of a call, or says why this rank cannot make the call. Of an all-to-all-v it follows
// from what all ranks send, which the host engine finds out.
func (e *Engine) accept(c *spec.Call) (string, error) {
	switch k := c.Collective; {
	case c.Norm != nil:
		return "", weft.Unsupportedf("%s: not between hosts; make an all-reduce, and normalise its rows after", c.Name())
	case c.Words.Given():
		return "", weft.Unsupportedf("%v: words are of calls within one host; leave them out", k)
	case c.Threads != 0 || c.Blocks != 0 || len(c.Extras) > 0:
		return "", weft.Unsupportedf("%v: between hosts a call has neither blocks nor threads nor extras; leave them out", k)
	}
	if err := aligned(c); err != nil {
		return "", err
	}
	q, _ := e.Request(c)
	if c.Algorithm != "" {
		i := e.choice.Named(c.Algorithm)
		switch {
		case i < 0:
			return "", e.choice.Unknown(c.Collective, c.Algorithm, "between hosts")
		case e.algorithms[i].Collective != c.Collective:
			return "", weft.Invalidf("%v: %s is an algorithm of %v", c.Collective, c.Algorithm, e.algorithms[i].Collective)
		case !e.algorithms[i].Fits(q):
			return "", e.algorithms[i].Misfit(q)
		}
		return c.Algorithm, nil
	}
	if c.Collective == spec.AllToAllV {
		return "", nil
	}
	i := e.choice.AtOnce(&q)
	if i < 0 {
		i = e.choice.AfterExchange(&q)
	}
	if i < 0 {
		return "", weft.Unsupportedf("%v: no algorithm has a known cost; name one", c.Collective)
	}
	return e.algorithms[i].Name, nil
}

// aligned refuses operands whose elements are not aligned, as on one host.
func aligned(c *spec.Call) error {
	size := uint64(max(c.DType.Size(), 1))
	for _, t := range [...]*weft.Tensor{&c.In, &c.Out} {
		if uint64(t.Pointer())%size != 0 && t.Elems() > 0 {
			return weft.Invalidf("%v: an operand at %#x; the address of %v elements is a multiple of %d", c.Collective,
				uint64(t.Pointer()), c.DType, size)
		}
	}
	if scalar := spec.ScalarType(c.DType); c.Op == weft.PreMulSum && c.Collective.Reduces() && c.ScalarOnDevice &&
		int(c.Scalar.Pointer())%scalar.Size() != 0 {
		return weft.Invalidf("%v: a scalar of %v at %#x; its address is a multiple of %d", c.Collective, scalar,
			uint64(c.Scalar.Pointer()), scalar.Size())
	}
	return nil
}

// agree has ranks compare their calls, if they are checked. A capture is not.
func (e *Engine) agree(ctx context.Context, s *weft.Stream, c *spec.Call, chosen string, refused error) error {
	if !e.check {
		return refused
	}
	capturing, err := enginegpu.Capturing(e.proxy.Stream(s))
	if capturing && err == nil {
		return refused
	}
	return spec.Agree(ctx, e.comm, c, chosen, cmp.Or(refused, err))
}

// own is a call that keeps nothing of the caller's but operands.
func own(c *spec.Call) spec.Call {
	d := *c
	d.Counts = spec.Counts{
		Send: slices.Clone(c.Counts.Send), SendAt: slices.Clone(c.Counts.SendAt),
		Recv: slices.Clone(c.Counts.Recv), RecvAt: slices.Clone(c.Counts.RecvAt),
	}
	d.Transfers = slices.Clone(c.Transfers)
	if c.Collective.Reduces() && c.Op == weft.PreMulSum && !c.ScalarOnDevice {
		scalar := new([8]byte)
		copy(scalar[:], c.Scalar.Raw())
		d.Scalar = weft.Tensor{Data: unsafe.Pointer(scalar), DType: c.Scalar.DType, Shape: []int{1}}
	}
	return d
}

// Numbers of operations in records: of a collective its own and one; then those of messages.
const messageNumbers = uint32(spec.Collectives) + 1

var messageNames = [...]string{"send", "receive", "batch"}

func numberOf(c *spec.Call) uint32 {
	if c.Collective != spec.PointToPoint {
		return uint32(c.Collective) + 1
	}
	return messageNumbers + uint32(slices.Index(messageNames[:], c.Name()))
}

var words = &device.Words{
	Operation: func(op uint32) string {
		switch {
		case op == 0 || op >= messageNumbers+uint32(len(messageNames)):
			return ""
		case op >= messageNumbers:
			return messageNames[op-messageNumbers]
		}
		return spec.Collective(op - 1).String()
	},
	Message: func(op uint32) bool { return op >= messageNumbers },
}
