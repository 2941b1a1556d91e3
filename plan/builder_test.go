package plan_test

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/spec"
)

// Each misuse is reported with the line where it stands, and the first one stays.
func TestMisuse(t *testing.T) {
	const glres = "rank 0, block 0, operation 0 (glres): source 0 ends at chunk 3 of the input of rank 0, which has 2"
	for want, misuse := range map[string]func(p *plan.Plan){
		"rank 2 of 2":                     func(p *plan.Plan) { p.Rank(2) },
		"rank -1 of 2":                    func(p *plan.Plan) { p.Memory(0, -1) },
		"a channel from rank 1 to itself": func(p *plan.Plan) { p.Port(1, 1) },
		"block -1":                        func(p *plan.Plan) { p.Rank(0).Block(-1) },
		"2 chunks from chunk 1 on, in a buffer of 2":  func(p *plan.Plan) { p.Rank(0).Input().Chunk(1, 2) },
		"-1 chunks from chunk 0 on, in a buffer of 2": func(p *plan.Plan) { p.Rank(0).Output().Chunk(0, -1) },
		"1 chunks from chunk 9223372036854775807 on, in a buffer of 2": func(p *plan.Plan) {
			p.Rank(0).Output().Chunk(math.MaxInt, 1)
		},
		"9223372036854775807 chunks from chunk 1 on, in a buffer of 2": func(p *plan.Plan) {
			p.Rank(0).Output().Chunk(1, math.MaxInt)
		},
		"block 1 of a barrier is nil": func(p *plan.Plan) { p.Rank(0).Barrier(p.Rank(0).Block(0), nil) },
		"block 0 of a group is nil": func(p *plan.Plan) {
			p.Rank(0).Group([]*plan.Block{nil}, func(*plan.Block) {})
		},
		"a loop without a function":  func(p *plan.Plan) { p.Rank(0).Block(0).Loop(64, 4, nil) },
		"a group without a function": func(p *plan.Plan) { p.Rank(0).Group([]*plan.Block{p.Rank(0).Block(0)}, nil) },
		"a chunk of another plan": func(p *plan.Plan) {
			p.Memory(0, 1)
			q := plan.New("other", plan.AllReduce(2, 1), plan.Options{})
			own := p.Rank(0).Input().Chunk(0, 1)
			p.Rank(0).Block(0).Reduce(own, own, q.Rank(1).Input().Chunk(0, 1))
		},
		"-1 chunks of scratch":    func(p *plan.Plan) { p.Rank(0).Scratch(-1) },
		"a semaphore of value -1": func(p *plan.Plan) { p.Rank(0).Semaphore(-1) },
		"rank 0 twice in a switch channel": func(p *plan.Plan) {
			p.Switch(plan.Input, 0, 0)
		},
		"a barrier of no blocks": func(p *plan.Plan) { p.Rank(0).Barrier() },
		"block 1 of a barrier is another rank's, or there already": func(p *plan.Plan) {
			p.Rank(0).Barrier(p.Rank(0).Block(0), p.Rank(0).Block(0))
		},
		"part 2 of 2": func(p *plan.Plan) { p.Rank(0).Block(0).Part(2, 2) },
		"a loop over 1 chunks by 0 bytes": func(p *plan.Plan) {
			p.Rank(0).Block(0).Loop(0, 1, func() {})
		},
		"a loop in a loop": func(p *plan.Plan) {
			b := p.Rank(0).Block(0)
			b.Loop(1, 1, func() { b.Loop(1, 1, func() {}) })
		},
		"no channel":                    func(p *plan.Plan) { p.Rank(0).Block(0).Signal() },
		"the channel is not rank 0's":   func(p *plan.Plan) { p.Rank(0).Block(0).Wait(p.Memory(1, 0)) },
		"no semaphore":                  func(p *plan.Plan) { p.Rank(0).Block(0).Acquire() },
		"the semaphore is not rank 0's": func(p *plan.Plan) { p.Rank(0).Block(0).Release(p.Rank(1).Semaphore(0)) },
		"a chunk of no buffer": func(p *plan.Plan) {
			p.Rank(0).Block(0).Copy(plan.Buffer{}.Chunk(0, 1), plan.Chunk{})
		},
		"2 chunks and 1 chunks in one operation": func(p *plan.Plan) {
			p.Rank(0).Block(0).Copy(p.Rank(0).Output().Chunk(0, 2), p.Rank(0).Input().Chunk(0, 1))
		},
		"a chunk of rank 1 where rank 0 needs one of its own": func(p *plan.Plan) {
			p.Rank(0).Block(0).Copy(p.Rank(0).Output().Chunk(0, 1), p.Rank(1).Input().Chunk(0, 1))
		},
		"packets in the output; they need scratch": func(p *plan.Plan) {
			p.Rank(0).Block(0).CopyPackets(p.Rank(0).Output().Chunk(0, 1), p.Rank(0).Input().Chunk(0, 1))
		},
		"a chunk of rank 0's own where one of another rank belongs": func(p *plan.Plan) {
			p.Rank(0).Block(0).Put(p.Memory(0, 1), p.Rank(0).Output().Chunk(0, 1), p.Rank(0).Input().Chunk(0, 1))
		},
		"only ports put with a signal": func(p *plan.Plan) {
			p.Rank(0).Block(0).PutWithSignal(p.Memory(0, 1), p.Rank(1).Output().Chunk(0, 1), p.Rank(0).Input().Chunk(0, 1))
		},
		"1 sources to reduce": func(p *plan.Plan) {
			p.Rank(0).Block(0).Reduce(p.Rank(0).Output().Chunk(0, 1), p.Rank(0).Input().Chunk(0, 1))
		},
		"rank 0 has no memory channel to rank 1": func(p *plan.Plan) {
			p.Rank(0).Block(0).Reduce(p.Rank(0).Output().Chunk(0, 1), p.Rank(0).Input().Chunk(0, 1),
				p.Rank(1).Input().Chunk(0, 1))
		},
		"no packets to reduce": func(p *plan.Plan) {
			p.Rank(0).Block(0).ReducePackets(p.Rank(0).Output().Chunk(0, 1), p.Rank(0).Input().Chunk(0, 1))
		},
		"rank 0 is no member of the switch channel, or chunk 0 is none": func(p *plan.Plan) {
			p.Rank(0).Block(0).SwitchReduceStore(p.Switch(plan.Input, 1), 0, 0, 1)
		},
		glres: func(p *plan.Plan) {
			p.Rank(0).Block(0).SwitchReduceStore(p.Switch(plan.Input, 0, 1), 0, 2, 1)
		},
	} {
		p := plan.New("misuse", plan.AllReduce(2, 1), plan.Options{})
		misuse(p)
		p.Rank(7) // a second one, which does not matter
		f, err := p.Build()
		if want == glres { // which Build finds, after any misuse
			p = plan.New("misuse", plan.AllReduce(2, 1), plan.Options{})
			misuse(p)
			f, err = p.Build()
		}
		if err == nil || f != nil || !strings.HasSuffix(err.Error(), ": "+want) ||
			!regexp.MustCompile(`^plan: builder_test\.go:\d+: `).MatchString(err.Error()) {
			t.Errorf("%v\nshould say %s", err, want)
		}
	}
}

