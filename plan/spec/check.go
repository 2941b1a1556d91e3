package spec

import (
	"fmt"
	"math"
	"math/big"
	"slices"
)

// Check is the first rule that the plan breaks, an [*Error], or nil. What it passes, the verifier and the executors
// take without looking again: every number is in range, and every place in its buffer.
func (f *File) Check() error {
	if faults := f.Faults(); len(faults) > 0 {
		return faults[0]
	}
	return nil
}

// Faults is every rule that the plan breaks.
func (f *File) Faults() []*Error {
	c := &checker{f: f, site: Nowhere}
	c.file()
	for r := range f.Ranks {
		c.rank(r)
	}
	if len(c.faults) == 0 {
		c.pairs()
	}
	return c.faults
}

// checker collects faults.
type checker struct {
	f      *File
	site   Site
	kind   string
	faults []*Error
}

func (c *checker) fault(format string, args ...any) {
	c.faults = append(c.faults, &Error{Site: c.site, Kind: c.kind, Reason: fmt.Sprintf(format, args...)})
}

func (c *checker) file() {
	f := c.f
	if len(f.Ranks) == 0 {
		c.fault("it has no ranks")
	}
	if f.Protocol != Simple && f.Protocol != LL {
		c.fault("protocol %q is neither Simple nor LL", f.Protocol)
	}
	if f.Threads < 1 || f.Alignment < 1 {
		c.fault("blocks of %d threads and an alignment of %d bytes; both must be positive", f.Threads, f.Alignment)
	}
	if f.MinBytes > f.MaxBytes {
		c.fault("messages from %d to %d bytes are none", f.MinBytes, f.MaxBytes)
	}
}

func (c *checker) rank(r int) {
	rank := &c.f.Ranks[r]
	c.site = Site{r, -1, -1, -1}
	if rank.Input < 0 || rank.Output < 0 || rank.Scratch < 0 {
		c.fault("a negative number of chunks")
	}
	for i, list := range rank.Channels {
		if list.Type != Memory && list.Type != Port {
			c.fault("channels of type %q to single ranks", list.Type)
		}
		if slices.ContainsFunc(rank.Channels[:i], func(e Channels) bool { return e.Type == list.Type }) {
			c.fault("two lists of %v channels", list.Type)
		}
		for k, peer := range list.Peers {
			if !c.known(peer) || peer == r {
				c.fault("%v channel %d leads to rank %d, which is no other rank", list.Type, k, peer)
			}
		}
	}
	for k, s := range rank.Switches {
		c.switches(r, k, s)
	}
	for i, b := range rank.Remotes {
		if !c.known(b.Rank) || b.Rank == r {
			c.fault("remote buffer %d is of rank %d, which is no other rank", i, b.Rank)
		}
		if b.Buffer > Scratch {
			c.fault("remote buffer %d is of no kind of buffer: %d", i, uint8(b.Buffer))
		}
		for _, t := range b.Access {
			if t != Memory && t != Port {
				c.fault("remote buffer %d is reached by %q channels", i, t)
			}
		}
	}
	for i, value := range rank.Semaphores {
		if value < 0 {
			c.fault("semaphore %d begins at %d", i, value)
		}
	}
	for b := range rank.Blocks {
		c.block(r, b)
	}
}

func (c *checker) known(rank int) bool { return rank >= 0 && rank < len(c.f.Ranks) }

func (c *checker) switches(r, k int, s Switch) {
	if s.Buffer > Scratch {
		c.fault("switch channel %d is of no kind of buffer: %d", k, uint8(s.Buffer))
	}
	if !slices.Contains(s.Ranks, r) {
		c.fault("it is no member of its switch channel %d", k)
	}
	for i, member := range s.Ranks {
		if !c.known(member) || slices.Contains(s.Ranks[:i], member) {
			c.fault("member %d of switch channel %d is rank %d, which is none or there already", i, k, member)
		}
	}
}

