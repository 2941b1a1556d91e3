package spec

import "crypto/sha256"

// Text is the plan over lines, in ASCII, without a newline at its end.
func (f *File) Text() []byte { return f.write(&writer{}) }

// Compact is the plan on one line, without spaces, in UTF-8.
func (f *File) Compact() []byte { return f.write(&writer{compact: true}) }

// Sum is the hash of the plan's compact text, which is never there as a whole.
func (f *File) Sum() (sum [sha256.Size]byte) {
	w := &writer{compact: true, hash: sha256.New()}
	w.hash.Write(f.write(w))
	w.hash.Sum(sum[:0])
	return sum
}

func (f *File) write(w *writer) []byte {
	w.open('{')
	w.string("name", f.Name)
	w.string("collective", f.Collective)
	w.string("protocol", string(f.Protocol))
	w.bool("inplace", f.InPlace)
	w.bool("reuse_resources", f.ReuseResources)
	w.key("gpus")
	w.open('[')
	for i := range f.Ranks {
		w.next()
		w.rank(i, &f.Ranks[i])
	}
	w.close(']')
	w.int("num_threads_per_block", f.Threads)
	w.bool("use_double_scratch_buffer", f.DoubleScratch)
	w.int("buffer_alignment", f.Alignment)
	w.uint64("min_message_size", f.MinBytes)
	w.uint64("max_message_size", f.MaxBytes)
	w.close('}')
	return w.text
}

func (w *writer) rank(id int, r *Rank) {
	w.open('{')
	w.int("id", id)
	w.int("input_chunks", r.Input)
	w.int("output_chunks", r.Output)
	w.int("scratch_chunks", r.Scratch)
	w.key("threadblocks")
	w.open('[')
	for i := range r.Blocks {
		w.next()
		w.block(i, &r.Blocks[i])
	}
	w.close(']')
	w.key("channels")
	w.open('[')
	for _, c := range r.Channels {
		w.next()
		w.open('{')
		w.string("channel_type", c.Type.String())
		w.ints("connected_to", c.Peers)
		w.close('}')
	}
	for _, s := range r.Switches {
		w.next()
		w.switches(s)
	}
	w.close(']')
	w.key("remote_buffers")
	w.open('[')
	for _, b := range r.Remotes {
		w.next()
		w.open('{')
		w.int("rank", b.Rank)
		w.buffer("type", b.Buffer)
		w.key("access_channel_types")
		w.open('[')
		for _, t := range b.Access {
			w.next()
			w.quote(t.String())
		}
		w.close(']')
		w.close('}')
	}
	w.close(']')
	w.key("semaphores")
	w.open('[')
	for _, value := range r.Semaphores {
		w.next()
		w.open('{')
		w.int("init_value", value)
		w.close('}')
	}
	w.close(']')
	w.close('}')
}

func (w *writer) switches(s Switch) {
	w.open('{')
	w.string("channel_type", Switched.String())
	w.buffer("buffer_type", s.Buffer)
	w.key("rank_groups")
	w.open('[')
	w.next()
	w.open('{')
	w.int("size", len(s.Ranks))
	w.ints("ranks", s.Ranks)
	w.close('}')
	w.close(']')
	w.close('}')
}

func (w *writer) block(id int, b *Block) {
	w.open('{')
	w.int("id", id)
	w.ops(b.Ops)
	w.uses("channels", "channel_type", "channel_ids", b.Channels)
	w.uses("remote_buffer_refs", "access_channel_type", "remote_buffer_ids", b.Remotes)
	w.close('}')
}

func (w *writer) uses(key, of, ids string, all []Uses) {
	w.key(key)
	w.open('[')
	for _, u := range all {
		w.next()
		w.open('{')
		w.string(of, u.Type.String())
		w.ints(ids, u.IDs)
		w.close('}')
	}
	w.close(']')
}

func (w *writer) ops(ops []Op) {
	w.key("ops")
	w.open('[')
	for i := range ops {
		w.next()
		w.op(&ops[i])
	}
	w.close(']')
}

func (w *writer) op(op *Op) {
	w.open('{')
	w.string("name", op.Kind.String())
	switch op.Kind {
	case Barrier:
		w.int("barrier_id", op.Barrier)
		w.int("num_threadblocks", op.Blocks)
	case SemAcquire, SemRelease:
		w.ints("semaphore_ids", op.Semaphores)
	case Pipeline:
		w.key("iter_context")
		w.open('{')
		w.uint64("unit_size", op.Unit)
		w.int("num_chunks", op.Chunks)
		w.close('}')
		w.ops(op.Ops)
	case SwitchReduce:
		w.buffer("buffer_type", op.Src[0].Buffer)
		w.int("buffer_offset", op.Src[0].Index)
		w.int("size", op.Src[0].Size)
		w.key("dst_chunk")
		w.place(op.Dst[0])
	default:
		w.places("src_buff", op.Src)
		w.places("dst_buff", op.Dst)
	}
	if op.Channels != nil {
		w.ints("channel_ids", op.Channels)
	}
	if op.Via != NoChannel {
		w.string("channel_type", op.Via.String())
	}
	if op.Reduce != NoReduction {
		w.string("reduce_op", op.Reduce.String())
	}
	if op.Group.Size > 0 {
		w.key("tbg_info")
		w.open('{')
		w.int("tb_id", op.Group.ID)
		w.int("tbg_size", op.Group.Size)
		w.close('}')
	}
	w.close('}')
}

func (w *writer) places(key string, all []Place) {
	if all == nil {
		return
	}
	w.key(key)
	w.open('[')
	for _, p := range all {
		w.next()
		w.place(p)
	}
	w.close(']')
}

func (w *writer) place(p Place) {
	w.open('{')
	switch p.At {
	case RemoteBuffer:
		w.int("buffer_id", p.ID)
	case Members:
		w.int("switch_channel_id", p.ID)
	case Owned:
		w.int("rank", p.Rank)
		w.buffer("type", p.Buffer)
	default:
		w.buffer("type", p.Buffer)
	}
	w.int("index", p.Index)
	w.int("size", p.Size)
	w.close('}')
}

// buffer writes the letter of a buffer.
func (w *writer) buffer(key string, b Buffer) { w.string(key, b.String()[:1]) }
