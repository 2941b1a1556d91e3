package libfabric

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/provider"
	"github.com/weftgo/weft/internal/dl"
)

// ErrNoProvider: the library has no such provider, or the provider has no device or address here.
var ErrNoProvider = errors.New("no such provider here")

// Config says which endpoint to open.
type Config struct {
	Provider  string // as libfabric names it
	Source    string // the address of the interface to use, or empty
	Unordered bool   // do not ask for writes in order
	Devices   bool   // ask for memory of GPUs
	Peers     int    // how many addresses will be inserted
}

const (
	queueSize  = 4096 // completions, of which those of peers come unasked
	contextLen = 64   // struct fi_context2
	batch      = 16   // completions that one call reads
	nameLen    = 256
)

// Endpoint is a provider's, with a domain and a queue of its own.
type Endpoint struct {
	lib        *Library
	info       *info
	attributes provider.Attributes
	mrMode     uint32

	fabric  *fabricObject
	domain  *domainObject
	queue   *queueObject
	table   *addressObject
	ep      *endpointObject
	memory  map[*memory]struct{}
	ready   int32 // the descriptor that wakes sleepers, or -1
	trywait dl.Func

	write, writeData, writeMessage, read dl.Func
	waited                               [1]*queueObject // what fi_trywait takes

	contexts []byte // pinned, as is what calls write to or read from
	pinner   runtime.Pinner
	out      scratch
}

// scratch is what calls take by address. It is on the heap, as calls into C need it.
type scratch struct {
	entries [batch]cqEntry
	failed  cqError
	text    [256]byte
	name    [nameLen]byte
	length  uint64
	address uint64
	cq      cqAttr
	av      avAttr
	memory  *memoryObject
	attr    memoryAttr
	vector  vector
	dmaBuf  dmaBuf
	message message
}

// OpenEndpoint opens an endpoint of a provider.
func (l *Library) OpenEndpoint(c Config) (*Endpoint, error) {
	e := &Endpoint{lib: l, ready: -1, memory: map[*memory]struct{}{}}
	if err := e.open(c); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Endpoint) open(c Config) error {
	if err := e.choose(c); err != nil {
		return err
	}
	l := e.lib
	e.pinner.Pin(&e.out)
	if err := e.check("fi_fabric", l.fabric.Call(dl.Word(e.info.fabric), dl.Word(&e.fabric), 0)); err != nil {
		return err
	}
	if err := e.check("fi_domain", e.fabric.fabric.at(opDomain).Call(dl.Word(e.fabric), dl.Word(e.info),
		dl.Word(&e.domain), 0)); err != nil {
		return err
	}
	if err := e.openQueue(); err != nil {
		return err
	}
	e.out.av.count = uint64(max(c.Peers, 1))
	if err := e.check("fi_av_open", e.domain.domain.at(opAVOpen).Call(dl.Word(e.domain), dl.Word(&e.out.av),
		dl.Word(&e.table), 0)); err != nil {
		return err
	}
	if err := e.check("fi_endpoint", e.domain.domain.at(opEndpoint).Call(dl.Word(e.domain), dl.Word(e.info),
		dl.Word(&e.ep), 0)); err != nil {
		return err
	}
	bind := e.ep.ops.at(opBind)
	if err := e.check("fi_ep_bind", bind.Call(dl.Word(e.ep), dl.Word(e.table), 0)); err != nil {
		return err
	}
	if err := e.check("fi_ep_bind", bind.Call(dl.Word(e.ep), dl.Word(e.queue), bindReceive|bindTransmit)); err != nil {
		return err
	}
	if err := e.check("fi_enable", e.ep.ops.at(opControl).Call(dl.Word(e.ep), controlEnable, 0)); err != nil {
		return err
	}
	e.write, e.writeData, e.read = e.ep.rma.at(opWrite), e.ep.rma.at(opWriteData), e.queue.cq.at(opRead)
	if e.write == 0 || e.writeData == 0 || e.read == 0 {
		return fmt.Errorf("%s has no fi_write, fi_writedata or fi_cq_read: take another provider", c.Provider)
	}
	if e.attributes.Delivered {
		e.writeMessage = e.ep.rma.at(opWriteMsg)
	}
	m := &e.out.message
	m.local, m.descriptor, m.remote = &m.localPart, &m.descriptors[0], &m.remotePart
	m.locals, m.remotes = 1, 1
	e.contexts = make([]byte, provider.Tokens*contextLen)
	e.pinner.Pin(unsafe.SliceData(e.contexts))
	return nil
}

