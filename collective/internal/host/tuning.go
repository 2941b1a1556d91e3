package host

import "github.com/weftgo/weft/collective/spec"

// bounceBytes is a piece of a result that is made in the first-level cache.
const bounceBytes = 16 << 10

// sizes are in bytes.
type sizes struct {
	CopyStep    int // of a pipeline that sends all ranks the same
	ScatterStep int // of one that sends each its own
	TwoShotStep int
	WindowChunk int // of a rank in a step of the window reduction
	EagerCounts int // the data that goes with the counts of an all-to-all-v
	Stream      int // outputs from this size on bypass the caches

	// Writes to memory that others read go past the caches where they are slower than this, in
	// bytes per microsecond.
	Staging int64 // copies
	Sharing int64 // reductions
}

// tuning is the same on all ranks by being compiled into them.
var tuning = sizes{
	CopyStep:    64 << 10,
	ScatterStep: 128 << 10,
	TwoShotStep: 512 << 10,
	WindowChunk: 64 << 10,
	EagerCounts: 16 << 10,
	Stream:      8 << 20,
	Staging:     8_000,
	Sharing:     5_000,
}

// A preference chooses a form for requests in which ranks send at most so many bytes each, on at most
// so many ranks, whose operands lie so. Zero means any.
type preference struct {
	form    *form
	bytes   int
	ranks   int
	windows spec.Windows
}

// preferences are asked in this order, and the first one whose form supports the request wins. The last
// of each collective supports everything.
var preferences = [spec.Collectives][]preference{
	spec.Barrier: {{form: &eager}},
	spec.AllReduce: {
		{form: &eager, bytes: 32 << 10},
		{form: &pull, bytes: 4 << 20, ranks: 2},
		// In place every line of the output is in the other rank's cache: until it has gone,
		// staging costs less than taking it back.
		{form: &pipeline, bytes: 2 << 20, ranks: 2, windows: spec.InPlace},
		{form: &window},
		{form: &pipeline, bytes: 1 << 20, ranks: 2},
		{form: &twoShot},
	},
	spec.Reduce: {
		{form: &eager, bytes: 32 << 10},
		{form: &pull, ranks: 2},
		{form: &window},
		{form: &pipeline, ranks: 2},
		{form: &twoShot},
	},
	spec.ReduceScatter:  {{form: &eager, bytes: 32 << 10}, {form: &pull}, {form: &pipeline}},
	spec.ReduceScatterV: {{form: &eager, bytes: 32 << 10}, {form: &pull}, {form: &pipeline}},
	spec.AllGather:      {{form: &eager, bytes: 16 << 10}, {form: &pull}, {form: &pipeline}},
	spec.AllGatherV:     {{form: &eager, bytes: 16 << 10}, {form: &pull}, {form: &pipeline}},
	spec.AllToAll:       {{form: &eager, bytes: 16 << 10}, {form: &pull}, {form: &pipeline}},
	spec.AllToAllV:      {{form: &eager}, {form: &pull}, {form: &pipeline}},
	spec.Broadcast:      {{form: &eager, bytes: 64 << 10}, {form: &pull}, {form: &pipeline}},
	spec.Gather:         {{form: &eager, bytes: 16 << 10}, {form: &pull}, {form: &pipeline}},
	spec.Scatter:        {{form: &eager, bytes: 32 << 10}, {form: &pull}, {form: &pipeline}},
}

// atOnce chooses a form that sends its data at once, or none: then ranks first tell each other where
// their operands are. Like afterExchange it depends on nothing but the request and on what was forced
// when the group was made, so all ranks choose the same.
func atOnce(q *spec.Request, forced []*algorithm) *form {
	for _, a := range forced {
		if a.Collective == q.Collective {
			if !a.Eager {
				return nil
			}
			if a.Supports(*q) {
				return a.form
			}
		}
	}
	return preferred(q, true)
}

// afterExchange chooses a form once every rank knows which operands lie in windows.
func afterExchange(q *spec.Request, forced []*algorithm) *form {
	for _, a := range forced {
		if a.Collective == q.Collective && !a.Eager && a.Supports(*q) {
			return a.form
		}
	}
	return preferred(q, false)
}

func preferred(q *spec.Request, eager bool) *form {
	for i := range preferences[q.Collective] {
		if p := &preferences[q.Collective][i]; p.form.eager == eager && p.wants(q) {
			return p.form
		}
	}
	return nil
}

func (p *preference) wants(q *spec.Request) bool {
	return (p.bytes == 0 || q.Sent <= p.bytes) && (p.ranks == 0 || q.Ranks <= p.ranks) &&
		q.Windows&p.windows == p.windows && p.form.supports(q)
}
