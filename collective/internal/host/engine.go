package host

import (
	"context"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
)

// Engine runs the collectives of a group.
type Engine struct {
	named    [1]*algorithm // by the call
	forced   []*algorithm
	call     call
	exchange *exchange
}

// New makes an engine with so many bytes of each rank's memory to stage operands. It is collective,
// and the only place where the engine allocates memory. Algorithms that are forced are used wherever
// they support the request, in their order.
func New(ctx context.Context, comm *weft.Comm, scratch int, force []string) (*Engine, error) {
	e := &Engine{}
	for _, name := range force {
		if a := algorithmNamed(name); a != nil {
			e.forced = append(e.forced, a)
		}
	}
	// A round has room for a cache line from a rank to each, whatever the scratch.
	ring := max(scratch, enginehost.RingShare*64*comm.Size())
	boxes := mailboxesFor(comm.Size(), scratch)
	rounds, err := enginehost.New(ctx, comm, enginehost.Config{
		Kind: "group", Ring: ring, Own: boxes.bytes(), Differs: spec.Differs, Chooses: chooses,
	})
	if err != nil {
		return nil, err
	}
	e.call = newCall(rounds)
	e.exchange = newExchange(&e.call, boxes)
	return e, nil
}

// Rounds are those in which the engine's ranks talk, for tests.
func (e *Engine) Rounds() *enginehost.Rounds { return e.call.Rounds }

// Algorithms implements [spec.Engine].
func (e *Engine) Algorithms() []spec.Algorithm { return Algorithms() }

// Close implements [spec.Engine]. Peers that are still in an operation that this rank has finished may
// go on reading its memory.
func (e *Engine) Close() (released bool, err error) { return true, e.call.Window.Close() }

// Begin implements [spec.Engine].
func (e *Engine) Begin(op string) error { return e.call.Begin(op) }

// Run implements [spec.Engine].
func (e *Engine) Run(ctx context.Context, s *weft.Stream, given *spec.Call, refused error) (string, error) {
	c := &e.call
	c.given, c.name = given, given.Collective.String()
	if refused == nil {
		refused = onHost(s, given)
	}
	c.Request = given.Request(len(c.Live), c.Room())
	var named *algorithm
	if refused == nil {
		named, refused = c.named(given.Algorithm)
	}
	if refused != nil {
		return "", c.opened(ctx, c.Refuse(refused), refused)
	}
	c.begin(given)
	forced := e.forced
	if named != nil {
		e.named[0] = named
		forced = e.named[:]
	}
	varies := c.Collective == spec.AllToAllV
	if varies {
		if err := c.exchangeCounts(ctx); err != nil {
			return "", err
		}
	}
	f := atOnce(&c.Request, forced)
	if f == nil {
		if !varies {
			if err := c.exchangeOperands(ctx); err != nil {
				return "", err
			}
		}
		f = afterExchange(&c.Request, forced)
	}
	if named != nil && f != named.form {
		return "", unsupports(named, &c.Request)
	}
	name := f.names[c.Collective]
	if err := f.run(ctx, c); err != nil {
		return name, err
	}
	// If this rank was told of a failure meanwhile the others may have gone on without it, and what
	// it has read may be what they wrote later.
	return name, c.Comm.Operations().Begin(c.name)
}

// named is the algorithm that a call names, if it does; ranks compare their choices. It is refused before
// anything moves: at once what is eager, else when ranks have told each other where their operands are.
func (c *call) named(name string) (*algorithm, error) {
	c.Choice = 0
	if name == "" {
		return nil, nil
	}
	for i := range algorithms {
		a := &algorithms[i]
		if a.Name != name || a.Collective != c.Collective {
			continue
		}
		if a.Eager && a.Collective != spec.AllToAllV && !a.Supports(c.Request) {
			return nil, unsupports(a, &c.Request)
		}
		c.Choice = uint32(1 + i)
		return a, nil
	}
	return nil, weft.Invalidf("%v: there is no algorithm %q on the host", c.Collective, name)
}

func unsupports(a *algorithm, q *spec.Request) error {
	where := ""
	if q.Windows != 0 {
		where = fmt.Sprintf(", windows: %v", q.Windows)
	}
	return weft.Unsupportedf("%v: %s does not support %d bytes of %v on %d ranks%s; name another algorithm or none",
		q.Collective, a.Name, q.Bytes, q.DType, q.Ranks, where)
}

// chooses says which algorithms calls name that are alike otherwise.
func chooses(own, peer uint32) string {
	words := func(choice uint32) string {
		if choice == 0 || int(choice) > len(algorithms) {
			return "no algorithm"
		}
		return algorithms[choice-1].Name
	}
	return fmt.Sprintf("it names %s, this rank %s", words(peer), words(own))
}

// onHost refuses what is of GPUs.
func onHost(s *weft.Stream, c *spec.Call) error {
	switch {
	case s != nil:
		return weft.Unsupportedf("%s: the host engine has no streams; pass nil", c.Name())
	case c.Op == weft.PreMulSum && c.ScalarOnDevice:
		return weft.Unsupportedf("%v: the host engine reads no scalar of a GPU; pass one of the host's", c.Collective)
	case !c.DeviceCounts.Send.IsZero():
		return weft.Unsupportedf("%v: the host engine reads no counts of a GPU; pass them as Counts", c.Collective)
	}
	return nil
}
