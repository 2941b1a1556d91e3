package mirror

import (
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
)

// line is how a sender tells of one value.
type line struct {
	number uint64 // from 1 on
	taken  uint64 // lines of the other direction
	at     uint32 // of the counter in the pad
	bytes  uint32 // of data; telling: there is no counter
	value  uint64
	data   [mostData]byte
}

const (
	mostData  = channel.Stride
	lineHead  = int(unsafe.Offsetof(line{}.data))
	lineBytes = int(unsafe.Sizeof(line{}))
	telling   = 1 << 31
	reserve   = 2 // lines that only tell how many were taken
)

func lineOf(box []byte, number uint64) *line {
	n := uint64(len(box) / lineBytes)
	return (*line)(unsafe.Pointer(&box[int(number%n)*lineBytes]))
}

// layout is where things lie in a rank's part of the window.
type layout struct {
	hosts  []int // by rank
	pad    int   // bytes of a pad, and of a mirror
	box    int   // bytes of the lines of one rank
	others int   // mirrors: of the ranks of other hosts, of a host for which these are the most
}

func layoutOf(comm *weft.Comm, pad, lines int) layout {
	l := layout{hosts: make([]int, comm.Size()), pad: align(pad), box: lines * lineBytes}
	of := map[int]int{}
	for r := range l.hosts {
		l.hosts[r] = comm.Host(r)
		of[l.hosts[r]]++
	}
	for _, n := range of {
		l.others = max(l.others, comm.Size()-n)
	}
	return l
}

func align(n int) int { return (n + channel.Stride - 1) &^ (channel.Stride - 1) }

func (l *layout) inbox(rank int) int  { return l.pad + rank*l.box }
func (l *layout) outbox(rank int) int { return l.pad + (len(l.hosts)+rank)*l.box }

// mirror is where a rank keeps the mirror of another's pad.
func (l *layout) mirror(keeper, of int) int {
	i := 0
	for r := range of {
		if l.hosts[r] != l.hosts[keeper] {
			i++
		}
	}
	return l.spare() + channel.Stride + i*l.pad
}

// spare is a word that nothing reads: see stream.fence.
func (l *layout) spare() int { return align(l.pad + 2*len(l.hosts)*l.box) }

func (l *layout) bytes() int { return l.spare() + channel.Stride + l.others*l.pad }
