package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan/internal/verify"
	"github.com/weftgo/weft/plan/spec"
)

// Key names a plan by its content.
type Key [sha256.Size]byte

// String is enough of the key for a person.
func (k Key) String() string { return hex.EncodeToString(k[:8]) }

// Plan is a plan that breaks no rule, with what engines ask of it. It is not changed after.
type Plan struct {
	File    *spec.File
	Key     Key
	Verdict *verify.Verdict // nil until it was verified
	Name    string          // in errors: "plan ring"

	Reductions []weft.Op // that its operations have
	Inputs     bool      // some rank reaches the input of another
	Outputs    bool      // or its output
	Pushes     [2]bool   // some rank pushes its own input, or its output, through a port
	Packets    bool      // it has operations on packets
	Mixed      bool      // scratch holds packets, and plain data too

	elements int // sizes of elements divide it, if anything reduces
}

// reductions are those of plans in the words of tensors.
var reductions = [...]weft.Op{spec.Sum: weft.Sum, spec.Min: weft.Min, spec.Max: weft.Max}

// Operator is a plan's reduction as one of tensors.
func Operator(r spec.Reduction) weft.Op { return reductions[r] }

// Of takes a plan apart. It refuses one that breaks a rule, or that no engine can run.
func Of(f *spec.File) (*Plan, error) {
	if f == nil {
		return nil, weft.Invalidf("there is no plan; give one that was loaded or built without an error")
	}
	if err := f.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", weft.ErrInvalid, err)
	}
	p := &Plan{File: f, Key: f.Sum(), Name: "plan " + f.Name, elements: f.Alignment}
	data := false
	for at, op := range f.All() {
		if op.Kind == spec.Pipeline {
			p.elements = common(p.elements, op.Unit)
		}
		rank := &f.Ranks[at.Rank]
		data = p.add(rank, &rank.Blocks[at.Block], op) || data
	}
	p.Mixed = p.Packets && data
	if p.Packets && f.Alignment%PacketBytes != 0 {
		return nil, weft.Unsupportedf("%s: packets carry %d bytes each, and its alignment is %d; make it a multiple",
			p.Name, PacketBytes, f.Alignment)
	}
	without := slices.DeleteFunc(ranksOf(f), func(r int) bool { return f.Ranks[r].Input > 0 || f.Ranks[r].Output > 0 })
	if len(without) > 0 && len(without) < len(f.Ranks) {
		return nil, weft.Unsupportedf("%s: rank %d has neither input nor output, so it cannot know the size of a message",
			p.Name, without[0])
	}
	return p, nil
}

func ranksOf(f *spec.File) (all []int) {
	for r := range f.Ranks {
		all = append(all, r)
	}
	return all
}

// PacketBytes is what a packet carries at least, beside a flag of as many bytes.
const PacketBytes = 4

// common is the greatest divisor of both.
func common(a int, b uint64) int {
	for b > 0 {
		a, b = int(b), uint64(a)%b
	}
	return a
}

// add notes what an operation needs, and says whether it has plain data in scratch.
func (p *Plan) add(rank *spec.Rank, block *spec.Block, op *spec.Op) (data bool) {
	if op.Kind.Reduces() && !slices.Contains(p.Reductions, Operator(op.Reduce)) {
		p.Reductions = append(p.Reductions, Operator(op.Reduce))
	}
	p.Packets = p.Packets || op.Kind.Packets()
	for _, source := range []bool{true, false} {
		all := op.Dst
		if source {
			all = op.Src
		}
		for i, place := range all {
			buffer, peers := place.Buffer, false
			switch place.At {
			case spec.RemoteBuffer:
				buffer, peers = rank.Remotes[block.Remote(op.Via, place.ID)].Buffer, true
			case spec.Members:
				buffer, peers = rank.Switches[block.Channel(spec.Switched, place.ID)].Buffer, true
			}
			data = data || buffer == spec.Scratch && !op.Slot(source, i)
			p.Inputs = p.Inputs || peers && buffer == spec.Input
			p.Outputs = p.Outputs || peers && buffer == spec.Output
			if source && op.Via == spec.Port && buffer != spec.Scratch {
				p.Pushes[buffer] = true
			}
		}
	}
	return data
}

// Scratch is the bytes of a half of each rank's scratch in a launch, the same on all ranks, or of all of it if the plan
// has no halves.
func (p *Plan) Scratch(chunk int) int {
	most := 0
	for r := range p.File.Ranks {
		most = max(most, p.File.Ranks[r].Scratch)
	}
	if p.File.Protocol == spec.LL {
		most *= 2
	}
	return most * chunk
}

// At names an operation of the plan, for errors.
func (p *Plan) At(s spec.Site) string {
	if op := p.File.At(s); op != nil {
		return fmt.Sprintf("%s: %v (%v)", p.Name, s, op.Kind)
	}
	return fmt.Sprintf("%s: %v", p.Name, s)
}