// Options that no plan can have are a misuse where the plan begins.
func TestMisuseOfOptions(t *testing.T) {
	for want, o := range map[string]plan.Options{
		"blocks of -1 threads; want at least 1":      {Threads: -1},
		"an alignment of -16 bytes; want at least 1": {Alignment: -16},
		`protocol "X"; want Simple or LL`:            {Protocol: "X"},
		"messages from 5 to 4 bytes are none":        {MinBytes: 5, MaxBytes: 4},
		"no reduction has number 77":                 {Reduction: 77},
	} {
		f, err := plan.New("options", plan.AllReduce(2, 1), o).Build()
		if err == nil || f != nil || !strings.HasSuffix(err.Error(), ": "+want) ||
			!regexp.MustCompile(`^plan: builder_test\.go:\d+: `).MatchString(err.Error()) {
			t.Errorf("%v\nshould say %s", err, want)
		}
	}
}

// Build reports what was written first, whether the builder finds it at once or only in the whole plan.
func TestFirstMisuse(t *testing.T) {
	for want, early := range map[string]bool{"(flush)": true, "2 chunks and 1 chunks": false} {
		p := plan.New("first", plan.AllReduce(2, 1), plan.Options{})
		b, c := p.Rank(0).Block(0), p.Memory(0, 1)
		if early {
			b.Flush(c) // only ports are flushed
		}
		b.Copy(p.Rank(0).Output().Chunk(0, 2), p.Rank(0).Input().Chunk(0, 1))
		b.Flush(c)
		if _, err := p.Build(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nshould say %s", err, want)
		}
	}
}

