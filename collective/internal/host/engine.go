package host

import (
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
)

// Engine runs the collectives of a group.
type Engine struct {
	forced []*algorithm
	call   call
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
	rounds, err := enginehost.New(ctx, comm, enginehost.Config{Kind: "group", Ring: ring, Differs: spec.Differs})
	if err != nil {
		return nil, err
	}
	e.call = newCall(rounds)
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
	if refused != nil {
		return "", c.opened(ctx, c.Refuse(refused), refused)
	}
	c.begin(given)
	varies := c.Collective == spec.AllToAllV
	if varies {
		if err := c.exchangeCounts(ctx); err != nil {
			return "", err
		}
	}
	f := atOnce(&c.Request, e.forced)
	if f == nil {
		if !varies {
			if err := c.exchangeOperands(ctx); err != nil {
				return "", err
			}
		}
		f = afterExchange(&c.Request, e.forced)
	}
	name := f.names[c.Collective]
	if err := f.run(ctx, c); err != nil {
		return name, err
	}
	// If this rank was told of a failure meanwhile the others may have gone on without it, and what
	// it has read may be what they wrote later.
	return name, c.Comm.Operations().Begin(c.name)
}

// onHost refuses what is of GPUs.
func onHost(s *weft.Stream, c *spec.Call) error {
	switch {
	case s != nil:
		return weft.Unsupportedf("%v: the host engine has no streams; pass nil", c.Collective)
	case c.Op == weft.PreMulSum && c.ScalarOnDevice:
		return weft.Unsupportedf("%v: the host engine reads no scalar of a GPU; pass one of the host's", c.Collective)
	case !c.DeviceCounts.Send.IsZero():
		return weft.Unsupportedf("%v: the host engine reads no counts of a GPU; pass them as Counts", c.Collective)
	}
	return nil
}
