package spec

import (
	"fmt"
	"iter"
	"slices"
)

// File is a plan.
type File struct {
	Name           string
	Collective     string // one of those below, or any other name: then what it computes is not defined
	Protocol       Protocol
	InPlace        bool // it was written for operands in place; only a selector looks at it
	ReuseResources bool // plans of an executor may share scratch
	Ranks          []Rank
	Threads        int // of a block
	DoubleScratch  bool
	Alignment      int // bytes of a unit, by which groups split operations
	MinBytes       uint64
	MaxBytes       uint64
}

// Names of collectives whose results are defined. A [SendRecv] permutes the ranks' inputs. Of a [Broadcast] the root
// alone has an input.
const (
	AllReduce     = "allreduce"
	AllGather     = "allgather"
	ReduceScatter = "reducescatter"
	AllToAll      = "alltoall"
	SendRecv      = "sendrecv"
	Broadcast     = "broadcast"
)

// What a file that does not say it gets.
const (
	DefaultThreads   = 1024
	DefaultAlignment = 16
	DefaultMaxBytes  = ^uint64(0)
)

// Place says where the operands of a rank lie in one region, as the plan wants them: in bytes. If they are apart, an
// output lies behind the longest input of any rank, so at one place on all ranks.
func (f *File) Place(rank, chunk int) (in, out, size int) {
	ins, outs := f.Ranks[rank].Input*chunk, f.Ranks[rank].Output*chunk
	if f.InPlace {
		switch f.Collective {
		case AllReduce, AllToAll:
			return 0, 0, max(ins, outs)
		case AllGather:
			return rank * ins, 0, outs
		case ReduceScatter:
			return 0, rank * outs, ins
		}
	}
	for r := range f.Ranks {
		ins = max(ins, f.Ranks[r].Input*chunk)
	}
	return 0, ins, ins + outs
}

// Protocol says whether scratch is for packets.
type Protocol string

// Plans of protocol LL have twice the scratch.
const (
	Simple Protocol = "Simple"
	LL     Protocol = "LL"
)

// Rank is what one rank does and has.
type Rank struct {
	Input, Output, Scratch int // chunks
	Blocks                 []Block
	Channels               []Channels // of memory and ports, at most one entry a type
	Switches               []Switch
	Remotes                []Remote
	Semaphores             []int // their values before the first launch
}

// Size is the number of chunks of a buffer.
func (r *Rank) Size(b Buffer) int {
	switch b {
	case Input:
		return r.Input
	case Output:
		return r.Output
	}
	return r.Scratch
}

// Peers is the peer of each channel of a type.
func (r *Rank) Peers(t ChannelType) []int {
	for _, c := range r.Channels {
		if c.Type == t {
			return c.Peers
		}
	}
	return nil
}

// Channels is the channels of a rank that have one type. The k-th of a rank to a peer and the k-th of that peer
// to the rank are two ends of one.
type Channels struct {
	Type  ChannelType
	Peers []int
}

// Switch is a channel to a buffer of several ranks at once, in order. The k-th of a rank that has certain
// members and a certain buffer is the k-th of those on each member.
type Switch struct {
	Buffer Buffer
	Ranks  []int
}

// Remote is a buffer of another rank that operations of this one use.
type Remote struct {
	Rank   int
	Buffer Buffer
	Access []ChannelType
}

// Block is a thread block. Its operations name channels and remote buffers by positions in its own lists.
type Block struct {
	Ops      []Op
	Channels []Uses
	Remotes  []Uses
}

// Uses is which of the rank's channels, or of its remote buffers, a block uses through one type of channel.
type Uses struct {
	Type ChannelType
	IDs  []int
}

// Channel is the rank's number of a channel that an operation names.
func (b *Block) Channel(t ChannelType, id int) int { return find(b.Channels, t, id) }

// Remote is the rank's number of a remote buffer that an operation names.
func (b *Block) Remote(t ChannelType, id int) int { return find(b.Remotes, t, id) }

func find(uses []Uses, t ChannelType, id int) int {
	i := slices.IndexFunc(uses, func(u Uses) bool { return u.Type == t })
	if i < 0 || id < 0 || id >= len(uses[i].IDs) {
		return -1
	}
	return uses[i].IDs[id]
}

// Use is the position of a number in a block's list of a type, to which it is added if need be.
func Use(lists *[]Uses, t ChannelType, id int) int {
	i := slices.IndexFunc(*lists, func(u Uses) bool { return u.Type == t })
	if i < 0 {
		i = len(*lists)
		*lists = append(*lists, Uses{Type: t})
	}
	ids := &(*lists)[i].IDs
	k := slices.Index(*ids, id)
	if k < 0 {
		k = len(*ids)
		*ids = append(*ids, id)
	}
	return k
}

