package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/internal/choice"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/internal/rankset"
)

// Engine runs the collectives of a group.
type Engine struct {
	algorithms []*algorithm
	choice     *choice.Chooser
	call       call
	exchange   *exchange
	check      bool
	normed     normed
	owns       []spec.Runner // of users' algorithms
	placed     bool          // one of these asks whether operands are in place
}

// Options configures an [Engine]. All ranks pass the same.
type Options struct {
	Scratch int              // bytes of each rank's memory to stage operands
	Force   []string         // algorithms that are used wherever they fit the request, in their order
	Model   *spec.Model      // what algorithms cost
	Own     []spec.Algorithm // users', which were checked and compared
	Check   bool             // ranks first compare all of their calls
}

// New makes an engine. It is collective, and allocates all memory that peers reach.
func New(ctx context.Context, comm *weft.Comm, o Options) (*Engine, error) {
	e := &Engine{algorithms: slices.Clone(algorithms), check: o.Check}
	for i := range o.Own {
		e.algorithms = append(e.algorithms, &algorithm{Algorithm: o.Own[i], form: e.formOf(i, &o.Own[i])})
		e.placed = e.placed || o.Own[i].InPlace != spec.AnyPlace
	}
	list := make([]*spec.Algorithm, len(e.algorithms))
	for i, a := range e.algorithms {
		list[i] = &a.Algorithm
	}
	e.choice = choice.New(list, o.Force, o.Model)
	room := Room(o.Scratch, comm.Size())
	if comm.Operations().Spans() {
		o.Scratch = spannedScratch(comm, o.Scratch)
		room = max(Room(o.Scratch, comm.Size()), 4*64*comm.Size()) // for partials of fp8 in fp32
	}
	ring := enginehost.RingShare * room
	boxes := mailboxesFor(comm.Size(), o.Scratch)
	rounds, err := enginehost.New(ctx, comm, enginehost.Config{
		Kind: "group", Ring: ring, Own: boxes.bytes(), Lines: boxes.lines(), Differs: spec.Differ, Chooses: e.chooses,
	})
	if err != nil {
		return nil, err
	}
	e.call = newCall(rounds)
	if comm.Operations().Spans() {
		if e.call.hosts, err = newHosts(ctx, comm, ring); err != nil {
			return nil, errors.Join(err, rounds.Window.Close())
		}
		e.call.hosts.within.RecordWith(rounds)
	}
	e.exchange = newExchange(&e.call, boxes)
	for i := range o.Own {
		own, err := o.Own[i].Program.Open(ctx, comm, rounds, nil)
		if err != nil {
			_, more := e.Close()
			return nil, errors.Join(fmt.Errorf("algorithm %s: %w", o.Own[i].Name, err), more)
		}
		e.owns = append(e.owns, own)
	}
	return e, nil
}

// formOf runs the calls of the i-th user's algorithm.
func (e *Engine) formOf(i int, a *spec.Algorithm) *form {
	return &form{name: a.Name, supports: a.Supports, run: func(ctx context.Context, c *call) error {
		return e.owns[i].Run(ctx, nil, c.given)
	}}
}

// Room is about how many bytes a round carries: at least a cache line from a rank to each.
func Room(scratch, ranks int) int { return max(scratch/enginehost.RingShare, 64*ranks) }

// Rounds are those in which the engine's ranks talk, for tests.
func (e *Engine) Rounds() *enginehost.Rounds { return e.call.Rounds }

// OnStep has a function called whenever this rank gets on in a call; nil: none.
func (e *Engine) OnStep(step func()) {
	e.call.Step = step
	if e.call.hosts != nil {
		e.call.hosts.within.Step = step
	}
}

// Algorithms implements [spec.Engine].
func (e *Engine) Algorithms() []spec.Algorithm { return specs(e.algorithms) }

// Close implements [spec.Engine]. Peers that are still in an operation that this rank has finished may
// go on reading its memory.
func (e *Engine) Close() (released bool, err error) {
	var errs []error
	for _, own := range e.owns {
		_, err := own.Close()
		errs = append(errs, err)
	}
	return true, errors.Join(append(errs, e.call.hosts.close(), e.call.Window.Close())...)
}

// Begin implements [spec.Engine].
func (e *Engine) Begin(op string) error {
	if err := e.call.Begin(op); err != nil || e.call.hosts == nil {
		return err
	}
	return e.call.hosts.begin(&e.call, op)
}

// Request implements [spec.Engine]. Which operands lie in windows is not known, and other ranks are taken to be in
// place where this one is. Where some are not, they may choose otherwise, and the call is refused on all.
func (e *Engine) Request(c *spec.Call) (spec.Request, error) {
	q := e.call.request(c)
	if e.placed && c.InPlace && c.Collective.PlacedAlike() {
		q.Windows |= spec.InPlace
	}
	return q, nil
}