func (c *checker) block(r, b int) {
	rank := &c.f.Ranks[r]
	block := &rank.Blocks[b]
	c.site = Site{r, b, -1, -1}
	for i, u := range block.Channels {
		n := len(rank.Peers(u.Type))
		if u.Type == Switched {
			n = len(rank.Switches)
		}
		c.uses("channel", block.Channels[:i], u, n)
	}
	for i, u := range block.Remotes {
		c.uses("remote buffer", block.Remotes[:i], u, len(rank.Remotes))
	}
	if len(c.faults) > 0 && c.faults[len(c.faults)-1].Site == c.site {
		return // operations look their channels up in these lists
	}
	for i := range block.Ops {
		op := &block.Ops[i]
		c.site = Site{r, b, i, -1}
		c.op(op)
		for k := range op.Ops {
			c.site.Inner = k
			c.op(&op.Ops[k])
		}
	}
	c.site, c.kind = Site{r, -1, -1, -1}, ""
}

// uses checks a list of a block whose numbers are below n.
func (c *checker) uses(of string, before []Uses, u Uses, n int) {
	if u.Type == NoChannel {
		c.fault("a list of %ss without a type", of)
	}
	if slices.ContainsFunc(before, func(e Uses) bool { return e.Type == u.Type }) {
		c.fault("two lists of %v %ss", u.Type, of)
	}
	for _, id := range u.IDs {
		if id < 0 || id >= n {
			c.fault("%v %s %d, of %d that the rank has", u.Type, of, id, n)
		}
	}
}

func (c *checker) op(op *Op) {
	c.kind = op.Kind.String()
	if int(op.Kind) >= kinds {
		c.fault("no operation has number %d", op.Kind)
		return
	}
	rule := &rules[op.Kind]
	if op.Via > Switched {
		c.fault("no type of channel has number %d", uint8(op.Via))
		return
	}
	if op.Reduce > Max {
		c.fault("no reduction has number %d", uint8(op.Reduce))
		return
	}
	if rule.via&(1<<op.Via) == 0 {
		c.fault("channels of type %q do not do that", op.Via)
		return
	}
	if rule.reduces != (op.Reduce != NoReduction) {
		c.fault("a reduction where the operation has none, or none where it has one")
	}
	if op.Group.Size != 0 && (rule.splits&(1<<op.Via) == 0 || op.Group.ID < 0 || op.Group.ID >= op.Group.Size) {
		c.fault("position %d in a group of %d blocks, which do not do this operation together",
			op.Group.ID, op.Group.Size)
	}
	switch op.Kind {
	case Barrier:
		if op.Blocks < 1 || op.Barrier < 0 {
			c.fault("barrier %d of %d blocks", op.Barrier, op.Blocks)
		}
	case SemAcquire, SemRelease:
		c.semaphores(op)
	case Pipeline:
		c.pipeline(op)
	}
	if c.shape(op, rule) {
		c.places(op)
	}
}

func (c *checker) semaphores(op *Op) {
	if len(op.Semaphores) == 0 {
		c.fault("it names no semaphore")
	}
	for _, id := range op.Semaphores {
		if n := len(c.f.Ranks[c.site.Rank].Semaphores); id < 0 || id >= n {
			c.fault("semaphore %d, of %d that the rank has", id, n)
		}
	}
}

func (c *checker) pipeline(op *Op) {
	if c.site.Inner >= 0 {
		c.fault("a pipeline in a pipeline")
	}
	if op.Unit < 1 || op.Chunks < 1 {
		c.fault("windows of %d bytes over %d chunks; both must be positive", op.Unit, op.Chunks)
	}
}