// choose asks for the best that the provider has, then for less.
func (e *Endpoint) choose(c Config) error {
	ordered := !c.Unordered
	for _, want := range []struct{ devices, ordered, delivered bool }{
		{c.Devices, ordered, true},
		{c.Devices, ordered, false},
		{c.Devices, false, true},
		{c.Devices, false, false},
		{false, ordered, true},
		{false, ordered, false},
		{false, false, true},
		{false, false, false},
	} {
		found, err := e.lib.find(c, want.devices, want.ordered, want.delivered)
		if failure, ok := errors.AsType[*provider.Failure](err); ok && failure.Code == codeNoData {
			continue
		}
		if err != nil {
			return err
		}
		e.info = found
		e.describe(want.ordered, want.delivered)
		e.attributes.Devices = want.devices
		e.attributes.DMABufs = want.devices && e.lib.Version >= dmaBufVersion
		return nil
	}
	return fmt.Errorf("%w: libfabric %v (%s) offers no RMA by %s%s", ErrNoProvider, e.lib.Version, e.lib.Path,
		c.Provider, At(c.Source))
}

// At names an address in an error, if there is one.
func At(source string) string {
	if source == "" {
		return ""
	}
	return " at " + source
}

// find is fi_getinfo.
func (l *Library) find(c Config, devices, ordered, delivered bool) (*info, error) {
	// The library makes the structure and so gives it its own size.
	hints := (*info)(unsafe.Pointer(foreign(l.dupinfo.Call(0))))
	if hints == nil {
		return nil, errors.New("fi_dupinfo: out of memory")
	}
	ask := struct {
		provider, source *byte
		found            *info
	}{provider: cString(c.Provider)}
	pinned := new(runtime.Pinner)
	defer pinned.Unpin()
	pinned.Pin(ask.provider)
	hints.caps = capMessage | capRMA
	hints.mode = modeContext | modeContext2
	hints.ep.kind = endpointReliable
	hints.domain.threading = threadDomain
	hints.domain.resourceMgmt = resourcesEnabled
	hints.domain.mrMode = mrLocal | mrVirtual | mrAllocated | mrKey | mrEvent | mrEndpoint
	version := uintptr(apiVersion)
	if devices {
		hints.caps |= capDevices
		hints.domain.mrMode |= mrDevices
		version = min(max(version, uintptr(l.Version)), dmaBufVersion)
	}
	if ordered {
		hints.tx.order, hints.rx.order = orderWritesAfterWrites, orderWritesAfterWrites
	}
	if delivered {
		hints.tx.opFlags = flagDelivery
	}
	hints.fabric.provider = ask.provider
	flags := uint64(0)
	if c.Source != "" {
		ask.source, flags = cString(c.Source), flagSource
		pinned.Pin(ask.source)
	}
	found := new(*info)
	pinned.Pin(found)
	r := l.getinfo.Call(version, dl.Word(ask.source), 0, uintptr(flags), dl.Word(hints), dl.Word(found))
	hints.fabric.provider = nil // Go's, not the library's to free
	l.freeinfo.Call(dl.Word(hints))
	return *found, l.check("fi_getinfo", r)
}

// describe derives the attributes from what the provider granted.
func (e *Endpoint) describe(ordered, delivered bool) {
	name := dl.GoString(e.info.fabric.provider)
	// Core providers of cards place aligned words whole. A byte stream may end anywhere in one.
	core, _, _ := strings.Cut(name, ";")
	words := core == "verbs" || core == "cxi" || core == "efa" || core == "efa-direct"
	most := e.info.ep.maxMessage
	if whole := e.info.ep.maxOrderedWW; ordered && whole > 0 {
		most = min(most, whole)
	} else if ordered {
		ordered = false // in order, but for no length
	}
	e.mrMode = e.info.domain.mrMode
	e.attributes = provider.Attributes{
		Provider:  name,
		Library:   "libfabric " + e.lib.Version.String(),
		Path:      e.lib.Path,
		Ordered:   ordered,
		Words:     words,
		Delivered: delivered,
		Manual:    e.info.domain.dataProgress == progressManual,
		PicksKeys: e.mrMode&mrKey != 0,
		KeyBytes:  int(min(e.info.domain.mrKeySize, 8)),
		DataBytes: int(min(e.info.domain.cqDataSize, 8)),
		MaxWrite:  int(min(most, 1<<30, math.MaxInt)),
		Depth:     int(min(e.info.tx.size, provider.Tokens)),
	}
}