// Run implements [spec.Engine].
func (e *Engine) Run(ctx context.Context, s *weft.Stream, given *spec.Call, refused error) (string, error) {
	c := &e.call
	c.given, c.name = given, given.Name()
	if refused == nil {
		refused = onHost(s, given)
	}
	c.Choice = 0
	named := -1
	if refused == nil {
		c.begin(given)
		c.Moves(c.Bytes)
		named, refused = e.named(given.Algorithm)
	}
	if e.check {
		if err := spec.Agree(ctx, c.Comm, given, "", refused); err != nil {
			return "", err
		}
	}
	if refused != nil {
		return "", c.opened(ctx, c.Refuse(refused), refused)
	}
	if given.Norm != nil {
		e.normed.begin(c)
	}
	if err := c.awaitReady(ctx); err != nil {
		return "", err
	}
	a, err := e.choose(ctx, named)
	if err != nil {
		return "", err
	}
	if err := a.form.run(ctx, c); err != nil {
		return a.Name, err
	}
	if given.Norm != nil {
		e.normed.end(c)
	}
	c.taken()
	if c.Bytes == 0 {
		for _, r := range c.Live {
			c.landed(r, 0, 0)
		}
	}
	// If this rank was told of a failure meanwhile the others may have gone on without it, and what
	// it has read may be what they wrote later.
	if err := c.Comm.Operations().Begin(c.name); err != nil {
		return a.Name, err
	}
	c.End()
	return a.Name, nil
}

// choose chooses the call's algorithm. Ranks tell each other what the choice depends on, if need be.
func (e *Engine) choose(ctx context.Context, named int) (*algorithm, error) {
	c := &e.call
	varies := c.Collective == spec.AllToAllV
	if varies {
		if err := c.exchangeCounts(ctx); err != nil {
			return nil, err
		}
	}
	i := named
	switch {
	case named >= 0:
	case varies:
		i = e.choice.Choose(&c.Request)
	default:
		i = e.choice.AtOnce(&c.Request)
	}
	if !varies && (i < 0 || !e.algorithms[i].Eager) {
		if err := c.exchangeOperands(ctx); err != nil {
			return nil, err
		}
		if named < 0 {
			i = e.choice.AfterExchange(&c.Request)
		}
	}
	switch {
	case i < 0:
		return nil, weft.Unsupportedf("%v: no algorithm has a known cost; name one", c.Collective)
	case named >= 0 && !e.algorithms[i].Fits(c.Request):
		return nil, e.algorithms[i].Misfit(c.Request)
	}
	return e.algorithms[i], nil
}

// Ranks compare a choice with each call: the number of the algorithm that it names, or 0, and a digest of the
// scalar by which it multiplies.
const (
	choiceBits = 12
	digestBits = 32 - choiceBits
)

func scalarDigest(c *spec.Call) uint32 {
	const golden = 0x9E3779B97F4A7C15
	return uint32(c.ScalarBits() * golden >> (64 - digestBits) << choiceBits)
}

// named is the index of the algorithm that a call names, or -1. It is refused before anything moves: at once
// what is eager, else when ranks have told each other where their operands are.
func (e *Engine) named(name string) (int, error) {
	c := &e.call
	if c.Op == weft.PreMulSum {
		c.Choice = scalarDigest(c.given)
	}
	if name == "" {
		return -1, nil
	}
	i := e.choice.Named(name)
	if i < 0 {
		return -1, e.choice.Unknown(c.Collective, name, "on the host")
	}
	if of := e.algorithms[i].Collective; of != c.Collective {
		return -1, weft.Invalidf("%v: %s is an algorithm of %v", c.Collective, name, of)
	}
	a := e.algorithms[i]
	if a.Eager && a.Collective != spec.AllToAllV && !a.Fits(c.Request) {
		return -1, a.Misfit(c.Request)
	}
	c.Choice |= uint32(1 + i)
	return i, nil
}

// chooses says how calls differ that are alike otherwise.
func (e *Engine) chooses(choices rankset.Camps[uint32]) string {
	words := func(choice uint32) string {
		if choice == 0 || int(choice) > len(e.algorithms) {
			return "no algorithm"
		}
		return e.algorithms[choice-1].Name
	}
	const names = 1<<choiceBits - 1
	if named := rankset.Regroup(choices, func(c uint32) uint32 { return c & names }); named.Differ() {
		return named.Calling("names", words)
	}
	return fmt.Sprintf("%v by another scalar on %s than on %s; WEFT_CHECK=1 says which", e.call.given,
		rankset.Names(choices[0].Ranks), rankset.Names(choices[len(choices)-1].Ranks))
}

// onHost refuses what is of GPUs.
func onHost(s *weft.Stream, c *spec.Call) error {
	switch {
	case s != nil:
		return weft.Unsupportedf("%s: the host engine has no streams; pass none", c.Name())
	case c.Blocks > 0 || c.Threads > 0 || len(c.Extras) > 0:
		return weft.Unsupportedf("%s: the host engine has neither blocks nor threads nor extras; leave them out", c.Name())
	case c.Op == weft.PreMulSum && c.ScalarOnDevice:
		return weft.Unsupportedf("%v: the host engine reads no scalar of a GPU; pass one of the host's", c.Collective)
	case !c.DeviceCounts.Send.IsZero():
		return weft.Unsupportedf("%v: the host engine reads no counts of a GPU; pass them as Counts", c.Collective)
	}
	return nil
}
