package fabric

import (
	"errors"
	"fmt"
	"time"

	"github.com/weftgo/weft/fabric/internal/provider"
)

// A proxy posts for many and must wait for none of them. It has calls that do not wait: each says whether
// it was taken, and Domain.Poll makes room.

// lock takes the domain's lock, which waits that spin give away when they are asked.
func (d *Domain) lock() {
	if d.mu.TryLock() {
		return
	}
	d.wanted.Add(1)
	d.mu.Lock()
	d.wanted.Add(-1)
}

// taken says whether a try was taken, without ErrAgain, which is no failure.
func taken(err error) (bool, error) {
	if errors.Is(err, provider.ErrAgain) {
		return false, nil
	}
	return err == nil, err
}

// crowds says whether the peer has half of what may be underway. Tries leave the rest to others, so that one
// peer that has gone silent does not fill the endpoint.
func (p *Peer) crowds() bool {
	return p.d.options.Size > 2 && p.posted-p.done.next >= uint64(cap(p.d.free)/2)
}

// TryWrite is [Peer.Write] without waiting. It returns how many of the bytes were taken, from the first
// on: 0 to n.
func (p *Peer) TryWrite(to Remote, at int, from *Region, offset, n int) (int, error) {
	if err := p.checkWrite(to, at, from, offset, n); err != nil {
		return 0, err
	}
	p.d.lock()
	defer p.d.mu.Unlock()
	done := 0
	for done < n && !p.crowds() {
		part, err := p.write(to, at+done, from, offset+done, n-done)
		if ok, err := taken(err); !ok {
			return done, err
		}
		done += part
	}
	return done, p.usable("write")
}

// TrySignal is [Peer.Signal] without waiting. It reports whether the signal was taken.
func (p *Peer) TrySignal(id int) (bool, error) {
	if err := p.checkSignal(id); err != nil {
		return false, err
	}
	p.d.lock()
	defer p.d.mu.Unlock()
	if p.crowds() {
		return false, p.usable("signal")
	}
	return taken(p.signal(id))
}

// TryWriteSignal is [Peer.TryWrite] and, if all is taken, [Peer.TrySignal]. It reports how many bytes were taken, and
// whether the signal was. The two are one message where the provider is a byte stream and one write carries the bytes.
func (p *Peer) TryWriteSignal(to Remote, at int, from *Region, offset, n, id int,
) (done int, signalled bool, err error) {
	if err := p.checkSignal(id); err != nil {
		return 0, false, err
	}
	if !p.raises() || n < 1 || n > p.d.caps.MaxWrite {
		if done, err = p.TryWrite(to, at, from, offset, n); done < n || err != nil {
			return done, false, err
		}
		signalled, err = p.TrySignal(id)
		return done, signalled, err
	}
	if err := p.checkWrite(to, at, from, offset, n); err != nil {
		return 0, false, err
	}
	p.d.lock()
	defer p.d.mu.Unlock()
	if p.crowds() {
		return 0, false, p.usable("write")
	}
	signalled, err = taken(p.raise("write", id, func(post *provider.Post) error {
		return p.fill(post, to, at, from, offset, n)
	}))
	if signalled {
		done = n
	}
	return done, signalled, err
}

// TryAdd is [Peer.Add] without waiting. It reports whether the add was taken.
func (p *Peer) TryAdd(to Remote, at int, value uint64) (bool, error) {
	if err := p.checkAdd(to, at); err != nil {
		return false, err
	}
	p.d.lock()
	defer p.d.mu.Unlock()
	if p.crowds() {
		return false, p.usable("add")
	}
	return taken(p.add(to, at, value))
}

// A Mark is a place in what this rank posts to a peer.
type Mark struct{ posted, adds uint64 }

// Mark is the place behind all that was posted to the peer so far.
func (p *Peer) Mark() Mark {
	p.d.lock()
	defer p.d.mu.Unlock()
	return Mark{p.posted, p.adds}
}

// Flushed is [Peer.Flush] up to a mark, without waiting: it reports whether what was posted before has
// completed.
func (p *Peer) Flushed(m Mark) (bool, error) {
	p.d.lock()
	defer p.d.mu.Unlock()
	if err := p.usable("flush"); err != nil {
		return false, err
	}
	return p.done.next >= m.posted && p.executed >= m.adds, nil
}

// Sleep returns when something may have arrived, or after so long. It comes after a Poll that found nothing. Where
// the provider cannot say what arrives it returns soon.
func (d *Domain) Sleep(most time.Duration) {
	d.lock()
	if d.failed() != nil {
		d.mu.Unlock()
		return
	}
	d.waiting.Add(1)
	defer d.waiting.Add(-1)
	armed := d.caps.Sleeps && d.endpoint.Arm()
	d.mu.Unlock()
	switch {
	case armed:
		d.endpoint.Sleep(most)
	case !d.caps.Sleeps:
		time.Sleep(min(most, blindNap))
	}
}

// Poll moves the endpoint once: it makes room for what is posted, and shows what has arrived. It
// returns how much has come. Who polls again and again moves the domain instead of its own goroutine.
func (d *Domain) Poll() (int, error) {
	d.lock()
	defer d.mu.Unlock()
	if err := d.failed(); err != nil {
		return 0, fmt.Errorf("poll: %w", err)
	}
	d.polls.Add(1)
	return d.poll(), d.err
}