// Op is an operation. Fields that its kind does not have are zero, and lists are nil.
type Op struct {
	Kind     Kind
	Src, Dst []Place
	Channels []int // positions in the block's list of the type
	Via      ChannelType
	Reduce   Reduction
	Group    Group

	Barrier, Blocks int // of a Barrier: its number, and how many blocks meet
	Semaphores      []int

	Unit   uint64 // of a Pipeline: bytes of a window
	Chunks int    // of a Pipeline: how many chunks its windows divide
	Ops    []Op   // of a Pipeline
}

// Place is a range of chunks.
type Place struct {
	At Where
	// Buffer is that of a Local or Owned place, and that of a Member of a SwitchReduce.
	Buffer Buffer
	// ID is the position of a Remote buffer or of a switch in the block's list.
	ID          int
	Rank        int // of an Owned place: whose buffer
	Index, Size int
}

// Where a place lies.
type Where uint8

// A place is in a buffer of this rank, or in a remote one, or in those of all members of a switch. An Owned place is
// a local one that names its rank.
const (
	Local Where = iota
	RemoteBuffer
	Members
	Owned
)

// Group says which part of an operation a block does: that of position ID among Size blocks. A Size of 0 is no
// group.
type Group struct{ ID, Size int }

// Part is the units [from, to) of n that are the group's part.
func (g Group) Part(n int) (from, to int) {
	if g.Size == 0 {
		return 0, n
	}
	q, r := n/g.Size, n%g.Size
	return g.ID*q + min(g.ID, r), (g.ID+1)*q + min(g.ID+1, r)
}

// Buffer is one of the three that a rank has.
type Buffer uint8

// The buffers.
const (
	Input Buffer = iota
	Output
	Scratch
)

// String is the name in words.
func (b Buffer) String() string { return [...]string{"input", "output", "scratch"}[b] }

// ChannelType is how blocks reach other ranks.
type ChannelType uint8

// Through memory that is mapped, through a proxy, through a switch.
const (
	NoChannel ChannelType = iota
	Memory
	Port
	Switched
)

var channelNames = [...]string{"", "memory", "port", "switch"}

// String is the name in a file.
func (t ChannelType) String() string { return channelNames[t] }

// Reduction combines elements.
type Reduction uint8

// The reductions.
const (
	NoReduction Reduction = iota
	Sum
	Min
	Max
)

var reductionNames = [...]string{"", "sum", "min", "max"}

// String is the name in a file.
func (r Reduction) String() string { return reductionNames[r] }

// Site is a place in a plan: an operation, or what holds it. Numbers that are -1 are not meant.
type Site struct {
	Rank, Block, Op int
	Inner           int // the operation in a pipeline
}

// Nowhere is the plan as a whole.
var Nowhere = Site{-1, -1, -1, -1}

// String names the rank, the block and the operation.
func (s Site) String() string {
	switch {
	case s.Rank < 0:
		return "plan"
	case s.Block < 0:
		return fmt.Sprintf("rank %d", s.Rank)
	case s.Op < 0:
		return fmt.Sprintf("rank %d, block %d", s.Rank, s.Block)
	case s.Inner < 0:
		return fmt.Sprintf("rank %d, block %d, operation %d", s.Rank, s.Block, s.Op)
	}
	return fmt.Sprintf("rank %d, block %d, operation %d.%d", s.Rank, s.Block, s.Op, s.Inner)
}

// At is the operation at a site, or nil.
func (f *File) At(s Site) *Op {
	if s.Rank < 0 || s.Block < 0 || s.Op < 0 || s.Rank >= len(f.Ranks) || s.Block >= len(f.Ranks[s.Rank].Blocks) ||
		s.Op >= len(f.Ranks[s.Rank].Blocks[s.Block].Ops) {
		return nil
	}
	op := &f.Ranks[s.Rank].Blocks[s.Block].Ops[s.Op]
	if s.Inner < 0 {
		return op
	}
	if s.Inner >= len(op.Ops) {
		return nil
	}
	return &op.Ops[s.Inner]
}

// All is every operation with its site: those of a pipeline come behind it.
func (f *File) All() iter.Seq2[Site, *Op] {
	return func(yield func(Site, *Op) bool) {
		for r := range f.Ranks {
			for b := range f.Ranks[r].Blocks {
				ops := f.Ranks[r].Blocks[b].Ops
				for i := range ops {
					if !yield(Site{r, b, i, -1}, &ops[i]) {
						return
					}
					for k := range ops[i].Ops {
						if !yield(Site{r, b, i, k}, &ops[i].Ops[k]) {
							return
						}
					}
				}
			}
		}
	}
}

// Error is a rule that a plan breaks.
type Error struct {
	Site   Site
	Kind   string // of the operation, if one is meant
	Reason string
}

// Error names the site and the rule.
func (e *Error) Error() string {
	if e.Site.Rank < 0 {
		return "plan: " + e.Reason
	}
	if e.Kind == "" {
		return fmt.Sprintf("plan: %v: %s", e.Site, e.Reason)
	}
	return fmt.Sprintf("plan: %v (%s): %s", e.Site, e.Kind, e.Reason)
}