// openQueue opens the completion queue, one that can be slept on where the provider has such.
func (e *Endpoint) openQueue() error {
	e.out.cq = cqAttr{size: queueSize, format: formatData, wait: waitFD}
	create := e.domain.domain.at(opCQOpen)
	r := create.Call(dl.Word(e.domain), dl.Word(&e.out.cq), dl.Word(&e.queue), 0)
	if int32(r) != 0 {
		e.out.cq.wait = 0
		return e.check("fi_cq_open", create.Call(dl.Word(e.domain), dl.Word(&e.out.cq), dl.Word(&e.queue), 0))
	}
	e.waited[0] = e.queue
	e.trywait = e.fabric.fabric.at(opTrywait)
	if control := e.queue.ops.at(opControl); e.trywait != 0 && control != 0 &&
		int32(control.Call(dl.Word(e.queue), controlGetWait, dl.Word(&e.ready))) == 0 {
		e.attributes.Sleeps = true
	} else {
		e.ready = -1
	}
	return nil
}

// Attributes implements [provider.Endpoint], as do the methods below.
func (e *Endpoint) Attributes() provider.Attributes { return e.attributes }

// Name asks the library.
func (e *Endpoint) Name() ([]byte, error) {
	e.out.length = nameLen
	if err := e.check("fi_getname", e.ep.cm.at(opGetname).Call(dl.Word(e.ep), dl.Word(&e.out.name),
		dl.Word(&e.out.length))); err != nil {
		return nil, err
	}
	return append([]byte(nil), e.out.name[:min(e.out.length, nameLen)]...), nil
}

// Insert adds to the address vector.
func (e *Endpoint) Insert(name []byte) (provider.Address, error) {
	if len(name) > nameLen {
		return 0, fmt.Errorf("the name of an endpoint has %d bytes: want at most %d", len(name), nameLen)
	}
	e.out.name = [nameLen]byte{}
	copy(e.out.name[:], name)
	n := int32(e.table.av.at(opInsert).Call(dl.Word(e.table), dl.Word(&e.out.name), 1, dl.Word(&e.out.address), 0, 0))
	if n < 0 {
		return 0, e.failure("fi_av_insert", -int(n))
	}
	if n != 1 {
		return 0, errors.New("fi_av_insert: the provider does not take the address")
	}
	return provider.Address(e.out.address), nil
}

// Remove takes an address out of the vector, which ends its connection.
func (e *Endpoint) Remove(a provider.Address) error {
	e.out.address = uint64(a)
	return e.check("fi_av_remove", e.table.av.at(opRemove).Call(dl.Word(e.table), dl.Word(&e.out.address), 1, 0))
}

// Write posts without waiting.
func (e *Endpoint) Write(p *provider.Post) error {
	context := dl.Word(unsafe.SliceData(e.contexts)) + uintptr(p.Token)*contextLen
	descriptor := p.Local.(*memory).object.descriptor
	var r int
	switch {
	case p.Early && e.writeMessage != 0: // the only call whose flags are not the endpoint's
		m := &e.out.message
		m.localPart = iovec{p.From, uint64(p.Bytes)}
		m.remotePart = remoteIovec{p.Remote, uint64(p.Bytes), p.Key}
		m.descriptors[0], m.to, m.context, m.data = descriptor, uint64(p.To), context, p.Data
		flags := uintptr(flagCompletion)
		if p.HasData {
			flags |= flagRemoteData
		}
		r = int(e.writeMessage.Call(dl.Word(e.ep), dl.Word(m), flags))
		m.localPart.base = nil
	case p.HasData:
		r = int(e.writeData.Call(dl.Word(e.ep), uintptr(p.From), uintptr(p.Bytes), descriptor, uintptr(p.Data),
			uintptr(p.To), uintptr(p.Remote), uintptr(p.Key), context))
	default:
		r = int(e.write.Call(dl.Word(e.ep), uintptr(p.From), uintptr(p.Bytes), descriptor,
			uintptr(p.To), uintptr(p.Remote), uintptr(p.Key), context))
	}
	switch r {
	case 0:
		return nil
	case -codeAgain:
		return provider.ErrAgain
	}
	return e.failure("fi_write", -r)
}

