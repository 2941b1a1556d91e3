package spec

import "slices"

// Decode reads a plan. It refuses text that is no plan, and names where. [File.Check] refuses what breaks a rule.
func Decode(text []byte) (*File, error) {
	r := &reader{text: text, site: Nowhere}
	f := &File{Threads: DefaultThreads, Alignment: DefaultAlignment, MaxBytes: DefaultMaxBytes}
	var has keys
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case "name":
			f.Name = r.string()
		case "collective":
			f.Collective = r.string()
		case "protocol":
			f.Protocol = [...]Protocol{Simple, LL}[r.one([]string{"Simple", "LL"})]
		case "inplace":
			f.InPlace = r.bool()
		case "reuse_resources":
			f.ReuseResources = r.bool()
		case "gpus":
			f.Ranks = array(r, r.rank)
			r.site = Nowhere
		case "num_threads_per_block":
			f.Threads = r.int()
		case "use_double_scratch_buffer":
			f.DoubleScratch = r.bool()
		case "buffer_alignment":
			f.Alignment = r.int()
		case "min_message_size":
			f.MinBytes = r.uint64(DefaultMaxBytes)
		case "max_message_size":
			f.MaxBytes = r.uint64(DefaultMaxBytes)
		default:
			return false
		}
		return true
	})
	r.need(has, "name", "collective", "protocol", "inplace", "gpus")
	if r.peek(); r.err == nil && r.at < len(r.text) {
		r.fail("text after the plan")
	}
	if r.err != nil {
		return nil, r.err
	}
	return f, nil
}

// keys are those that an object has.
type keys []string

func (k *keys) add(key string) { *k = append(*k, key) }

// need refuses an object that lacks one of the names.
func (r *reader) need(has keys, names ...string) {
	for _, name := range names {
		if !slices.Contains(has, name) {
			r.fail("no key %q", name)
		}
	}
}

// id reads the id of an element, which is its position.
func (r *reader) id(position int) {
	if id := r.int(); id != position {
		r.fail("id %d at position %d of its list", id, position)
	}
}

func (r *reader) rank(i int) (rank Rank) {
	r.site = Site{i, -1, -1, -1}
	var has keys
	rank.Semaphores = []int{}
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case "id":
			r.id(i)
		case "input_chunks":
			rank.Input = r.int()
		case "output_chunks":
			rank.Output = r.int()
		case "scratch_chunks":
			rank.Scratch = r.int()
		case "threadblocks":
			rank.Blocks = array(r, r.block)
			r.site = Site{i, -1, -1, -1}
		case "channels":
			r.list('[', ']', func(int) { r.channels(&rank) })
		case "remote_buffers":
			rank.Remotes = array(r, r.remote)
		case "semaphores":
			rank.Semaphores = array(r, r.semaphore)
		default:
			return false
		}
		return true
	})
	r.need(has, "id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels", "remote_buffers")
	return rank
}

// channels reads one type's channels, or a switch.
func (r *reader) channels(rank *Rank) {
	var has keys
	var c Channels
	var s Switch
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case "channel_type":
			c.Type = r.channelType()
		case "connected_to":
			c.Peers = r.ints()
		case "buffer_type":
			s.Buffer = r.buffer()
		case "rank_groups":
			r.list('[', ']', func(i int) {
				if i > 0 {
					r.fail("a switch has one group of ranks")
				}
				s.Ranks = r.members()
			})
		default:
			return false
		}
		return true
	})
	if c.Type == Switched {
		r.only(has, "channel_type", "buffer_type", "rank_groups")
		rank.Switches = append(rank.Switches, s)
		return
	}
	r.only(has, "channel_type", "connected_to")
	rank.Channels = append(rank.Channels, c)
}

// only refuses an object that has other keys.
func (r *reader) only(has keys, names ...string) {
	r.need(has, names...)
	for _, key := range has {
		if !slices.Contains(names, key) {
			r.fail("key %q does not belong there", key)
		}
	}
}

func (r *reader) members() (ranks []int) {
	var has keys
	size := 0
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case "size":
			size = r.int()
		case "ranks":
			ranks = r.ints()
		default:
			return false
		}
		return true
	})
	r.need(has, "size", "ranks")
	if r.err == nil && size != len(ranks) {
		r.fail("a group of size %d has %d ranks", size, len(ranks))
	}
	return ranks
}

func (r *reader) remote(int) (b Remote) {
	var has keys
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case "rank":
			b.Rank = r.int()
		case "type":
			b.Buffer = r.buffer()
		case "access_channel_types":
			b.Access = array(r, func(int) ChannelType { return r.channelType() })
		default:
			return false
		}
		return true
	})
	r.need(has, "rank", "type", "access_channel_types")
	return b
}

func (r *reader) semaphore(int) (value int) {
	var has keys
	r.object(func(key string) bool {
		has.add(key)
		if key != "init_value" {
			return false
		}
		value = r.int()
		return true
	})
	r.need(has, "init_value")
	return value
}

func (r *reader) block(i int) (b Block) {
	r.site.Block = i
	var has keys
	b.Remotes = []Uses{}
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case "id":
			r.id(i)
		case "ops":
			b.Ops = array(r, func(i int) Op {
				r.site.Op = i
				return r.op()
			})
			r.site.Op = -1
		case "channels":
			b.Channels = array(r, func(int) Uses { return r.uses("channel_type", "channel_ids") })
		case "remote_buffer_refs":
			b.Remotes = array(r, func(int) Uses { return r.uses("access_channel_type", "remote_buffer_ids") })
		default:
			return false
		}
		return true
	})
	r.need(has, "id", "ops", "channels")
	return b
}

