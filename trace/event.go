package trace

import "fmt"

// Site is a point in an operation. Kernels and the host engine use the same ones.
type Site uint8

// The sites. Their numbers are part of the file's format.
const (
	// Begin is the call: on a GPU the first instruction of the kernel.
	Begin Site = 1 + iota
	// Loaded: the first input has been read.
	Loaded
	// Pushed: the last store to a peer has been issued.
	Pushed
	// Signalled: what was done until now has been published, for a peer or for all.
	Signalled
	// Arrived: this rank has seen what a peer published.
	Arrived
	// Reduced: sums are complete.
	Reduced
	// Stored: this rank has read all that it reads of its peers, and its result is in place.
	Stored
	// End: the operation has ended well.
	End
	// Routed: destinations of all tokens are known.
	Routed
	// Counted: counts of all ranks are known.
	Counted
	// Quantised: rows have been converted to the type that travels.
	Quantised
	// Placed: rows are in their final places.
	Placed

	sites
)

var siteNames = [sites]string{
	Begin: "begin", Loaded: "loaded", Pushed: "pushed", Signalled: "signalled", Arrived: "arrived",
	Reduced: "reduced", Stored: "stored", End: "end",
	Routed: "routed", Counted: "counted", Quantised: "quantised", Placed: "placed",
}

// String is the name in traces.
func (s Site) String() string {
	if s > 0 && s < sites {
		return siteNames[s]
	}
	return fmt.Sprintf("site %d", uint8(s))
}

// NoOp is the Op of an event whose operation has no name.
const NoOp = ^uint32(0)

// Event says that an operation passed a site.
type Event struct {
	// Time is nanoseconds of the track's clock.
	Time uint64
	// Epoch is the number of the operation on its lane, the same on every rank: above 40 bits for the communicator's
	// generation, which grows when ranks are masked.
	Epoch uint64
	// Bytes is how many the operation moves, or this step; 0: not known.
	Bytes uint64
	// Op is the index of the operation's name in Track.Ops, or NoOp.
	Op uint32
	// Block tells apart what runs side by side in one operation, such as thread blocks.
	Block uint16
	// Step tells apart several exchanges of one operation: an Arrived is of what its peer Signalled in the same step, and
	// the same block if that signalled anything in it.
	Step uint16
	// Peer is whom it concerns, by its rank in the track's communicator; -1: all, or none.
	Peer int16
	Site Site
}

// Track is a lane of one rank: its operations run one after the other.
type Track struct {
	// Lane is the lane's name, the same on every rank: "group 2 collectives".
	Lane string `json:"lane"`
	// Clock names the clock of the times: ClockHost, or another name that is unique in the job.
	Clock string `json:"clock"`
	// Ops are the names of operations, as errors have them. Writer.Op adds more.
	Ops []string `json:"ops,omitempty"`
}

// ClockHost is the clock of Now.
const ClockHost = "host"

// Header says whose file it is.
type Header struct {
	Rank int `json:"rank"` // in the job
	Size int `json:"size"`
	// Comm names the communicator that the rank joined: the same on all its ranks, and no other's.
	Comm string `json:"comm"`
	// Host is what the rank takes its host for: ranks of one host share the clock "host".
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Version string `json:"version"` // of the library
	Command string `json:"command,omitempty"`
}
