package optimizer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/lowering"
	"github.com/weftgo/weft/plan/spec"
)

// Options say what is looked for, and for how long. Zero values take the defaults.
type Options struct {
	// Model says what a launch takes. Without a topology it is [DefaultModel].
	Model cost.Model
	// Bytes is the message for which a plan is made faster: of the output of an all-gather, else of the input. It
	// is rounded up to one that the plan takes. The default is 1 MiB.
	Bytes int
	// Instances is how many instances of the plan are tried, at most. The default is 1: more take only messages of
	// multiples of as many chunks.
	Instances int
	// Moves is how many moves of operations between blocks are tried, at most, for each number of instances. The default
	// is 5000; with -1 operations stay in their blocks.
	Moves int
	// Seed chooses the order in which blocks are looked at.
	Seed uint64
	// Time is how long the search may take. The default is a minute.
	Time time.Duration
	// Measure times plans in turns, at Bytes of message, and takes the place of the model where operations get other
	// blocks or instances: Measure of package executor is one.
	Measure func(ctx context.Context, plans []*spec.File, bytes int) ([]time.Duration, error)
}

// The defaults.
const (
	defaultBytes = 1 << 20
	defaultTime  = time.Minute
	defaultMoves = 5000
)

// A plan is faster than another if it takes this much of its time: modelled, or measured, where the rest is noise.
// Joined operations may take the time that they took apart, but for rounding.
const (
	gain  = 0.99
	noise = 0.97
	same  = 1 + 1e-9
)

// hopeless is how much longer a plan must take by the model to be not even measured.
const hopeless = 1.5

// DefaultModel is a machine in which each rank has a link to each other one, as NVLinks through a switch are.
func DefaultModel(ranks int) cost.Model {
	return cost.Model{Topology: cost.AllToAll(ranks, 50, 1), Op: 0.05, CopyGBps: 100}
}

// Report is what an optimisation gained.
type Report struct {
	Before, After Figures
	// Removed is synchronisation that the verifier passes without.
	Removed Removed
	Joined  int      // operations that others have taken in
	Moves   []string // operations that got other blocks, in order
	// Instances is how many the plan has now of what it was.
	Instances int
	Bytes     int  // of the message
	Measured  bool // times are measured, not modelled
	Proofs    int  // runs of the verifier
	Stopped   bool // the time was over before all was tried
}

// Figures are a plan's.
type Figures struct {
	Operations int // those in pipelines, too
	Syncs      int // of them, those that only order others
	Blocks     int
	Time       time.Duration // of a launch
}

// Removed counts synchronisation.
type Removed struct {
	Signals    int // with their waits
	Semaphores int // releases with their acquires
	Barriers   int // times that blocks met, and blocks that did
	Flushes    int
	Nops       int
}

// Total is all of it.
func (r Removed) Total() int { return r.Signals + r.Semaphores + r.Barriers + r.Flushes + r.Nops }

// Optimize gives a plan that does the same in less: the plan itself, if nothing was found. The verifier must pass the
// plan, and passes what comes of it, with no other findings, the same label, and the same bits in every output. If the
// context ends, so does the search, with its error; if [Options.Time] does, with what was found.
func Optimize(ctx context.Context, f *spec.File, o Options) (*spec.File, Report, error) {
	if o.Bytes < 0 || o.Instances < 0 || o.Time < 0 {
		return nil, Report{}, errors.New("plan: bytes, instances and time of an optimisation must not be negative")
	}
	if err := f.Check(); err != nil {
		return nil, Report{}, err
	}
	if o.Instances == 0 {
		o.Instances = 1
	}
	if o.Time == 0 {
		o.Time = defaultTime
	}
	if o.Bytes == 0 {
		o.Bytes = defaultBytes
	}
	if o.Moves == 0 {
		o.Moves = defaultMoves
	}
	o.Bytes = legal(f, o.Bytes)
	if o.Model.Topology == nil {
		o.Model = DefaultModel(len(f.Ranks))
	}
	p, err := newProof(f)
	if err != nil {
		return nil, Report{}, err
	}
	within, cancel := context.WithTimeout(ctx, o.Time)
	defer cancel()
	s := &search{ctx: within, proof: p, options: o, random: rand.New(rand.NewPCG(o.Seed, 24))}
	was := variant{file: f, instances: 1}
	if was.us, err = s.model(f); err != nil {
		return nil, Report{}, err
	}
	best, err := s.best(was)
	if ctx.Err() != nil {
		err = fmt.Errorf("plan: %s: optimise: %w", f.Name, context.Cause(ctx))
	} else if within.Err() != nil {
		err = nil
	}
	if err != nil {
		return nil, Report{}, err
	}
	r := Report{
		Before: figures(f), After: figures(best.file), Removed: best.removed, Joined: best.joined, Moves: best.moves,
		Instances: best.instances, Bytes: o.Bytes, Measured: o.Measure != nil, Proofs: p.runs, Stopped: s.over(),
	}
	r.Before.Time, r.After.Time = micros(was.us), micros(best.us)
	if o.Measure != nil {
		took, err := o.Measure(ctx, []*spec.File{f, best.file}, o.Bytes)
		if err != nil {
			return nil, Report{}, err
		}
		r.Before.Time, r.After.Time = took[0], took[1]
	}
	return best.file, r, nil
}

