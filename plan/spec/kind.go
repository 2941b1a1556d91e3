package spec

// Kind is what an operation does. All threads of a block work on an operation, and none waits for the
// others before it goes on to the next, except at a [Nop] and a [Barrier].
type Kind uint8

// Operations that order others.
const (
	// Nop is a barrier of the threads of a block.
	Nop Kind = iota
	// Barrier is one of several blocks of a rank.
	Barrier
	// SemAcquire takes one of each semaphore, and waits while there is none.
	SemAcquire
	// SemRelease adds one to each semaphore.
	SemRelease
	// Signal adds one to the peer's counter of each channel, after what this block wrote before.
	Signal
	// Wait waits for one more signal of each channel.
	Wait
	// RelaxedSignal is a Signal that publishes no data.
	RelaxedSignal
	// RelaxedWait is a Wait that makes no data visible.
	RelaxedWait
	// Flush waits until the transfers of port channels have read their sources.
	Flush
)

// Operations on data.
const (
	// Copy copies between local buffers.
	Copy Kind = iota + Flush + 1
	// Put writes local data to remote buffers, one each.
	Put
	// PutWithSignal is Put and Signal through ports.
	PutWithSignal
	// PutWithSignalAndFlush is PutWithSignal and Flush.
	PutWithSignalAndFlush
	// Get reads remote data into local buffers, one each.
	Get
	// Reduce folds local sources.
	Reduce
	// ReadReduce folds a local source and remote ones.
	ReadReduce
	// ReduceSend is Reduce, and Put of the result to each remote buffer.
	ReduceSend
	// ReadReduceSend is ReadReduce, and Put of the result to each remote buffer.
	ReadReduceSend
)

// Operations on packets.
const (
	// CopyPackets writes local data as packets to a local slot.
	CopyPackets Kind = iota + ReadReduceSend + 1
	// UnpackPackets waits for the packets of a local slot and writes their data to a local buffer.
	UnpackPackets
	// PutPackets writes local data as packets to remote slots, one each. Through ports the source is a slot that
	// has packets already.
	PutPackets
	// ReadPutPackets waits for the packets of a local slot and writes them to each remote slot.
	ReadPutPackets
	// ReducePackets waits for the packets of local slots and folds them and a local source.
	ReducePackets
	// ReduceSendPackets is ReducePackets, and packets of the result to each remote slot.
	ReduceSendPackets
	// ReduceCopyPackets is ReducePackets, and packets of the result to a local slot.
	ReduceCopyPackets
	// ReduceCopySendPackets is ReduceCopyPackets, and packets of the result to each remote slot.
	ReduceCopySendPackets
)

// Operations on switch channels, whose members are ranks: a range of chunks is that of a buffer of each.
const (
	// SwitchReduce folds the members' chunks into a local buffer.
	SwitchReduce Kind = iota + ReduceCopySendPackets + 1
	// SwitchStore writes local data to all members.
	SwitchStore
	// SwitchStorePackets waits for the packets of a local slot and writes them to the slots of all members.
	SwitchStorePackets
	// SwitchReduceStore folds the members' chunks and writes the result to all members.
	SwitchReduceStore
)

// Pipeline repeats the operations in it for each window of their chunks.
const Pipeline = SwitchReduceStore + 1

const kinds = int(Pipeline) + 1

// rule is the form of a kind of operation.
type rule struct {
	name string
	// src and dst are what the places must be, one letter each: data in a local buffer (L) or in a remote one (R),
	// a slot of local scratch (l) or of remote (r), a range of a switch channel (W), a slot of one (w), data (S) or
	// a slot (s) that names its rank. A + after a letter means one or more.
	src, dst string
	paired   bool     // as many sources as destinations
	via      channels // the types of channel that it may use
	ids      ids      // what its list of channels must be
	reduces  bool     // it has a reduction
	splits   channels // it may be a part of a group's, through these
	packets  bool     // it writes or reads packets
}

// channels is a set of types of channel, bit by bit.
type channels uint8

const (
	noChannel channels = 1 << iota
	memory
	port
	switched
)

// ids says which channels an operation lists.
type ids uint8

const (
	noIDs       ids = iota
	someIDs         // one or more
	oneID           // one
	idsOfPorts      // one for each destination, through ports
	idOfSources     // one for each source
)