// shape checks that an operation has the places and channels of its kind.
func (c *checker) shape(op *Op, rule *rule) bool {
	was := len(c.faults)
	src := rule.src
	if op.Kind == PutPackets && op.Via == Port {
		src = "l+" // they are packets already
	}
	if !matches(src, op.Src) {
		c.fault("%d sources, which should be %s", len(op.Src), spell(src))
	}
	if !matches(rule.dst, op.Dst) {
		c.fault("%d destinations, which should be %s", len(op.Dst), spell(rule.dst))
	}
	if rule.paired && len(op.Src) != len(op.Dst) {
		c.fault("%d sources and %d destinations", len(op.Src), len(op.Dst))
	}
	want := 0
	switch {
	case rule.ids == someIDs:
		want = max(1, len(op.Channels))
	case rule.ids == oneID:
		want = 1
	case rule.ids == idOfSources:
		want = len(op.Src)
	case rule.ids == idsOfPorts && op.Via == Port:
		want = len(op.Dst)
	}
	if len(op.Channels) != want || want == 0 && op.Channels != nil {
		c.fault("%d channels, which should be %d", len(op.Channels), want)
	}
	block := &c.f.Ranks[c.site.Rank].Blocks[c.site.Block]
	for i, id := range op.Channels {
		if block.Channel(op.Via, id) < 0 {
			c.fault("%v channel %d is not in the block's list", op.Via, id)
		}
		if rule.ids == someIDs && slices.Contains(op.Channels[:i], id) {
			c.fault("%v channel %d is named twice", op.Via, id)
		}
	}
	return len(c.faults) == was
}

// forms says which places each letter of a rule allows.
var forms = [...]struct {
	at   Where
	slot bool
	text string
}{
	'L': {Local, false, "local data"},
	'l': {Local, true, "a local slot of scratch"},
	'R': {RemoteBuffer, false, "remote data"},
	'r': {RemoteBuffer, true, "a remote slot of scratch"},
	'W': {Members, false, "a range of a switch"},
	'w': {Members, true, "a slot of a switch"},
	'S': {Owned, false, "local data with its rank"},
	's': {Owned, true, "a local slot with its rank"},
}

// matches says whether places are what a rule wants, but for the buffers of slots.
func matches(pattern string, all []Place) bool {
	i := 0
	for p := 0; p < len(pattern); p++ {
		many := p+1 < len(pattern) && pattern[p+1] == '+'
		from := i
		for i < len(all) && all[i].At == forms[pattern[p]].at && (many || i == from) {
			i++
		}
		if i == from {
			return false
		}
		if many {
			p++
		}
	}
	return i == len(all) && (all == nil) == (pattern == "")
}

// spell says a pattern in words.
func spell(pattern string) string {
	if pattern == "" {
		return "none"
	}
	text := ""
	for p := 0; p < len(pattern); p++ {
		switch {
		case pattern[p] == '+':
			text += ", one or more"
			continue
		case p > 0:
			text += " and then "
		}
		text += forms[pattern[p]].text
	}
	return text
}

// letter is the letter of the i-th place of a pattern.
func letter(pattern string, i int) byte {
	for p := 0; p < len(pattern); p++ {
		if i == 0 || p+1 < len(pattern) && pattern[p+1] == '+' && p+2 == len(pattern) {
			return pattern[p]
		}
		i--
	}
	return 0
}

// Slot says whether the i-th source, or destination, of an operation is a slot of packets.
func (op *Op) Slot(source bool, i int) bool {
	if op.Kind == PutPackets && op.Via == Port {
		return true
	}
	pattern := rules[op.Kind].dst
	if source {
		pattern = rules[op.Kind].src
	}
	return forms[letter(pattern, i)].slot
}

func (c *checker) places(op *Op) {
	size := -1
	for _, source := range []bool{true, false} {
		all, name := op.Dst, "destination"
		if source {
			all, name = op.Src, "source"
		}
		for i, p := range all {
			if size < 0 {
				size = p.Size
			}
			if p.Size != size {
				c.fault("%s %d has %d chunks, and others have %d", name, i, p.Size, size)
			}
			c.place(op, position{name, i}, p, op.Slot(source, i))
			c.leads(op, name, i, p)
		}
	}
}

// position is a source or destination of an operation.
type position struct {
	list string
	i    int
}

