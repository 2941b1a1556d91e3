package collective

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weftgo/weft"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	enginehost "github.com/weftgo/weft/engine/host"
)

// compared compares users' algorithms, whose names are the same on all ranks: one after the other, so that the
// error names the first that differs. Those for another number of ranks stay in the list, and fit no call.
func compared(ctx context.Context, comm *weft.Comm, op string, own []Algorithm) ([]Algorithm, error) {
	own = slices.Clone(own)
	for i := range own {
		a := &own[i]
		if err := comm.Operations().VerifySame(ctx, op+": algorithm "+a.Name, a.OwnText(), nil); err != nil {
			return nil, err
		}
		if a.Program != nil && a.WorldSize > 0 && a.WorldSize != comm.Size() {
			// It counts all ranks of a communicator, masked ones too, so no call here is for it.
			a.Program, a.Supports = unopened{a.Program}, func(Request) bool { return false }
			a.Demands = fmt.Sprintf("is for a communicator of %d ranks", a.WorldSize)
		}
	}
	return own, nil
}

// unopened is a program for another number of ranks, which runs nothing.
type unopened struct{ Program }

// Open implements [spec.Program].
func (unopened) Open(context.Context, *weft.Comm, *enginehost.Rounds, *enginegpu.Room) (Runner, error) {
	return unopened{}, nil
}

// Run implements [spec.Runner].
func (unopened) Run(context.Context, *weft.Stream, *Call) error {
	panic("collective: no call fits the algorithm")
}

// Close implements [spec.Runner].
func (unopened) Close() (released bool, err error) { return true, nil }

func namesOf(own []Algorithm) string {
	names := make([]string, len(own))
	for i := range own {
		names[i] = own[i].Name
	}
	return strings.Join(names, " ")
}

// checkOwn says what is wrong with users' algorithms.
func checkOwn(comm *weft.Comm, op string, own []Algorithm, loopback int) error {
	if len(own) == 0 {
		return nil
	}
	for i := range own {
		switch {
		case own[i].Program != nil:
		case comm.Device() == nil:
			return weft.Unsupportedf("%s: algorithm %s is a kernel, and the ranks are on the host; give it to a group on GPUs",
				op, own[i].Name)
		default:
			if err := comm.Operations().OneHost(op + ": algorithm " + own[i].Name); err != nil {
				return err
			}
		}
	}
	if loopback != 0 {
		return weft.Unsupportedf("%s: algorithm %s would wait for ranks that a loopback does not have", op, own[0].Name)
	}
	for i := range own {
		if err := own[i].CheckOwn(); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if known(comm, own[:i], own[i].Name) {
			return weft.Invalidf("%s: there are two algorithms %q; give yours another name", op, own[i].Name)
		}
	}
	return nil
}

// selected asks the group's selector for a call's algorithm.
func (g *Group) selected(c *Call) (string, error) {
	q, err := g.engine.Request(c)
	if err != nil {
		return "", err
	}
	g.fit = g.fit[:0]
	for i := range g.all {
		if g.all[i].Fits(q) {
			g.fit = append(g.fit, g.all[i])
		}
	}
	return g.selector(q, g.fit), nil
}
