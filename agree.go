package weft

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/weftgo/weft/internal/filelimit"
)

// gatherNotes is a small all-gather through the control pages.
//
// A rank writes its note into the half of its page that the round's parity picks, then publishes
// the round. It may write the same half again two rounds later: finishing the round between, it has
// seen every rank publish that round, and ranks publish a round only after they have read the one
// before.
func (c *Comm) gatherNotes(ctx context.Context, op string, note []byte) ([][]byte, error) {
	if len(note) > noteSize {
		return nil, Invalidf("%s: a note of %d bytes, at most %d", op, len(note), noteSize)
	}
	if err := c.reach(op); err != nil {
		return nil, err
	}
	if err := c.begin(op); err != nil {
		return nil, err
	}
	c.agreement.Lock()
	defer c.agreement.Unlock()

	c.agreement.rounds.Begin(c.generation.Load())
	round := c.agreement.rounds.Next()

	own := c.control[c.rank]
	half := &own.note[round&1]
	copy(half.data[:], note)
	half.len = uint64(len(note))
	own.notes.Publish(round)

	all := make([][]byte, c.size)
	for r, p := range c.control {
		if c.Masked(r) {
			continue
		}
		if err := c.wait(ctx, &p.notes, round, op, r); err != nil {
			return nil, err
		}
		n := p.note[round&1].len
		if n > noteSize {
			return nil, c.fail(&PeerError{Rank: r, Op: op, Err: fmt.Errorf("%w: a note of %d bytes", ErrMismatch, n)})
		}
		all[r] = bytes.Clone(p.note[round&1].data[:n])
		if all[r] == nil {
			all[r] = []byte{}
		}
	}
	// Had the others gone on without this rank, the notes would be those of a later round.
	if err := c.begin(op); err != nil {
		return nil, err
	}
	return all, nil
}

func (c *Comm) verifySame(ctx context.Context, op, words string, own error) error {
	all, err := c.gatherNotes(ctx, op, noteOf(words, own))
	if err != nil {
		return err
	}
	if own != nil {
		return ownLimit(op, c.rank, own)
	}
	return agreed(op, all)
}

// agreeWith is verifySame with some bytes of each rank's own, which it returns by rank. The words hold
// no newline.
func (c *Comm) agreeWith(ctx context.Context, op, words string, data []byte, own error) ([][]byte, error) {
	note := noteOf(words, own)
	if own == nil {
		note = append(append(note, '\n'), data...)
	}
	all, err := c.gatherNotes(ctx, op, note)
	if err != nil {
		return nil, err
	}
	if own != nil {
		return nil, ownLimit(op, c.rank, own)
	}
	given := make([][]byte, len(all))
	for r, n := range all {
		if len(n) > 0 && n[0] == '=' {
			all[r], given[r], _ = bytes.Cut(n, []byte{'\n'})
		}
	}
	return given, agreed(op, all)
}

// noteOf is the note with which a rank brings its words, or its own error. Words that are too long
// are cut, and end in a hash of them all.
func noteOf(words string, own error) []byte {
	if own != nil {
		if filelimit.Reached(own) {
			own = filelimit.Error()
		}
		kind, text := byte('a'), own.Error()
		for k, sentinel := range passedOn {
			if errors.Is(own, sentinel) {
				kind, text = k, strings.TrimPrefix(text, sentinel.Error()+": ")
			}
		}
		note := append([]byte{'!', kind}, text...)
		return note[:min(len(note), noteSize)]
	}
	note := []byte("=" + words)
	if len(note) > noteSize {
		sum := sha256.Sum256(note)
		note = append(note[:noteSize-len(sum)], sum[:]...)
	}
	return note
}

// passedOn are the errors that keep their kind on the way to other ranks.
var passedOn = map[byte]error{'i': ErrInvalid, 'u': ErrUnsupported, 'm': ErrMismatch}

// agreed judges the notes of all ranks. They are whatever the ranks have sent: one may have called
// another operation.
func agreed(op string, all [][]byte) error {
	for r, n := range all {
		if len(n) > 0 && n[0] == '!' {
			kind, text := ErrAborted, n[1:]
			if len(text) > 0 {
				if k, ok := passedOn[text[0]]; ok {
					kind = k
				}
				text = bytes.TrimPrefix(text[1:], []byte(op+": "))
			}
			return &PeerError{Rank: r, Op: op, Err: fmt.Errorf("%w: refused there: %s", kind, text)}
		}
	}
	first := -1
	for r, n := range all {
		if n == nil {
			continue
		}
		if first < 0 {
			first = r
		} else if !bytes.Equal(n, all[first]) {
			return fmt.Errorf("%s: %w: rank %d says %q, rank %d %q", op, ErrMismatch, first, wordsOf(all[first]), r, wordsOf(n))
		}
	}
	return nil
}

// wordsOf is what a note says behind its mark.
func wordsOf(note []byte) []byte { return note[min(1, len(note)):] }

// reach refuses what needs shared memory with ranks of other hosts.
func (c *Comm) reach(op string) error {
	if c.remote >= 0 {
		return Unsupportedf("%s: rank %d is on another host, and this build reaches only ranks of one host; "+
			"start all ranks on one host", op, c.remote)
	}
	return nil
}