var rules = [kinds]rule{
	Nop:        {name: "nop", via: noChannel},
	Barrier:    {name: "barrier", via: noChannel},
	SemAcquire: {name: "sem_acquire", via: noChannel},
	SemRelease: {name: "sem_release", via: noChannel},

	Signal:        {name: "signal", via: memory | port, ids: someIDs},
	Wait:          {name: "wait", via: memory | port, ids: someIDs},
	RelaxedSignal: {name: "rlxsignal", via: memory, ids: someIDs},
	RelaxedWait:   {name: "rlxwait", via: memory, ids: someIDs},
	Flush:         {name: "flush", via: port, ids: someIDs},

	Copy: {name: "copy", src: "L", dst: "L", via: noChannel, splits: noChannel},
	Put: {
		name: "put", src: "L+", dst: "R+", paired: true,
		via: memory | port, ids: idsOfPorts, splits: memory,
	},
	PutWithSignal: {name: "pws", src: "L+", dst: "R+", paired: true, via: port, ids: idsOfPorts},
	PutWithSignalAndFlush: {
		name: "pwsf", src: "L+", dst: "R+", paired: true,
		via: port, ids: idsOfPorts,
	},
	Get: {
		name: "get", src: "R+", dst: "L+", paired: true,
		via: memory, ids: idOfSources, splits: memory,
	},
	Reduce:         {name: "re", src: "LL+", dst: "L", via: noChannel, reduces: true, splits: noChannel},
	ReadReduce:     {name: "rre", src: "LR+", dst: "L", via: memory, reduces: true, splits: memory},
	ReduceSend:     {name: "res", src: "LL+", dst: "LR+", via: memory, reduces: true, splits: memory},
	ReadReduceSend: {name: "rres", src: "LR+", dst: "LR+", via: memory, reduces: true, splits: memory},

	CopyPackets:   {name: "cpkt", src: "L", dst: "l", via: noChannel, splits: noChannel, packets: true},
	UnpackPackets: {name: "upkt", src: "l", dst: "L", via: noChannel, splits: noChannel, packets: true},
	PutPackets: {
		name: "ppkt", src: "L+", dst: "r+", paired: true,
		via: memory | port, ids: idsOfPorts, splits: memory, packets: true,
	},
	ReadPutPackets: {
		name: "rppkt", src: "l", dst: "r+",
		via: memory | port, ids: idsOfPorts, splits: memory | port, packets: true,
	},
	ReducePackets: {
		name: "repkt", src: "Ll+", dst: "L",
		via: noChannel, reduces: true, splits: noChannel, packets: true,
	},
	ReduceSendPackets: {
		name: "respkt", src: "Ll+", dst: "Lr+",
		via: memory, reduces: true, splits: memory, packets: true,
	},
	ReduceCopyPackets: {
		name: "recpkt", src: "Ll+", dst: "Ll",
		via: noChannel, reduces: true, splits: noChannel, packets: true,
	},
	ReduceCopySendPackets: {
		name: "recspkt", src: "Ll+", dst: "Llr+",
		via: memory, reduces: true, splits: memory, packets: true,
	},

	SwitchReduce:       {name: "glre", src: "W", dst: "S", via: switched, ids: oneID, reduces: true},
	SwitchStore:        {name: "gstore", src: "S", dst: "W", via: switched},
	SwitchStorePackets: {name: "gstorepkt", src: "s", dst: "w", via: switched, packets: true},
	SwitchReduceStore:  {name: "glres", src: "W", dst: "W", via: switched, reduces: true},

	Pipeline: {name: "pipeline", via: noChannel},
}

// byName finds kinds, which names are unique.
var byName = func() map[string]Kind {
	m := make(map[string]Kind, kinds)
	for k, r := range rules {
		m[r.name] = Kind(k)
	}
	return m
}()

// String is the name of the operation in a file.
func (k Kind) String() string {
	if int(k) >= kinds {
		return "unknown"
	}
	return rules[k].name
}

// Packets says whether the operation writes or reads packets. In a pipeline such operations repeat whole.
func (k Kind) Packets() bool { return rules[k].packets }

// Reduces says whether the operation has a reduction.
func (k Kind) Reduces() bool { return rules[k].reduces }

// Syncs says whether the operation only orders others.
func (k Kind) Syncs() bool { return k <= Flush }