func micros(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }

func figures(f *spec.File) (all Figures) {
	for r := range f.Ranks {
		all.Blocks += len(f.Ranks[r].Blocks)
	}
	edited(f, func(_ spec.Site, op spec.Op) []spec.Op {
		all.Operations++
		if op.Kind.Syncs() {
			all.Syncs++
		}
		return nil
	})
	return all
}

// Grain is the bytes of which a plan's messages are multiples.
func Grain(f *spec.File) int { return cost.Bytes(f, f.Alignment) }

// legal is the least message of at least so many bytes that a plan takes, or the largest that it takes.
func legal(f *spec.File, bytes int) int {
	grain := Grain(f)
	if f.MaxBytes < uint64(bytes) {
		return max(int(f.MaxBytes)/grain, 1) * grain
	}
	return max((max(bytes, int(min(f.MinBytes, 1<<40)))+grain-1)/grain, 1) * grain
}

// variant is a plan on the way, and what made it of the first.
type variant struct {
	file      *spec.File
	us        float64
	removed   Removed
	joined    int
	moves     []string
	instances int
}

// best is the best plan that the search finds.
func (s *search) best(was variant) (variant, error) {
	simple := s.simplify(was)
	best, err := s.climb(simple)
	for n := 2; n <= s.options.Instances && err == nil && !s.over(); n++ {
		if s.options.Bytes%(n*Grain(was.file)) != 0 {
			continue
		}
		next := simple
		next.file, next.instances = lowering.Replicate(simple.file, n), n
		if next.us, err = s.model(next.file); err != nil || !s.passes(next.file, n) {
			err = nil
			continue
		}
		if next, err = s.climb(next); err != nil {
			break
		}
		var faster bool
		if faster, err = s.faster(next, best); faster {
			best = next
		}
	}
	return best, err
}

// simplify removes synchronisation and joins operations until nothing more goes.
func (s *search) simplify(v variant) variant {
	for !s.over() {
		before := v.file
		v = s.unsynced(v)
		v = s.joined(v)
		v = s.occupied(v)
		if v.file == before {
			break
		}
	}
	if us, err := s.model(v.file); err == nil {
		v.us = us
	}
	return v
}

// unsynced removes synchronisation.
func (s *search) unsynced(v variant) variant {
	for kind := range sorts {
		all := removals(v.file, kind)
		base := v.file
		f, n := s.largest(len(all), func(chosen []int) *spec.File { return without(base, all, chosen) },
			func(f *spec.File) bool { return s.passes(f, v.instances) })
		if f == nil {
			continue
		}
		v.file = f
		*[]*int{
			signals: &v.removed.Signals, semaphores: &v.removed.Semaphores, barriers: &v.removed.Barriers,
			flushes: &v.removed.Flushes, nops: &v.removed.Nops,
		}[kind] += n
	}
	return v
}

// joined makes one operation of several, unless that takes longer.
func (s *search) joined(v variant) variant {
	all, base := joints(v.file), v.file
	us, err := s.model(base)
	if err != nil {
		return v
	}
	f, n := s.largest(len(all), func(chosen []int) *spec.File {
		may := make(map[spec.Site]bool)
		for _, i := range chosen {
			may[all[i]] = true
		}
		return joined(base, func(next spec.Site) bool { return may[next] })
	}, func(f *spec.File) bool {
		now, err := s.model(f)
		return err == nil && now <= us*same && s.passes(f, v.instances)
	})
	if f != nil {
		v.file, v.joined = f, v.joined+n
	}
	return v
}

// occupied drops blocks that do nothing.
func (s *search) occupied(v variant) variant {
	f, dropped := *v.file, false
	f.Ranks = slices.Clone(f.Ranks)
	for r := range f.Ranks {
		blocks := &f.Ranks[r].Blocks
		n := len(*blocks)
		*blocks = slices.DeleteFunc(slices.Clone(*blocks), func(b spec.Block) bool { return len(b.Ops) == 0 })
		dropped = dropped || len(*blocks) < n
	}
	if dropped && s.passes(&f, v.instances) {
		v.file = &f
	}
	return v
}

// climb gives operations to other blocks as long as that makes the plan faster.
func (s *search) climb(v variant) (variant, error) {
	for tried := 0; ; {
		all := moves(v.file)
		s.random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		better := false
		for _, m := range all {
			if tried++; s.over() || tried > s.options.Moves {
				return v, nil
			}
			next := v
			if next.file = moved(v.file, m); next.file == nil || next.file.Check() != nil {
				continue
			}
			var err error
			if next.us, err = s.model(next.file); err != nil {
				continue // it does not end
			}
			if s.options.Measure == nil && next.us >= v.us*gain || next.us > v.us*hopeless || !s.passes(next.file, v.instances) {
				continue
			}
			if better, err = s.faster(next, v); err != nil {
				return v, err
			}
			if better {
				next.moves = append(next.moves[:len(next.moves):len(next.moves)], m.String())
				v = s.simplify(next)
				break
			}
		}
		if !better {
			return v, nil
		}
	}
}