// Operations leave slices of their caller as they are.
func TestReduceOfPrefix(t *testing.T) {
	p := plan.New("prefix", plan.AllReduce(2, 2), plan.Options{})
	var all []plan.Chunk
	for i := range 4 {
		all = append(all, p.Rank(0).Input().Chunk(i, 1))
	}
	p.Rank(0).Block(0).Reduce(all[0], all[:2]...)
	p.Rank(0).Block(0).ReducePackets(all[0], all[0], all[:2]...)
	for i, c := range all {
		if c.Index != i {
			t.Errorf("chunk %d of the caller's is now chunk %d", i, c.Index)
		}
	}
}

// The builder fuses what means the same and places nops where threads must meet.
func TestPlacement(t *testing.T) {
	for _, c := range []struct {
		want  string
		write func(p *plan.Plan, b *plan.Block, c *plan.Channel)
	}{
		{"signal", func(_ *plan.Plan, b *plan.Block, c *plan.Channel) { b.Signal(c) }},
		{"copy nop copy", func(p *plan.Plan, b *plan.Block, _ *plan.Channel) {
			s := p.Rank(0).Scratch(4) // the second reads what other threads wrote
			b.Copy(s.Chunk(0, 2), p.Rank(0).Input().Chunk(0, 2))
			b.Copy(s.Chunk(2, 1), s.Chunk(1, 1))
		}},
		{"copy copy", func(p *plan.Plan, b *plan.Block, _ *plan.Channel) {
			s := p.Rank(0).Scratch(4) // each thread reads what it wrote
			b.Copy(s.Chunk(0, 2), p.Rank(0).Input().Chunk(0, 2))
			b.Copy(s.Chunk(2, 2), s.Chunk(0, 2))
		}},
		{"put nop signal wait nop copy", func(p *plan.Plan, b *plan.Block, c *plan.Channel) {
			b.Put(c, p.Rank(1).Output().Chunk(0, 1), p.Rank(0).Input().Chunk(0, 1))
			b.Signal(c)
			b.Wait(c)
			b.Copy(p.Rank(0).Output().Chunk(1, 1), p.Rank(0).Input().Chunk(1, 1))
		}},
		{"copy pipeline(sem_acquire nop copy nop sem_release) nop signal", func(
			p *plan.Plan, b *plan.Block, c *plan.Channel,
		) {
			in, out, s := p.Rank(0).Input(), p.Rank(0).Output(), p.Rank(0).Semaphore(1)
			b.Copy(out.Chunk(0, 1), in.Chunk(0, 1))
			b.Loop(64, 1, func() {
				b.Acquire(s)
				b.Copy(out.Chunk(1, 1), in.Chunk(1, 1))
				b.Release(s)
			})
			b.Nop()
			b.Signal(c)
		}},
	} {
		p := plan.New("placement", plan.AllReduce(2, 1), plan.Options{})
		to := p.Memory(0, 1)
		c.write(p, p.Rank(0).Block(0), to)
		if got := spell(build(t, p).Ranks[0].Blocks[0].Ops); got != c.want {
			t.Errorf("%s\nshould be %s", got, c.want)
		}
	}
}

