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
	rounds, err := enginehost.New(ctx, comm, enginehost.Config{Kind: "group", Ring: scratch, Differs: spec.Differs})
	if err != nil {
		return nil, err
	}
	c := &e.call
	c.Rounds = rounds
	c.rows, c.pieces = make([][]byte, comm.Size()), make([][]byte, comm.Size())
	c.ins, c.outs = make([][]byte, comm.Size()), make([][]byte, comm.Size())
	c.staging.enough, c.sharing.enough = tuning.Staging, tuning.Sharing
	c.bounce = make([]byte, bounceBytes)
	c.inputs = make([]enginehost.OperandRef, comm.Size())
	c.outputs = make([]enginehost.OperandRef, comm.Size())
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
	c.Request = given.Request(len(c.Live), c.Room())
	c.in, c.out, c.inPlace = nil, nil, given.InPlace
	if given.Collective.HasInput(c.Comm.Rank(), c.Root) {
		c.in = given.In.Raw()
	}
	if given.Collective.HasOutput(c.Comm.Rank(), c.Root) {
		c.out = given.Out.Raw()
	}
	c.stream = len(c.out) >= tuning.Stream
	a := eager(&c.Request, e.forced)
	if a == nil {
		if err := c.exchangeOperands(ctx); err != nil {
			return "", err
		}
		if a = afterExchange(&c.Request, e.forced); a == nil {
			return "", weft.Unsupportedf("%v: there is no algorithm on the host", given.Collective)
		}
	}
	if err := a.run(ctx, c); err != nil {
		return a.Name, err
	}
	// If this rank was told of a failure meanwhile the others may have gone on without it, and what
	// it has read may be what they wrote later.
	return a.Name, c.Comm.Operations().Begin(c.name)
}

// onHost refuses what is of GPUs.
func onHost(s *weft.Stream, c *spec.Call) error {
	switch {
	case s != nil:
		return weft.Unsupportedf("%v: the host engine has no streams; pass nil", c.Collective)
	case c.Op == weft.PreMulSum && c.ScalarOnDevice:
		return weft.Unsupportedf("%v: the host engine reads no scalar of a GPU; pass one of the host's", c.Collective)
	}
	return nil
}
