package lowering

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/plan/spec"
)

// two is a program of two ranks with rank 0's operations, which are in block 0 unless they say otherwise.
func two(ops ...Op) *Program {
	return &Program{
		Name: "n", Collective: "custom", Protocol: spec.LL, Threads: 1024, Alignment: 16, MaxBytes: 1,
		Instances: 1, Fuse: true, Sync: true,
		Ranks: []Rank{
			{
				Input: 8, Output: 8, Scratch: 16, Semaphores: []int{0, 3}, Ops: ops,
				Channels: []Channel{{"memory", 1}, {"port", 1}, {"memory", 1}, {"memory", 1}},
				Switches: []Switch{{"i", []int{0, 1}}, {"s", []int{1, 0}}},
			},
			{Input: 8, Output: 8, Scratch: 16, Switches: []Switch{{"i", []int{0, 1}}, {"s", []int{1, 0}}}},
		},
		Loops: []Loop{{64, 1}, {128, 2}},
	}
}

// chunks reads "i0 1s2-4": chunk 0 of the input, chunks 2 to 3 of rank 1's scratch. "w3" is chunk 3 of a switch's
// members.
func chunks(t *testing.T, text string) (all []Chunk) {
	t.Helper()
	for _, word := range strings.Fields(text) {
		c := Chunk{Size: 1}
		if word[0] == '1' {
			c.Rank, word = 1, word[1:]
		}
		if word[0] != 'w' {
			c.Buffer = word[:1]
		}
		end := 0
		if n, _ := fmt.Sscanf(word[1:], "%d-%d", &c.Index, &end); n == 2 {
			c.Size = end - c.Index
		}
		all = append(all, c)
	}
	return all
}

// data is an operation with places.
func data(t *testing.T, kind, via, src, dst string, channels ...int) Op {
	t.Helper()
	o := Op{Kind: kind, Via: via, Src: chunks(t, src), Dst: chunks(t, dst), Channels: channels}
	if kind[0] == 'r' && kind != "rppkt" || kind == "glre" {
		o.Reduce = "sum"
	}
	return o
}

// sync is an operation that orders others: "signal:before", with memory channels.
func sync(t *testing.T, text string, channels ...int) Op {
	t.Helper()
	kind, at, _ := strings.Cut(text, ":")
	o := Op{Kind: kind, Before: at == "before" || at == "both", After: at == "after" || at == "both"}
	switch kind {
	case "nop":
	case "barrier":
		o.Blocks = []int{0, 1}
	case "sem_acquire", "sem_release":
		o.Semaphores = channels
	default:
		o.Via, o.Channels = "memory", channels
		if kind == "flush" {
			o.Via = "port"
		}
	}
	return o
}

func in(loop int, ops ...Op) []Op {
	for i := range ops {
		ops[i].Loop = &loop
	}
	return ops
}

// shown is the operations of block 0 of rank 0, in words.
func shown(t *testing.T, p *Program) string {
	t.Helper()
	f, err := p.File()
	if err != nil {
		t.Fatal(err)
	}
	return show(f.Ranks[0].Blocks[0].Ops)
}