// Poll reads the completion queue.
func (e *Endpoint) Poll(into []provider.Completion) (int, error) {
	n := int(e.read.Call(dl.Word(e.queue), dl.Word(&e.out.entries), uintptr(min(len(into), batch))))
	switch {
	case n >= 0:
		for i, entry := range e.out.entries[:n] {
			into[i] = provider.Completion{Token: e.token(entry.context), Data: entry.data}
			into[i].Arrived = entry.flags&flagRemoteData != 0
		}
		return n, nil
	case n == -codeAgain:
		return 0, nil
	case n == -codeAvailable:
		return e.pollFailed(into)
	}
	return 0, e.failure("fi_cq_read", -n)
}

func (e *Endpoint) token(context uintptr) uint32 {
	return uint32((context - dl.Word(unsafe.SliceData(e.contexts))) / contextLen)
}

// pollFailed reads the entry of an operation that failed.
func (e *Endpoint) pollFailed(into []provider.Completion) (int, error) {
	failed := &e.out.failed
	*failed = cqError{}
	n := int(e.queue.cq.at(opReadErr).Call(dl.Word(e.queue), dl.Word(failed), 0))
	if n == -codeAgain || n == 0 {
		return 0, nil
	}
	if n < 0 {
		return 0, e.failure("fi_cq_readerr", -n)
	}
	text := e.lib.text(int(failed.code))
	if word := e.queue.cq.at(opStrerror); word != 0 {
		detail := dl.GoString(foreign(word.Call(dl.Word(e.queue), uintptr(failed.providerCode), failed.detail,
			dl.Word(&e.out.text), uintptr(len(e.out.text)))))
		if detail != "" && detail != text {
			text += "; " + detail
		}
	}
	token := e.token(failed.context)
	if failed.context < dl.Word(unsafe.SliceData(e.contexts)) || token >= provider.Tokens {
		return 0, nil // a peer's operation, of which the peer hears
	}
	into[0] = provider.Completion{Token: token, Err: &provider.Failure{
		Call: "fi_write", Code: int(failed.code), Text: text,
	}}
	return 1, nil
}

// Arm asks the library whether its descriptor will tell of what comes.
func (e *Endpoint) Arm() bool {
	return e.ready >= 0 && int32(e.trywait.Call(dl.Word(e.fabric), dl.Word(&e.waited), 1)) == 0
}

// Close closes in the order that the library wants.
func (e *Endpoint) Close() error {
	var errs []error
	closeObject := func(call string, o *object) {
		if o != nil {
			errs = append(errs, e.check(call, o.ops.at(opClose).Call(dl.Word(o))))
		}
	}
	if e.ep != nil {
		closeObject("fi_close of the endpoint", &e.ep.object)
	}
	for m := range e.memory {
		errs = append(errs, m.Close())
	}
	if e.table != nil {
		closeObject("fi_close of the address vector", &e.table.object)
	}
	if e.queue != nil {
		closeObject("fi_close of the queue", &e.queue.object)
	}
	if e.domain != nil {
		closeObject("fi_close of the domain", &e.domain.object)
	}
	if e.fabric != nil {
		closeObject("fi_close of the fabric", &e.fabric.object)
	}
	if e.info != nil {
		e.lib.freeinfo.Call(dl.Word(e.info))
	}
	e.ep, e.table, e.queue, e.domain, e.fabric, e.info = nil, nil, nil, nil, nil, nil
	e.pinner.Unpin()
	return errors.Join(errs...)
}

func (e *Endpoint) check(call string, r uintptr) error { return e.lib.check(call, r) }

func (e *Endpoint) failure(call string, code int) error { return e.lib.failure(call, code) }

// check turns the answer of a call that returns an int into an error.
func (l *Library) check(call string, r uintptr) error {
	if code := int32(r); code < 0 {
		return l.failure(call, -int(code))
	}
	return nil
}

func (l *Library) failure(call string, code int) error {
	return &provider.Failure{Call: call, Code: code, Text: l.text(code)}
}

// cString is s with a NUL after it, on the heap.
func cString(s string) *byte { return unsafe.SliceData(append([]byte(s), 0)) }