func (r *reader) uses(of, ids string) (u Uses) {
	var has keys
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case of:
			u.Type = r.channelType()
		case ids:
			u.IDs = r.ints()
		default:
			return false
		}
		return true
	})
	r.need(has, of, ids)
	return u
}

// Keys of operations. Those on data may have any of the first, and [File.Check] says which they must have.
var (
	dataKeys    = []string{"name", "src_buff", "dst_buff", "channel_ids", "channel_type", "reduce_op", "tbg_info"}
	specialKeys = map[Kind][]string{
		Nop:        {"name"},
		Barrier:    {"name", "barrier_id", "num_threadblocks"},
		SemAcquire: {"name", "semaphore_ids"},
		SemRelease: {"name", "semaphore_ids"},
		SwitchReduce: {
			"name", "buffer_type", "buffer_offset", "size", "dst_chunk", "channel_ids", "channel_type", "reduce_op",
		},
		Pipeline: {"name", "iter_context", "ops"},
	}
)

func (r *reader) op() (op Op) {
	var has keys
	from := Place{At: Members} // of a switch's reduction
	r.kind = ""
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case "name":
			name := r.string()
			r.kind = name
			kind, known := byName[name]
			if !known {
				r.fail("no operation is named %q", name)
			}
			op.Kind = kind
		case "src_buff":
			op.Src = array(r, r.place)
		case "dst_buff":
			op.Dst = array(r, r.place)
		case "dst_chunk":
			op.Dst = []Place{r.place(0)}
		case "channel_ids":
			op.Channels = r.ints()
		case "channel_type":
			op.Via = r.channelType()
		case "reduce_op":
			op.Reduce = Reduction(r.one(reductionNames[:]))
		case "tbg_info":
			op.Group = r.group()
		case "barrier_id":
			op.Barrier = r.int()
		case "num_threadblocks":
			op.Blocks = r.int()
		case "semaphore_ids":
			op.Semaphores = r.ints()
		case "buffer_type":
			from.Buffer = r.buffer()
		case "buffer_offset":
			from.Index = r.int()
		case "size":
			from.Size = r.int()
		case "iter_context":
			op.Unit, op.Chunks = r.window()
		case "ops":
			op.Ops = r.inner()
		default:
			return false
		}
		return true
	})
	r.need(has, "name")
	r.kind = op.Kind.String()
	if special := specialKeys[op.Kind]; special != nil {
		r.only(has, special...)
	} else {
		for _, key := range has {
			if !slices.Contains(dataKeys, key) {
				r.fail("it has no key %q", key)
			}
		}
	}
	if op.Kind == SwitchReduce {
		if len(op.Channels) == 1 {
			from.ID = op.Channels[0]
		}
		op.Src = []Place{from}
	}
	r.kind = ""
	return op
}

// inner reads the operations of a pipeline.
func (r *reader) inner() []Op {
	if r.site.Inner >= 0 {
		r.fail("a pipeline in a pipeline")
		return nil
	}
	ops := array(r, func(i int) Op {
		r.site.Inner = i
		return r.op()
	})
	r.site.Inner = -1
	return ops
}

func (r *reader) place(int) (p Place) {
	var has keys
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case "rank":
			p.At, p.Rank = Owned, r.int()
		case "type":
			p.Buffer = r.buffer()
		case "buffer_id":
			p.At, p.ID = RemoteBuffer, r.int()
		case "switch_channel_id":
			p.At, p.ID = Members, r.int()
		case "index":
			p.Index = r.int()
		case "size":
			p.Size = r.int()
		default:
			return false
		}
		return true
	})
	switch {
	case slices.Contains(has, "buffer_id"):
		r.only(has, "buffer_id", "index", "size")
	case slices.Contains(has, "switch_channel_id"):
		r.only(has, "switch_channel_id", "index", "size")
	case slices.Contains(has, "rank"):
		r.only(has, "rank", "type", "index", "size")
	default:
		r.only(has, "type", "index", "size")
	}
	return p
}

func (r *reader) group() (g Group) {
	var has keys
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case "tb_id":
			g.ID = r.int()
		case "tbg_size":
			g.Size = r.int()
		default:
			return false
		}
		return true
	})
	r.need(has, "tb_id", "tbg_size")
	if r.err == nil && g.ID >= g.Size {
		r.fail("position %d in a group of %d blocks", g.ID, g.Size)
	}
	return g
}

func (r *reader) window() (unit uint64, chunks int) {
	var has keys
	r.object(func(key string) bool {
		has.add(key)
		switch key {
		case "unit_size":
			unit = r.uint64(largest)
		case "num_chunks":
			chunks = r.int()
		default:
			return false
		}
		return true
	})
	r.need(has, "unit_size", "num_chunks")
	return unit, chunks
}

func (r *reader) ints() []int { return array(r, func(int) int { return r.int() }) }

func (r *reader) channelType() ChannelType { return ChannelType(r.one(channelNames[:])) }

func (r *reader) buffer() Buffer { return Buffer(r.one([]string{"i", "o", "s"})) }