func show(ops []spec.Op) string {
	var words []string
	for _, o := range ops {
		word := o.Kind.String()
		switch {
		case o.Kind == spec.Pipeline:
			word = "[" + show(o.Ops) + "]"
		case o.Kind == spec.SemAcquire || o.Kind == spec.SemRelease:
			word += numbersOf(o.Semaphores)
		case o.Kind.Syncs() && o.Channels != nil:
			word += numbersOf(o.Channels)
		case len(o.Src)+len(o.Dst) > 0:
			word += "(" + placesOf(o.Src) + ">" + placesOf(o.Dst) + ")"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func numbersOf(all []int) string { return strings.ReplaceAll(fmt.Sprint(all), " ", ",") }

func placesOf(all []spec.Place) string {
	var words []string
	for _, p := range all {
		word := p.Buffer.String()[:1]
		switch p.At {
		case spec.RemoteBuffer:
			word = fmt.Sprintf("r%d:", p.ID)
		case spec.Members:
			word = "w"
		}
		words = append(words, fmt.Sprintf("%s%d", word, p.Index))
	}
	return strings.Join(words, ",")
}

func TestFusion(t *testing.T) {
	d := func(kind, via, src, dst string, channels ...int) Op { return data(t, kind, via, src, dst, channels...) }
	s := func(text string, channels ...int) Op { return sync(t, text, channels...) }
	group := func(id, size int, o Op) Op { o.Group = &Group{id, size}; return o }
	for _, c := range []struct {
		name        string
		ops         []Op
		want, sound string // sound: "" is the same
	}{
		{"nops", []Op{s("nop"), s("nop")}, "nop", ""},
		{"nop and barrier", []Op{s("nop"), s("barrier"), s("nop")}, "barrier", ""},
		{"barriers", []Op{s("barrier"), s("barrier")}, "barrier barrier", ""},
		{"signals", []Op{s("signal", 0), s("signal", 2)}, "signal[0,1]", ""},
		{"signals of one channel", []Op{s("signal", 0), s("signal", 0)}, "signal[0] signal[0]", ""},
		{"a signal and a relaxed one", []Op{s("signal", 0), s("rlxsignal", 2)}, "signal[0] rlxsignal[1]", ""},
		{"waits, united", []Op{s("wait:before", 2), s("wait:after", 0)}, "nop wait[0,1] nop", ""},
		{"flushes", []Op{s("flush", 0), s("flush", 0)}, "flush[0]", ""},
		{"semaphores", []Op{s("sem_acquire", 1), s("sem_acquire", 1, 0)}, "sem_acquire[1,1,0]", ""},
		{"semaphores of two kinds", []Op{s("sem_acquire", 1), s("sem_release", 1)}, "sem_acquire[1] sem_release[1]", ""},
		{
			"gets",
			[]Op{d("get", "memory", "1i0", "o0", 0), d("get", "memory", "1i1", "o1", 2)},
			"get(r0:0,r0:1>o0,o1)", "",
		},
		{
			"puts",
			[]Op{d("put", "memory", "i0", "1o0", 0), d("put", "memory", "i0", "1s0", 0)},
			"put(i0,i0>r0:0,r1:0)", "",
		},
		{
			"puts of two sizes",
			[]Op{d("put", "memory", "i0", "1o0", 0), d("put", "memory", "i0-2", "1o2-4", 0)},
			"put(i0>r0:0) put(i0>r0:2)", "",
		},
		{
			"puts through two types",
			[]Op{d("put", "memory", "i0", "1o0", 0), d("put", "port", "i0", "1o1", 0)},
			"put(i0>r0:0) put(i0>r0:1)", "",
		},
		{
			"puts from two buffers",
			[]Op{d("put", "memory", "i0", "1o0", 0), d("put", "memory", "o1", "1o1", 0)},
			"put(i0,o1>r0:0,r0:1)", "put(i0>r0:0) put(o1>r0:1)",
		},
		{
			"puts of a group", []Op{
				group(0, 2, d("put", "memory", "i0", "1o0", 0)), group(0, 2, d("put", "memory", "i1", "1o1", 0)),
				d("put", "memory", "i2", "1o2", 0),
			}, "put(i0,i1>r0:0,r0:1) put(i2>r0:2)", "",
		},
		{
			"puts with signals",
			[]Op{d("pws", "port", "i0", "1o0", 0), d("pws", "port", "i1", "1o1", 0)},
			"pws(i0,i1>r0:0,r0:1)", "",
		},
		{
			"puts with signals and flushes",
			[]Op{d("pwsf", "port", "i0", "1o0", 0), d("pwsf", "port", "i1", "1o1", 0)},
			"pwsf(i0,i1>r0:0,r0:1)", "",
		},
		{
			"packets",
			[]Op{d("ppkt", "memory", "i0", "1s0", 0), d("ppkt", "memory", "i1", "1s1", 0)},
			"ppkt(i0,i1>r0:0,r0:1)", "",
		},
		{
			"packets on",
			[]Op{d("rppkt", "memory", "s0", "1s0", 0), d("rppkt", "memory", "s0", "1s1", 0)},
			"rppkt(s0>r0:0,r0:1)", "",
		},
		{
			"packets on from two slots",
			[]Op{d("rppkt", "memory", "s0", "1s0", 0), d("rppkt", "memory", "s1", "1s1", 0)},
			"rppkt(s0>r0:0) rppkt(s1>r0:1)", "",
		},
		{"reductions in place", []Op{d("re", "", "i0 s0", "i0"), d("re", "", "i0 s1", "i0")}, "re(i0,s0,s1>i0)", ""},
		{
			"reductions to another place",
			[]Op{d("re", "", "i0 s0", "o0"), d("re", "", "i0 s1", "o0")},
			"re(i0,s0,s1>o0)", "re(i0,s0>o0) nop re(i0,s1>o0)",
		},
		{
			"reductions of their own result",
			[]Op{d("re", "", "i0 s0", "i0"), d("re", "", "i0 i0", "i0")},
			"re(i0,s0,i0>i0)", "re(i0,s0>i0) nop re(i0,i0>i0)",
		},
		{
			"remote reductions",
			[]Op{d("rre", "memory", "i0 1i0", "i0", 0), d("rre", "memory", "i0 1s0", "i0", 2)},
			"rre(i0,r0:0,r1:0>i0)", "",
		},
		{"reduced packets", []Op{d("repkt", "", "i0 s0", "i0"), d("repkt", "", "i0 s1", "i0")}, "repkt(i0,s0,s1>i0)", ""},
		{
			"a reduction and puts", []Op{
				d("re", "", "i0 s0", "i0"), d("put", "memory", "i0", "1i0", 0), d("put", "memory", "i0", "1i1", 0),
			}, "res(i0,s0>i0,r0:0,r0:1)", "",
		},
		{
			"a put of something else",
			[]Op{d("re", "", "i0 s0", "i0"), d("put", "memory", "i1", "1i0", 0)},
			"re(i0,s0>i0) put(i1>r0:0)", "",
		},
		{
			"a put through a port",
			[]Op{d("re", "", "i0 s0", "i0"), d("put", "port", "i0", "1i0", 0)},
			"re(i0,s0>i0) nop put(i0>r0:0)", "",
		},
		{
			"a remote reduction and a put",
			[]Op{d("rre", "memory", "i0 1s0", "i0", 0), d("put", "memory", "i0", "1i0", 0)},
			"rres(i0,r0:0>i0,r1:0)", "",
		},
		{
			"reduced packets, sent", []Op{
				d("repkt", "", "i0 s0", "i0"), d("ppkt", "memory", "i0", "1s2", 0), d("ppkt", "memory", "i0", "1s3", 0),
			}, "respkt(i0,s0>i0,r0:2,r0:3)", "",
		},
		{
			"reduced packets, copied and sent", []Op{
				d("repkt", "", "i0 s0", "i0"), d("cpkt", "", "i0", "s4"), d("ppkt", "memory", "i0", "1s2", 0),
				d("rppkt", "memory", "s4", "1s3", 0),
			}, "recspkt(i0,s0>i0,s4,r0:2,r0:3)", "",
		},
		{
			"packets copied and sent through a port", []Op{
				d("repkt", "", "i0 s0", "i0"), d("cpkt", "", "i0", "s4"), d("rppkt", "port", "s4", "1s3", 0),
			}, "recpkt(i0,s0>i0,s4) rppkt(s4>r0:3)", "",
		},
		{
			"a switch in place",
			[]Op{d("glre", "switch", "w3", "i3", 0), d("gstore", "switch", "i3", "w3", 0)},
			"glres(w3>w3)", "",
		},
		{
			"a switch that moves",
			[]Op{d("glre", "switch", "w1", "i1", 0), d("gstore", "switch", "i1", "w3", 0)},
			"glres(w1>w1)", "glre(w1>i1) nop gstore(i1>w3)",
		},
		{
			"a switch by way of the output",
			[]Op{d("glre", "switch", "w1", "o1", 0), d("gstore", "switch", "o1", "w1", 0)},
			"glres(w1>w1)", "glre(w1>o1) nop gstore(o1>w1)",
		},
		{
			"two switches",
			[]Op{d("glre", "switch", "w1", "s1", 0), d("gstore", "switch", "s1", "w1", 1)},
			"glre(w1>s1) gstore(s1>w1)", "glre(w1>s1) nop gstore(s1>w1)",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := two(c.ops...)
			if got := shown(t, p); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
			if c.sound == "" {
				c.sound = c.want
			}
			p.Sound = true
			if got := shown(t, p); got != c.sound {
				t.Errorf("sound: %s\nwant %s", got, c.sound)
			}
			p.Fuse, p.Sync = false, false
			if got, want := len(strings.Fields(shown(t, p))), len(c.ops); got < want {
				t.Errorf("%d operations without fusion, of %d", got, want)
			}
		})
	}
}

// Threads of a block meet where data_sync says so, once where two operations say so at one place.
func TestDataSync(t *testing.T) {
	s := func(text string, channels ...int) Op { return sync(t, text, channels...) }
	for _, c := range []struct {
		ops         []Op
		want, sound string
	}{
		{[]Op{s("signal", 0), s("wait", 0)}, "signal[0] wait[0]", ""},
		{[]Op{s("signal:after", 0), s("wait", 0)}, "signal[0] nop wait[0]", ""},
		{[]Op{s("signal", 0), s("wait:before", 0)}, "signal[0] nop wait[0]", ""},
		{[]Op{s("signal:both", 0), s("wait:both", 0)}, "nop signal[0] nop wait[0] nop", ""},
		{[]Op{s("signal:both", 0), s("nop"), s("wait:both", 0)}, "nop signal[0] nop wait[0] nop", ""},
		{[]Op{s("signal:both", 0), s("barrier"), s("wait:both", 0)}, "nop signal[0] barrier wait[0] nop", ""},
		{append([]Op{s("nop")}, in(0, s("signal:before", 0))...), "[nop signal[0]]", ""},
		{append([]Op{s("wait:after", 0)}, in(0, s("signal:before", 0))...), "wait[0] [nop signal[0]]", ""},
		// What begins with a barrier keeps its own operations apart after a nop.
		{append([]Op{s("nop")}, in(0, s("signal:before", 0), s("signal", 2))...), "[nop signal[0] signal[1]]", ""},
		{in(0, s("signal:before", 0), s("signal", 2)), "[nop signal[0,1]]", ""},
		{append(in(0, s("wait:after", 0)), s("nop"), s("signal:before", 0)), "[wait[0] nop] signal[0]", ""},
		{append(in(0, s("wait:after", 0)), s("signal:before", 0)), "[wait[0] nop] signal[0]", ""},
		// A pipeline that ends in a barrier is taken for one that begins with one.
		{
			append([]Op{s("wait:after", 0)}, in(0, s("signal", 0), s("barrier"))...),
			"wait[0] [signal[0] barrier]", "wait[0] nop [signal[0] barrier]",
		},
		{
			append(in(0, s("signal", 0), s("barrier")), s("wait:before", 0)),
			"[signal[0] barrier] nop wait[0]", "[signal[0] barrier] wait[0]",
		},
		{append(in(0, s("signal", 0)), in(1, s("signal", 2))...), "[signal[0]] [signal[1]]", ""},
	} {
		p := two(c.ops...)
		if got := shown(t, p); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
		if p.Sound = true; c.sound == "" {
			c.sound = c.want
		}
		if got := shown(t, p); got != c.sound {
			t.Errorf("sound: %s\nwant %s", got, c.sound)
		}
	}
	p := two(s("signal:both", 0), s("wait:both", 0))
	p.Fuse = false
	if got, want := shown(t, p), "nop signal[0] nop nop wait[0] nop"; got != want {
		t.Errorf("unfused: %s\nwant %s", got, want)
	}
}

// Operations of a block that touch the same get a barrier between them.
func TestSeparation(t *testing.T) {
	d := func(kind, via, src, dst string, channels ...int) Op { return data(t, kind, via, src, dst, channels...) }
	for _, c := range []struct {
		name        string
		ops         []Op
		want, sound string
	}{
		{
			"read after write",
			[]Op{d("copy", "", "i0", "s0"), d("copy", "", "s0", "o0")},
			"copy(i0>s0) nop copy(s0>o0)", "",
		},
		{
			"write after read",
			[]Op{d("copy", "", "i0", "s0"), d("copy", "", "o0", "i0")},
			"copy(i0>s0) nop copy(o0>i0)", "",
		},
		{"reads", []Op{d("copy", "", "i0", "s0"), d("copy", "", "i0", "s1")}, "copy(i0>s0) copy(i0>s1)", ""},
		{"parts", []Op{d("copy", "", "i0-4", "s0-4"), d("copy", "", "s3-5", "o0-2")}, "copy(i0>s0) nop copy(s3>o0)", ""},
		{"neighbours", []Op{d("copy", "", "i0-4", "s0-4"), d("copy", "", "s4-6", "o0-2")}, "copy(i0>s0) copy(s4>o0)", ""},
		{"puts", []Op{d("copy", "", "i0", "s0"), d("put", "memory", "s0", "1s0", 0)}, "copy(i0>s0) nop put(s0>r0:0)", ""},
		{
			"what was read before the last barrier",
			[]Op{d("copy", "", "i0", "s0"), d("copy", "", "s0", "o0"), d("copy", "", "s1", "i0")},
			"copy(i0>s0) nop copy(s0>o0) copy(s1>i0)", "",
		},
		{
			"the operand of the operation behind a barrier",
			[]Op{d("copy", "", "i0", "s0"), d("re", "", "i1 s0", "o1"), d("copy", "", "i2", "i1")},
			"copy(i0>s0) nop re(i1,s0>o1) copy(i2>i1)", "copy(i0>s0) nop re(i1,s0>o1) nop copy(i2>i1)",
		},
		{
			"the data of reduced packets",
			[]Op{d("copy", "", "o0", "i0"), d("repkt", "", "i0 s0", "o1")},
			"copy(o0>i0) repkt(i0,s0>o1)", "copy(o0>i0) nop repkt(i0,s0>o1)",
		},
		{
			"slots as data",
			[]Op{d("copy", "", "o0", "s0"), d("repkt", "", "i0 s0", "o1")},
			"copy(o0>s0) nop repkt(i0,s0>o1)", "",
		},
		{
			"slots where they lie",
			[]Op{d("copy", "", "o0", "s7"), d("repkt", "", "i0 s3", "o1")},
			"copy(o0>s7) repkt(i0,s3>o1)", "copy(o0>s7) nop repkt(i0,s3>o1)",
		},
		{
			"packets wait by themselves",
			[]Op{d("cpkt", "", "i0", "s0"), d("upkt", "", "s0", "o0")},
			"cpkt(i0>s0) upkt(s0>o0)", "",
		},
		{
			"a switch",
			[]Op{d("copy", "", "o0", "i0"), d("gstore", "switch", "i0", "w1", 0), d("copy", "", "i1", "o1")},
			"copy(o0>i0) gstore(i0>w1) copy(i1>o1)", "copy(o0>i0) nop gstore(i0>w1) nop copy(i1>o1)",
		},
		{
			"remote places",
			[]Op{d("put", "memory", "i0", "1o0", 0), d("get", "memory", "1o0", "s0", 0)},
			"put(i0>r0:0) get(r0:0>s0)", "put(i0>r0:0) nop get(r0:0>s0)",
		},
		{
			"behind a pipeline that reads last", append(
				in(0, d("copy", "", "i0", "s0"), d("copy", "", "s0", "o0")), d("copy", "", "s0", "o1")),
			"[copy(i0>s0) nop copy(s0>o0)] copy(s0>o1)", "[copy(i0>s0) nop copy(s0>o0)] nop copy(s0>o1)",
		},
		{
			"a pipeline", append([]Op{d("copy", "", "i0", "s0")}, in(0, d("copy", "", "s0", "o0"))...),
			"copy(i0>s0) nop [copy(s0>o0)]", "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := two(c.ops...)
			if got := shown(t, p); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
			if p.Sound = true; c.sound == "" {
				c.sound = c.want
			}
			if got := shown(t, p); got != c.sound {
				t.Errorf("sound: %s\nwant %s", got, c.sound)
			}
			if p.Sync = false; strings.Contains(shown(t, p), "nop") {
				t.Error("a barrier where none is to be placed")
			}
		})
	}
}

// Instances lie side by side, and each does its part of every range.
func TestInstances(t *testing.T) {
	d := func(kind, via, src, dst string, channels ...int) Op { return data(t, kind, via, src, dst, channels...) }
	second := func(o Op) Op { o.Block = 1; return o }
	p := two(slices.Concat(
		[]Op{sync(t, "signal", 0), d("put", "port", "i0-2", "1o2-4", 0), sync(t, "barrier"), second(sync(t, "barrier"))},
		in(0, d("repkt", "", "i0 s0", "i0"), d("cpkt", "", "i0", "s4"), sync(t, "sem_release", 0, 1)),
		[]Op{second(d("glre", "switch", "w1", "i1", 0)), second(d("gstore", "switch", "i1", "w1", 0))},
	)...)
	p.Instances = 3
	f, err := p.File()
	if err != nil {
		t.Fatal(err)
	}
	r := &f.Ranks[0]
	if r.Input != 24 || r.Output != 24 || r.Scratch != 48 || len(r.Blocks) != 6 {
		t.Errorf("%d, %d and %d chunks, %d blocks", r.Input, r.Output, r.Scratch, len(r.Blocks))
	}
	want := []spec.Channels{
		{Type: spec.Memory, Peers: slices.Repeat([]int{1}, 9)}, {Type: spec.Port, Peers: []int{1, 1, 1}},
	}
	if d := gocmp.Diff(want, r.Channels); d != "" {
		t.Error(d)
	}
	if d := gocmp.Diff([]int{0, 0, 0, 3, 3, 3}, r.Semaphores); d != "" || len(r.Switches) != 6 {
		t.Errorf("%s%d switches", d, len(r.Switches))
	}
	if got, want := show(r.Blocks[2].Ops),
		"signal[0] put(i4>r0:10) barrier [recpkt(i2,s2>i2,s14) sem_release[2,5]]"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if r.Blocks[2].Ops[2].Barrier != 2 || r.Blocks[5].Ops[0].Barrier != 2 || r.Blocks[5].Ops[0].Blocks != 2 {
		t.Errorf("barriers: %+v", r.Blocks[5].Ops[0])
	}
	if got, want := show(r.Blocks[4].Ops), "barrier glres(w4>w4)"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if d := gocmp.Diff([]spec.Uses{{Type: spec.Switched, IDs: []int{1}}}, r.Blocks[4].Channels); d != "" {
		t.Error(d)
	}
	if err := f.Check(); err != nil {
		t.Error(err)
	}
}

// Blocks number what they use by first use.
func TestTables(t *testing.T) {
	d := func(kind, via, src, dst string, channels ...int) Op { return data(t, kind, via, src, dst, channels...) }
	ops := []Op{
		d("put", "port", "i0", "1s0", 0), d("get", "memory", "1s1", "i1", 2), d("put", "memory", "i0", "1o0", 1),
	}
	ops[2].Block = 2
	f, err := two(ops...).File()
	if err != nil {
		t.Fatal(err)
	}
	r := &f.Ranks[0]
	remotes := []spec.Remote{
		{Rank: 1, Buffer: spec.Scratch, Access: []spec.ChannelType{spec.Port, spec.Memory}},
		{Rank: 1, Buffer: spec.Output, Access: []spec.ChannelType{spec.Memory}},
	}
	if d := gocmp.Diff(remotes, r.Remotes); d != "" {
		t.Error(d)
	}
	if len(r.Blocks) != 3 || len(r.Blocks[1].Ops) != 0 {
		t.Fatalf("blocks: %+v", r.Blocks)
	}
	uses := []spec.Uses{{Type: spec.Port, IDs: []int{0}}, {Type: spec.Memory, IDs: []int{2}}}
	if d := gocmp.Diff(uses, r.Blocks[0].Channels); d != "" {
		t.Error(d)
	}
	if d := gocmp.Diff([]spec.Uses{{Type: spec.Memory, IDs: []int{1}}}, r.Blocks[2].Remotes); d != "" {
		t.Error(d)
	}
}

// The order of merged channels is that of CPython's sets.
func TestOrder(t *testing.T) {
	for _, c := range []struct{ in, want []int }{
		{[]int{3, 1}, []int{1, 3}},
		{[]int{8, 0}, []int{8, 0}},
		{[]int{9, 1, 8, 0}, []int{8, 9, 1, 0}},
		{[]int{40, 8, 1, 0}, []int{40, 8, 1, 0}},
		{[]int{11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
	} {
		s := newSet(c.in[0])
		for _, n := range c.in[1:] {
			s = s.union(newSet(n))
		}
		if got := s.list(); !slices.Equal(got, c.want) {
			t.Errorf("%v becomes %v, want %v", c.in, got, c.want)
		}
	}
	if newSet(1, 9, 17).meets(newSet(25)) || !newSet(1, 9, 17).meets(newSet(4, 17)) {
		t.Error("what two sets share")
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		change func(*Program)
		want   string
	}{
		{func(p *Program) { p.Instances = 0 }, "plan: 0 instances"},
		{func(p *Program) { p.Instances = 1 << 20 }, "plan: 1048576 instances"},
		{func(p *Program) { p.Ranks[0].Input = -1 }, "plan: rank 0 has -1, 8 and 16 chunks"},
		{func(p *Program) { p.Ranks[0].Ops[0].Src[0].Index = -1 }, "chunks from -1, 1 of them"},
		{func(p *Program) { p.Ranks[0].Ops[0].Dst[0].Size = 1 << 50 }, "chunks from 0, 1125899906842624 of them"},
		{
			func(p *Program) { p.Ranks[0].Ops[0].Kind = "push" },
			`plan: rank 0, call 0, of block 0 (push): no operation is named "push"`,
		},
		{func(p *Program) { p.Ranks[0].Ops[0].Kind = "pipeline" }, "1 sources and 1 destinations are not its"},
		{func(p *Program) { p.Ranks[0].Ops[0].Kind = "re" }, "1 sources and 1 destinations are not its"},
		{func(p *Program) { p.Ranks[0].Ops[0].Block = -1 }, "no block has number -1"},
		{func(p *Program) { p.Ranks[0].Ops[0].Block = 1 << 20 }, "no block has number 1048576"},
		{func(p *Program) { p.Ranks[0].Ops[0].Via = "wire" }, `no type of channel is named "wire"`},
		{func(p *Program) { p.Ranks[0].Ops[0].Reduce = "avg" }, `no reduction is named "avg"`},
		{func(p *Program) { p.Ranks[0].Ops[0].Src[0].Buffer = "x" }, `no buffer is named "x"`},
		{func(p *Program) { p.Ranks[0].Ops[0].Channels[0] = 3 }, "memory channel 3, of 3 that the rank has"},
		{func(p *Program) { p.Ranks[0].Ops[0].Loop = new(int); p.Loops = nil }, "no pipeline has number 0"},
		{func(p *Program) { p.Ranks[0].Channels[0].Type = "wire" }, `no type of channel is named "wire"`},
		{func(p *Program) { p.Ranks[0].Switches[0].Buffer = "" }, `no buffer is named ""`},
	} {
		p := two(data(t, "put", "memory", "i0", "1o0", 0))
		c.change(p)
		if _, err := p.File(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v\nshould say %s", err, c.want)
		}
	}
	for _, text := range []string{
		"", "{", `{"nam":1}`, `{"Ranks":[{"Ops":[{"Block":-}]}]}`, `{"max_bytes":18446744073709551616}`,
	} {
		if _, err := Decode([]byte(text)); err == nil {
			t.Errorf("%s is taken for a recording", text)
		}
	}
}

// Whatever is recorded, lowering ends with a plan or an error.
func FuzzFile(f *testing.F) {
	for _, sound := range []bool{false, true} {
		p := two(
			Op{Kind: "put", Via: "memory", Channels: []int{0}, Src: []Chunk{{0, "i", 0, 1}}, Dst: []Chunk{{1, "o", 0, 1}}},
			Op{Kind: "signal", Via: "memory", Channels: []int{2}, Before: true},
			Op{
				Kind: "glre", Via: "switch", Channels: []int{0},
				Src: []Chunk{{Index: 1, Size: 1}}, Dst: []Chunk{{0, "i", 1, 1}},
			},
			Op{Kind: "repkt", Src: []Chunk{{0, "i", 0, 1}, {0, "s", 0, 1}}, Dst: []Chunk{{0, "i", 0, 1}}, Loop: new(int)},
		)
		p.Sound = sound
		text, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text []byte) {
		p, err := Decode(text)
		if err != nil || p.Instances > 8 {
			return
		}
		file, err := p.File()
		if err != nil {
			return
		}
		_ = file.Check()
		file.Compact()
	})
}
