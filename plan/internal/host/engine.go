package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weftgo/weft"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/internal/rankset"
	"github.com/weftgo/weft/plan/internal/launch"
)

// Engine implements [launch.Engine] on the host.
type Engine struct {
	comm   *weft.Comm
	rounds *enginehost.Rounds
	owned  bool               // the rounds are
	loaded map[uint64]*Loaded // by number
	shared scratch            // of plans that share it
	stage  stage
	moves  moves
	far    *far // nil where all ranks are of one host
}

// New makes an engine. It is collective.
func New(ctx context.Context, comm *weft.Comm) (*Engine, error) {
	var e *Engine
	rounds, err := enginehost.New(ctx, comm, enginehost.Config{
		Kind: "executor", Differs: func(calls rankset.Camps[uint64]) string { return e.differ(calls) },
	})
	if err != nil {
		return nil, err
	}
	e = On(comm, rounds)
	e.owned = true
	return e, nil
}

// On makes an engine that talks in rounds of another owner's, who opens its launches: see [Loaded.RunOpened].
func On(comm *weft.Comm, rounds *enginehost.Rounds) *Engine {
	e := &Engine{comm: comm, rounds: rounds, loaded: make(map[uint64]*Loaded), moves: newMoves()}
	if comm.Operations().Spans() {
		e.far = newFar(comm, rounds)
	}
	return e
}

// A call is what ranks compare of a launch: bytes of a chunk, the element type, and the plan by a part of its key.
const (
	chunkBits = 40
	typeBits  = 6
	planBits  = 63 - chunkBits - typeBits
)

func callOf(l *launch.Launch, number uint64) uint64 {
	return uint64(l.Chunk) | uint64(l.DType)<<chunkBits | number<<(chunkBits+typeBits)
}

func numberOf(k launch.Key) uint64 { return binary.LittleEndian.Uint64(k[:]) & (1<<planBits - 1) }

// differs says how two calls differ.
func (e *Engine) differ(calls rankset.Camps[uint64]) string {
	return calls.Calling("runs", func(call uint64) string {
		name := "a plan that this rank does not know"
		if l := e.loaded[call>>(chunkBits+typeBits)]; l != nil {
			name = l.plan.Name
		}
		return fmt.Sprintf("%s on chunks of %d bytes of %v", name, call&(1<<chunkBits-1),
			weft.DType(call>>chunkBits&(1<<typeBits-1)))
	})
}

// Begin implements [launch.Engine].
func (e *Engine) Begin(op string) error { return e.rounds.Begin(op) }

// Load implements [launch.Engine].
func (e *Engine) Load(ctx context.Context, p *launch.Plan) (launch.Loaded, error) {
	return e.LoadPlan(ctx, p)
}

// LoadPlan is Load.
func (e *Engine) LoadPlan(ctx context.Context, p *launch.Plan) (*Loaded, error) {
	if other := e.loaded[numberOf(p.Key)]; other != nil {
		return nil, weft.Unsupportedf("%s: this executor cannot tell it from %s, by %d bits of a hash; make another one",
			p.Name, other.plan.Name, planBits)
	}
	l, err := newLoaded(ctx, e, p)
	if err != nil {
		return nil, err
	}
	e.loaded[l.number] = l
	return l, nil
}

// Close implements [launch.Engine]. Peers that are still in a launch that this rank has ended may go on reading its
// memory.
func (e *Engine) Close() (released bool, err error) {
	errs := []error{e.shared.close(), e.stage.close()}
	if e.owned {
		errs = append(errs, e.rounds.Window.Close())
	}
	for _, l := range e.loaded {
		errs = append(errs, l.Close())
	}
	return true, errors.Join(errs...)
}
