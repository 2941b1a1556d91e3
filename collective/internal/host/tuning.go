package host

import "github.com/weftgo/weft/collective/spec"

// bounceBytes is a piece of a result that is made in the first-level cache.
const bounceBytes = 16 << 10

// sizes are in bytes.
type sizes struct {
	ReduceStep  int // of a pipelined reduction
	TwoShotStep int
	CopyStep    int // of a pipelined copy
	WindowChunk int // of a rank in a step of the window reduction
	Stream      int // outputs from this size on bypass the caches

	// Writes to memory that others read go past the caches where they are slower than this, in
	// bytes per microsecond.
	Staging int64 // copies
	Sharing int64 // reductions
}

// tuning is the same on all ranks by being compiled into them.
var tuning = sizes{
	ReduceStep:  64 << 10,
	TwoShotStep: 512 << 10,
	CopyStep:    64 << 10,
	WindowChunk: 64 << 10,
	Stream:      8 << 20,
	Staging:     8_000,
	Sharing:     5_000,
}

// A preference chooses an algorithm for requests of at most so many bytes on at most so many ranks,
// whose operands lie so. Zero means any.
type preference struct {
	algorithm *algorithm
	bytes     int
	ranks     int
	windows   spec.Windows
}

// preferences are asked in this order, and the first one whose algorithm supports the request wins.
// The last of each collective supports everything.
var preferences = [spec.Collectives][]preference{
	spec.Barrier: {{algorithm: &barrierEager}},
	spec.AllReduce: {
		{algorithm: &allReduceEager, bytes: 32 << 10},
		{algorithm: &allReducePull, bytes: 4 << 20, ranks: 2},
		// In place every line of the output is in the other rank's cache: until it has gone,
		// staging costs less than taking it back.
		{algorithm: &allReducePipeline, bytes: 2 << 20, ranks: 2, windows: spec.InPlace},
		{algorithm: &allReduceWindow},
		{algorithm: &allReducePipeline, bytes: 1 << 20, ranks: 2},
		{algorithm: &allReduceTwoShot},
	},
	spec.AllGather: {
		{algorithm: &allGatherEager, bytes: 16 << 10},
		{algorithm: &allGatherWindow},
		{algorithm: &allGatherPipeline},
	},
	spec.Broadcast: {
		{algorithm: &broadcastEager, bytes: 64 << 10},
		{algorithm: &broadcastWindow},
		{algorithm: &broadcastPipeline},
	},
}

// eager chooses an algorithm that sends its data at once, or none: then ranks first tell each other
// where their operands are. Like afterExchange it depends on nothing but the request and on what was
// forced when the group was made, so all ranks choose the same.
func eager(q *spec.Request, forced []*algorithm) *algorithm {
	for _, a := range forced {
		if a.Collective == q.Collective {
			if !a.Eager {
				return nil
			}
			if a.Supports(*q) {
				return a
			}
		}
	}
	for i := range preferences[q.Collective] {
		if p := &preferences[q.Collective][i]; p.algorithm.Eager && p.wants(q) {
			return p.algorithm
		}
	}
	return nil
}

// afterExchange chooses an algorithm once every rank knows which operands lie in windows.
func afterExchange(q *spec.Request, forced []*algorithm) *algorithm {
	for _, a := range forced {
		if a.Collective == q.Collective && !a.Eager && a.Supports(*q) {
			return a
		}
	}
	for i := range preferences[q.Collective] {
		if p := &preferences[q.Collective][i]; !p.algorithm.Eager && p.wants(q) {
			return p.algorithm
		}
	}
	return nil
}

func (p *preference) wants(q *spec.Request) bool {
	return (p.bytes == 0 || q.Bytes <= p.bytes) && (p.ranks == 0 || q.Ranks <= p.ranks) &&
		q.Windows&p.windows == p.windows && p.algorithm.Supports(*q)
}
