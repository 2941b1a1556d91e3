package lowering

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/weftgo/weft/plan/spec"
)

// Program is what a program recorded.
type Program struct {
	Name           string
	Collective     string
	Protocol       spec.Protocol
	InPlace        bool `json:"inplace"`
	ReuseResources bool `json:"reuse_resources"`
	Threads        int
	DoubleScratch  bool `json:"double_scratch"`
	Alignment      int
	MinBytes       uint64 `json:"min_bytes"`
	MaxBytes       uint64 `json:"max_bytes"`

	Instances int  // how often all of it is repeated, with chunks that are so many times smaller
	Fuse      bool // operations may become one
	Sync      bool // barriers of a block's threads are placed where its operations touch the same
	Sound     bool // see the package

	Ranks []Rank
	Loops []Loop
}

// Rank is what one rank has, in the order in which it was made, and does.
type Rank struct {
	Input, Output, Scratch int
	Channels               []Channel // the k-th of a type has number k
	Switches               []Switch
	Semaphores             []int
	Ops                    []Op
}

// Channel leads to a peer.
type Channel struct {
	Type string // "memory" or "port"
	Peer int
}

// Switch is a channel to a buffer of several ranks.
type Switch struct {
	Buffer string
	Ranks  []int
}

// Loop is a pipeline, which operations name by its position.
type Loop struct {
	Unit   uint64
	Chunks int
}

// Op is an operation as it was recorded.
type Op struct {
	Block    int
	Kind     string
	Via      string // "memory", "port", "switch" or none
	Channels []int  // of the rank
	Src, Dst []Chunk
	Reduce   string
	Group    *Group

	Before, After bool // the block's threads wait for each other before and after it

	Blocks     []int // of a barrier: those that meet
	Semaphores []int
	Loop       *int // the pipeline that it is in
}

// Group is a block's position in a group.
type Group struct{ ID, Size int }

// Chunk is a range of chunks of a rank's buffer. In a source or destination that is a switch's, the buffer is
// empty, and the op's channel says which.
type Chunk struct {
	Rank        int
	Buffer      string
	Index, Size int
}

// Decode reads a recording.
func Decode(text []byte) (*Program, error) {
	p := new(Program)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return nil, fmt.Errorf("plan: a recording that cannot be read: %w", err)
	}
	return p, nil
}

// File is the plan of the program, or an error where the recording names what there is not. It may still break
// rules of plans, as a program's does that waits for nobody: [spec.File.Check] says.
func (p *Program) File() (*spec.File, error) {
	if p.Instances < 1 || p.Instances > most {
		return nil, fmt.Errorf("plan: %d instances; they are from 1 to %d", p.Instances, most)
	}
	f := &spec.File{
		Name: p.Name, Collective: p.Collective, Protocol: p.Protocol, InPlace: p.InPlace, ReuseResources: p.ReuseResources,
		Ranks: make([]spec.Rank, len(p.Ranks)), Threads: p.Threads, DoubleScratch: p.DoubleScratch, Alignment: p.Alignment,
		MinBytes: p.MinBytes, MaxBytes: p.MaxBytes,
	}
	for r := range p.Ranks {
		rank, err := p.rank(r)
		if err != nil {
			return nil, err
		}
		f.Ranks[r] = *rank
	}
	return f, nil
}

// rank makes the program of a rank.
func (p *Program) rank(r int) (*spec.Rank, error) {
	t, err := p.tables(r)
	if err != nil {
		return nil, err
	}
	rules := rules{sound: p.Sound, rank: r, has: &t.rank, contended: contended(&t.rank, t.ops)}
	for b, ops := range t.ops {
		rules.block = &t.rank.Blocks[b]
		if p.Fuse {
			ops = rules.fuse(ops)
		}
		ops = orderThreads(ops)
		if p.Sync {
			ops = rules.separate(ops)
		}
		rules.block.Ops = plain(ops)
	}
	return replicate(&t.rank, p.Instances), nil
}

// rules are those that a block is lowered by.
type rules struct {
	sound bool
	rank  int
	has   *spec.Rank
	block *spec.Block
	ops   int // how many operations have been looked at

	contended map[counter]bool
}

// op is an operation while rules are applied to it.
type op struct {
	spec.Op
	before, after bool
	channels      set   // of signals, waits and flushes, in place of the list
	inner         []*op // of a pipeline
}

// plain is the operations as a plan has them.
func plain(ops []*op) []spec.Op {
	all := make([]spec.Op, 0, len(ops))
	for _, o := range ops {
		if o.channels != nil {
			o.Channels = o.channels.list()
		}
		if o.Kind == spec.Pipeline {
			o.Ops = plain(o.inner)
		}
		all = append(all, o.Op)
	}
	return all
}
