package spec

import (
	"bytes"
	"crypto/sha256"
	"math"
	"slices"
	"strings"
	"testing"
)

// small is a plan of one of each form of operation.
const small = `{"name":"sm\u00e4ll \ud83d\ude00","collective":"custom","protocol":"LL","inplace":false,
"reuse_resources":false,"gpus":[{"id":0,"input_chunks":2,"output_chunks":2,"scratch_chunks":2,"threadblocks":[
{"id":0,"ops":[
{"name":"put","src_buff":[{"type":"i","index":0,"size":1}],"dst_buff":[{"buffer_id":0,"index":1,"size":1}],
"channel_type":"memory"},
{"name":"barrier","barrier_id":0,"num_threadblocks":1},
{"name":"signal","channel_ids":[0],"channel_type":"memory"},
{"name":"pipeline","iter_context":{"unit_size":64,"num_chunks":1},"ops":[{"name":"sem_acquire","semaphore_ids":[0]},
{"name":"cpkt","src_buff":[{"type":"i","index":0,"size":1}],"dst_buff":[{"type":"s","index":0,"size":1}],
"tbg_info":{"tb_id":0,"tbg_size":2}}]},
{"name":"glre","buffer_type":"i","buffer_offset":0,"size":1,"dst_chunk":{"rank":0,"type":"o","index":0,"size":1},
"channel_ids":[0],"channel_type":"switch","reduce_op":"sum"},
{"name":"re","src_buff":[{"type":"i","index":0,"size":1},{"type":"i","index":1,"size":1}],
"dst_buff":[{"type":"o","index":0,"size":1}],"reduce_op":"max"}],
"channels":[{"channel_type":"memory","channel_ids":[0]},{"channel_type":"switch","channel_ids":[0]}],
"remote_buffer_refs":[{"access_channel_type":"memory","remote_buffer_ids":[0]}]}],
"channels":[{"channel_type":"memory","connected_to":[1]},
{"channel_type":"switch","buffer_type":"i","rank_groups":[{"size":2,"ranks":[0,1]}]}],
"remote_buffers":[{"rank":1,"type":"o","access_channel_types":["memory"]}],"semaphores":[{"init_value":1}]},
{"id":1,"input_chunks":2,"output_chunks":2,"scratch_chunks":2,"threadblocks":[],
"channels":[{"channel_type":"switch","buffer_type":"i","rank_groups":[{"size":2,"ranks":[0,1]}]}],
"remote_buffers":[],"semaphores":[]}],"num_threads_per_block":1024,"use_double_scratch_buffer":false,
"buffer_alignment":16,"min_message_size":0,"max_message_size":18446744073709551615}`

