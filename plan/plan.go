package plan

import (
	"io"

	"github.com/weftgo/weft/plan/internal/draw"
	"github.com/weftgo/weft/plan/internal/simulate"
	"github.com/weftgo/weft/plan/internal/verify"
	"github.com/weftgo/weft/plan/lowering"
	"github.com/weftgo/weft/plan/spec"
)

// File is a plan as it is read and written.
type File = spec.File

// Error is a rule that a plan breaks; it names rank, block and operation.
type Error = spec.Error

// Verdict is what [Verify] knows of a plan.
type Verdict = verify.Verdict

// Finding is a defect of a plan, with the operations that lead to it.
type Finding = verify.Finding

// Event is an operation of a finding, and what it does there.
type Event = verify.Event

// Class is a kind of defect.
type Class = verify.Class

// The classes.
const (
	Structure   = verify.Structure   // it breaks a rule of the file
	SharedSide  = verify.SharedSide  // several blocks use one side of a channel or semaphore
	Deadlock    = verify.Deadlock    // blocks wait for what never comes
	Balance     = verify.Balance     // a launch leaves a counter otherwise than it found it
	WeakOrder   = verify.WeakOrder   // only packets or relaxed signals order plain data
	Race        = verify.Race        // nothing orders operations of two blocks
	RaceInBlock = verify.RaceInBlock // a nop is missing between two operations
	Packets     = verify.Packets     // slots are written twice, mixed with data, or sent unready
	Lifetime    = verify.Lifetime    // a buffer may be used before its owner begins, or after it ends
	Result      = verify.Result      // outputs are not what the collective defines
	Fusion      = verify.Fusion      // fused operations mean something else
	Limits      = verify.Limits      // more than another executor can do
	Undecided   = verify.Undecided   // more than the verifier tries
)

// Load reads a plan and refuses what breaks a rule, with an [*Error].
func Load(text []byte) (*File, error) {
	f, err := spec.Decode(text)
	if err == nil {
		err = f.Check()
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Verify proves that a plan is right, or shows why not: in every order of events it ends, operations on the same
// bytes are ordered, outputs are what the collective defines, and it can be launched again. What it passes without
// a finding fails in no run.
func Verify(f *File) *Verdict { return verify.Plan(f) }

// VerifyProgram verifies the plan of a recorded program, and says where fusion changed what the program means, which
// the plan alone does not show. It is an error if the recording gives no plan.
func VerifyProgram(p *lowering.Program) (*Verdict, error) {
	f, err := p.File()
	if err != nil {
		return nil, err
	}
	v := Verify(f)
	if !p.Fuse || f.Check() != nil {
		return v, nil
	}
	single := *p
	single.Fuse = false
	apart, err := single.File()
	if err != nil || apart.Check() != nil {
		return v, err
	}
	return v.With(verify.Fused(f, apart)), nil
}

// Same says which buffer two plans leave with different contents, or nothing. Both must end.
func Same(a, b *File) string { return verify.Same(a, b) }

// Simulation chooses a run of [Simulate].
type Simulation = simulate.Options

// Report is what came of a simulated run.
type Report = simulate.Report

// Simulate runs a plan in this process, under the order of events that a seed chooses, and compares outputs with the
// collective's. What [Verify] calls an error, some seed shows; the same seed shows it again.
func Simulate(f *File, o Simulation) Report { return simulate.Run(f, o) }

// Draw writes a picture of a plan, as SVG: ranks, blocks, time, and what waits for what.
func Draw(w io.Writer, f *File) error { return draw.SVG(w, f) }