// spell is the names of operations.
func spell(ops []spec.Op) string {
	var names []string
	for _, op := range ops {
		name := op.Kind.String()
		if op.Kind == spec.Pipeline {
			name += "(" + spell(op.Ops) + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// What a fuzzer writes with the builder, right or wrong, is refused or is a file; a file that the verifier passes runs.
func FuzzBuilder(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13"))
	f.Add([]byte{9, 0, 1, 0, 9, 1, 0, 0, 10, 0, 1, 0, 10, 1, 0, 0, 2, 0, 0, 1})
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 256 {
			return
		}
		const n = 2
		p := plan.New("fuzz", plan.Custom("fuzz", n, 2, 2), plan.Options{Protocol: plan.LL})
		c := [n]*plan.Channel{p.Memory(0, 1), p.Memory(1, 0)}
		q := [n]*plan.Channel{p.Port(0, 1), p.Port(1, 0)}
		s := p.Switch(plan.Input, 0, 1)
		var buffers [n][3]plan.Buffer
		var semaphores [n]*plan.Semaphore
		for r := range n {
			buffers[r] = [3]plan.Buffer{p.Rank(r).Input(), p.Rank(r).Output(), p.Rank(r).Scratch(4)}
			semaphores[r] = p.Rank(r).Semaphore(1)
		}
		for ops := range slices.Chunk(program, 4) {
			if len(ops) < 4 {
				break
			}
			r, k := int(ops[1])%n, int(ops[1]/2)%2
			b := p.Rank(r).Block(k)
			own, theirs := buffers[r][ops[2]%3], buffers[1-r][ops[2]%3]
			x, y := own.Chunk(int(ops[3])%2, 1), theirs.Chunk(int(ops[3]/2)%2, 1)
			slot := buffers[r][2].Chunk(int(ops[3]/4)%4, 1)
			far := buffers[1-r][2].Chunk(int(ops[3]/4)%4, 1)
			switch ops[0] % 20 {
			case 0:
				b.Copy(buffers[r][1].Chunk(0, 1), x)
			case 1:
				b.Put(c[r], y, x)
			case 2:
				b.Get(c[r], x, y)
			case 3:
				b.Reduce(x, x, y)
			case 4:
				b.CopyPackets(slot, x)
			case 5:
				b.UnpackPackets(x, slot)
			case 6:
				b.PutPackets(c[r], far, x)
			case 7:
				b.ReadPutPackets(c[r], far, slot)
			case 8:
				b.ReducePackets(x, x, slot)
			case 9:
				b.Signal(c[r])
			case 10:
				b.Wait(c[r])
			case 11:
				b.PutWithSignalAndFlush(q[r], y, x)
			case 12:
				b.Wait(q[r])
			case 13:
				b.SwitchReduce(s, x, 0)
			case 14:
				b.SwitchStore(s, 1, x)
			case 15:
				b.Acquire(semaphores[r])
			case 16:
				b.Release(semaphores[r])
			case 17:
				p.Rank(r).Barrier(p.Rank(r).Block(0), p.Rank(r).Block(1))
			case 18:
				b.Loop(1<<10, 1, func() { b.Part(k, 2).Copy(buffers[r][1].Chunk(0, 1), x) })
			case 19:
				b.ReadPutPackets(q[r], far, slot)
			}
		}
		file, err := p.Build()
		if err != nil {
			return
		}
		if again, err := plan.Load(file.Text()); err != nil || !slices.Equal(again.Text(), file.Text()) {
			t.Fatalf("the text comes back otherwise: %v", err)
		}
		if v := plan.Verify(file); len(v.Findings) == 0 {
			for seed := range uint64(4) {
				if r := plan.Simulate(file, plan.Simulation{Seed: seed}); r.Failure != "" {
					t.Fatalf("seed %d: %s\n%s", seed, r.Failure, file.Compact())
				}
			}
		}
	})
}