func TestText(t *testing.T) {
	f, err := Decode([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(small, "\n", "")
	want = strings.NewReplacer(`\u00e4`, "ä", `\ud83d\ude00`, "😀").Replace(want)
	if got := string(f.Compact()); got != want {
		t.Errorf("one line:\n%s\nis not\n%s", got, want)
	}
	long := *f
	long.Ranks = slices.Clone(f.Ranks)
	for len(long.Ranks[0].Blocks) < 100 {
		long.Ranks[0].Blocks = append(long.Ranks[0].Blocks, f.Ranks[0].Blocks...)
	}
	for _, f := range []*File{f, &long} {
		if f.Sum() != sha256.Sum256(f.Compact()) {
			t.Errorf("the hash of %d blocks is not that of their text", len(f.Ranks[0].Blocks))
		}
	}
	over := string(f.Text())
	if !strings.HasPrefix(over, "{\n  \"name\": \"sm\\u00e4ll \\ud83d\\ude00\",\n  \"collective\": \"custom\",\n") {
		t.Errorf("over lines: %.100s", over)
	}
	if !strings.Contains(over, "\"threadblocks\": [],\n      \"channels\": [\n        {\n") {
		t.Error("an empty list is not on one line")
	}
	if again, err := Decode([]byte(over)); err != nil || string(again.Compact()) != want {
		t.Errorf("not the same plan from lines: %v", err)
	}
}

func TestDefaults(t *testing.T) {
	f, err := Decode([]byte(`{"name":"n","collective":"allreduce","protocol":"Simple","inplace":true,"gpus":[
{"id":0,"input_chunks":1,"output_chunks":1,"scratch_chunks":0,"threadblocks":[{"id":0,"ops":[],"channels":[]}],
"channels":[],"remote_buffers":[]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if f.Threads != 1024 || f.Alignment != 16 || f.MaxBytes != ^uint64(0) || f.ReuseResources || f.DoubleScratch {
		t.Errorf("defaults: %+v", f)
	}
	if !bytes.Contains(f.Compact(), []byte(`"remote_buffer_refs":[]}`)) || f.Check() != nil {
		t.Errorf("lists that may be left out: %s", f.Compact())
	}
}

// Every refusal says where: what the small plan becomes, and what the refusal must say.
func TestRefusals(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`"name":"put"`, `"name":"push"`, `rank 0, block 0, operation 0 (push): line 4: no operation is named "push"`},
		{`"inplace":false,`, ``, `plan: line 23: no key "inplace"`},
		{`"inplace":false,`, `"inplace":false,"inplace":false,`, `two keys "inplace"`},
		{`"inplace":false`, `"outplace":false`, `unknown key "outplace"`},
		{`"protocol":"LL"`, `"protocol":"LL128"`, `"LL128" is not one of ["Simple" "LL"]`},
		{`"input_chunks":2`, `"input_chunks":2.5`, `rank 0: line 2: "2.5" is no number`},
		{`"input_chunks":2`, `"input_chunks":-2`, `"-2" is no number`},
		{`"input_chunks":2`, `"input_chunks":02`, `"02" is no number`},
		{`"input_chunks":2`, `"input_chunks":9000000000000`, `is no number from 0 to`},
		{`{"id":1,`, `{"id":2,`, `rank 1: line 20: id 2 at position 1 of its list`},
		{`{"id":0,"ops"`, `{"id":1,"ops"`, `rank 0, block 0: line 3: id 1 at position 0`},
		{`"size":2,"ranks"`, `"size":3,"ranks"`, `a group of size 3 has 2 ranks`},
		{
			`{"name":"sem_acquire","semaphore_ids":[0]}`,
			`{"name":"pipeline","iter_context":{"unit_size":1,"num_chunks":1},"ops":[]}`,
			`rank 0, block 0, operation 3.0 (pipeline): line 8: a pipeline in a pipeline`,
		},
		{`"barrier_id":0,`, ``, `operation 1 (barrier): line 6: no key "barrier_id"`},
		{`"barrier_id":0,`, `"barrier_id":0,"channel_type":"port",`, `key "channel_type" does not belong there`},
		{`"tb_id":0`, `"tb_id":2`, `position 2 in a group of 2 blocks`},
		{`18446744073709551615}`, `18446744073709551616}`, `is no number`},
		{`18446744073709551615}`, `1} x`, `text after the plan`},
		{`18446744073709551615}`, `1`, `the text ends where '}' should be`},
		{`\u00e4`, `\ud83d`, `half a surrogate pair`},
		{`\u00e4`, `\x`, `unknown escape 'x'`},

		{
			`"index":1,"size":1}],"channel_type"`, `"index":2,"size":1}],"channel_type"`,
			`rank 0, block 0, operation 0 (put): destination 0 ends at chunk 3 of the output of rank 1, which has 2`,
		},
		{
			`"src_buff":[{"type":"i","index":0,"size":1}],"dst_buff":[{"buffer_id":0`,
			`"src_buff":[{"type":"i","index":0,"size":2}],"dst_buff":[{"buffer_id":0`,
			`destination 0 has 1 chunks, and others have 2`,
		},
		{`{"buffer_id":0`, `{"buffer_id":1`, `memory remote buffer 1 is not in the block's list`},
		{`"remote_buffer_ids":[0]`, `"remote_buffer_ids":[1]`, `rank 0, block 0: memory remote buffer 1, of 1`},
		{`"signal","channel_ids":[0]`, `"signal","channel_ids":[0,1]`, `memory channel 1 is not in the block's list`},
		{`"signal","channel_ids":[0]`, `"signal","channel_ids":[0,0]`, `memory channel 0 is named twice`},
		{`"signal","channel_ids":[0]`, `"signal","channel_ids":[]`, `operation 2 (signal): 0 channels, which should be 1`},
		{
			`"name":"signal","channel_ids":[0],"channel_type":"memory"`,
			`"name":"flush","channel_ids":[0],"channel_type":"memory"`,
			`operation 2 (flush): channels of type "memory" do not do that`,
		},
		{`"connected_to":[1]`, `"connected_to":[2]`, `rank 0: memory channel 0 leads to rank 2, which is no other rank`},
		{`"connected_to":[1]`, `"connected_to":[0]`, `rank 0: memory channel 0 leads to rank 0, which is no other rank`},
		{`"remote_buffers":[{"rank":1`, `"remote_buffers":[{"rank":0`, `remote buffer 0 is of rank 0`},
		{`"semaphore_ids":[0]`, `"semaphore_ids":[1]`, `operation 3.0 (sem_acquire): semaphore 1, of 1`},
		{`"unit_size":64`, `"unit_size":0`, `operation 3 (pipeline): windows of 0 bytes`},
		{`"num_threadblocks":1`, `"num_threadblocks":0`, `barrier 0 of 0 blocks`},
		{
			`"dst_buff":[{"type":"s","index":0`, `"dst_buff":[{"type":"o","index":0`,
			`operation 3.1 (cpkt): destination 0 has packets in the output; packets need scratch`,
		},
		{`"protocol":"LL"`, `"protocol":"Simple"`, ``},
		{`"name":"re"`, `"name":"copy"`, `operation 5 (copy): a reduction where the operation has none`},
		{`"dst_chunk":{"rank":0`, `"dst_chunk":{"rank":1`, `is of rank 1, which does not run the operation`},
		{`"buffer_type":"i","buffer_offset"`, `"buffer_type":"o","buffer_offset"`, `is the output, and switch channel 0`},
		{`"buffer_offset":0`, `"buffer_offset":2`, `operation 4 (glre): source 0 ends at chunk 3`},
		{`[{"channel_type":"switch","buffer_type":"i","rank_groups":[{"size":2,"ranks":[0,1]}]}],
"remote_buffers":[],`, `[],"remote_buffers":[],`, `rank 0: it has 1 switch channels like number 0, and rank 1 has 0`},
		{`"num_threads_per_block":1024`, `"num_threads_per_block":0`, `blocks of 0 threads`},
		{
			`"min_message_size":0,"max_message_size":18446744073709551615`, `"min_message_size":2,"max_message_size":1`,
			`messages from 2 to 1 bytes`,
		},
	} {
		text := strings.Replace(small, c.old, c.new, 1)
		if text == small {
			// What is looked for crosses a line of the constant.
			text = strings.Replace(strings.ReplaceAll(small, "],\n", "],"), c.old, c.new, 1)
		}
		if text == strings.ReplaceAll(small, "],\n", "],") {
			t.Errorf("%s is not in the plan", c.old)
			continue
		}
		f, err := Decode([]byte(text))
		if err == nil {
			err = f.Check()
		}
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.new, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v\nshould say %s", c.new, err, c.want)
		}
	}
}

// Numbers that no name has are refused, whatever made the file.
func TestNumbersWithoutNames(t *testing.T) {
	for want, change := range map[string]func(f *File){
		"no reduction has number 77":       func(f *File) { f.Ranks[0].Blocks[0].Ops[5].Reduce = 77 },
		"no type of channel has number 9":  func(f *File) { f.Ranks[0].Blocks[0].Ops[2].Via = 9 },
		"source 0 is in no kind of buffer": func(f *File) { f.Ranks[0].Blocks[0].Ops[5].Src[0].Buffer = 5 },
		"remote buffer 0 is of no kind":    func(f *File) { f.Ranks[0].Remotes[0].Buffer = 4 },
		"switch channel 0 is of no kind":   func(f *File) { f.Ranks[0].Switches[0].Buffer = 4 },
		"ends at chunk 9223372036854775808": func(f *File) {
			f.Ranks[0].Blocks[0].Ops[5].Dst[0].Index = math.MaxInt
		},
	} {
		f, err := Decode([]byte(small))
		if err != nil {
			t.Fatal(err)
		}
		change(f)
		if err := f.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nshould say %s", err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(`{"name":"\ud83d\ude00\\\"\n"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		plan, err := Decode(text)
		if err != nil {
			return
		}
		_ = plan.Check() // of whatever was read
		line := plan.Compact()
		again, err := Decode(line)
		if err != nil || !bytes.Equal(again.Compact(), line) || !bytes.Equal(again.Text(), plan.Text()) {
			t.Fatalf("%s\ncomes back otherwise: %v", line, err)
		}
		if over, err := Decode(plan.Text()); err != nil || !bytes.Equal(over.Compact(), line) {
			t.Fatalf("%s\ncomes back otherwise from lines: %v", line, err)
		}
	})
}

// TestPlace: outputs that are apart from inputs lie at one place on all ranks, behind every input.
func TestPlace(t *testing.T) {
	f := &File{Collective: Broadcast, Ranks: []Rank{{Output: 2}, {Input: 2, Output: 2}, {Output: 2}}}
	for r := range f.Ranks {
		if in, out, size := f.Place(r, 8); in != 0 || out != 16 || size != 32 {
			t.Errorf("rank %d: input at %d, output at %d, of %d bytes", r, in, out, size)
		}
	}
	f = &File{Collective: AllGather, InPlace: true, Ranks: []Rank{{Input: 1, Output: 2}, {Input: 1, Output: 2}}}
	if in, out, size := f.Place(1, 8); in != 8 || out != 0 || size != 16 {
		t.Errorf("in place: input at %d, output at %d, of %d bytes", in, out, size)
	}
}