func (p position) String() string { return fmt.Sprintf("%s %d", p.list, p.i) }

// place checks that a range lies in its buffer.
func (c *checker) place(op *Op, name position, p Place, slot bool) {
	rank := &c.f.Ranks[c.site.Rank]
	block := &rank.Blocks[c.site.Block]
	buffer, owner, owners := p.Buffer, [1]int{c.site.Rank}, []int(nil)
	if buffer > Scratch {
		c.fault("%v is in no kind of buffer: %d", name, uint8(buffer))
		return
	}
	switch p.At {
	case Owned:
		if p.Rank != c.site.Rank {
			c.fault("%v is of rank %d, which does not run the operation", name, p.Rank)
			return
		}
	case RemoteBuffer:
		id := block.Remote(op.Via, p.ID)
		if id < 0 {
			c.fault("%v: %v remote buffer %d is not in the block's list", name, op.Via, p.ID)
			return
		}
		buffer, owner[0] = rank.Remotes[id].Buffer, rank.Remotes[id].Rank
	case Members:
		id := block.Channel(Switched, p.ID)
		if id < 0 {
			c.fault("%v: switch channel %d is not in the block's list", name, p.ID)
			return
		}
		buffer, owners = rank.Switches[id].Buffer, rank.Switches[id].Ranks
		if op.Kind == SwitchReduce && p.Buffer != buffer {
			c.fault("%v is the %v, and switch channel %d is of the %v", name, p.Buffer, p.ID, buffer)
		}
	}
	if slot && buffer != Scratch {
		c.fault("%v has packets in the %v; packets need scratch", name, buffer)
		return
	}
	if owners == nil {
		owners = owner[:]
	}
	for _, owner := range owners {
		if !c.known(owner) {
			continue // and the rank's switch has a fault
		}
		n := c.f.Ranks[owner].Size(buffer)
		at, size := p.Index, p.Size
		if slot && c.f.Protocol != LL && max(at, size) <= math.MaxInt/2 {
			at, size = 2*at, 2*size // scratch has no room for flags of its own
		}
		if at < 0 || size < 0 || at > n || size > n-at {
			c.fault("%v ends at chunk %v of the %v of rank %d, which has %d", name, end(at, size), buffer, owner, n)
		}
	}
}

// end is the sum of an index and a size, which an int may not hold.
func end(at, size int) *big.Int {
	return new(big.Int).Add(big.NewInt(int64(at)), big.NewInt(int64(size)))
}

// leads checks that the channel of a remote place goes to the rank whose buffer it is.
func (c *checker) leads(op *Op, name string, i int, p Place) {
	if p.At != RemoteBuffer || i >= len(op.Channels) {
		return
	}
	rank := &c.f.Ranks[c.site.Rank]
	block := &rank.Blocks[c.site.Block]
	id := block.Remote(op.Via, p.ID)
	if id < 0 {
		return
	}
	peer, owner := rank.Peers(op.Via)[block.Channel(op.Via, op.Channels[i])], rank.Remotes[id].Rank
	if peer != owner {
		c.fault("%s %d is of rank %d, and its %v channel leads to rank %d", name, i, owner, op.Via, peer)
	}
}

// pairs checks that every member of a switch has it.
func (c *checker) pairs() {
	for r := range c.f.Ranks {
		for k, s := range c.f.Ranks[r].Switches {
			for _, member := range s.Ranks {
				if c.count(r, s) != c.count(member, s) {
					c.site = Site{r, -1, -1, -1}
					c.fault("it has %d switch channels like number %d, and rank %d has %d",
						c.count(r, s), k, member, c.count(member, s))
				}
			}
		}
	}
}

// count is how many switches of a rank have certain members and a certain buffer.
func (c *checker) count(rank int, s Switch) (n int) {
	for _, o := range c.f.Ranks[rank].Switches {
		if o.Buffer == s.Buffer && slices.Equal(o.Ranks, s.Ranks) {
			n++
		}
	}
	return n
}
