package weft

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/filelimit"
	"github.com/weftgo/weft/internal/refusal"
)

const noteSize = control.NoteSize

func (c *Comm) gatherNotes(ctx context.Context, op string, note []byte) ([][]byte, error) {
	all, err := c.gather(ctx, op, note)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// gather gives the notes of all ranks even where it fails, if they came and a rank has aborted since: an error that
// they say is its reason, so that all ranks tell of it.
func (c *Comm) gather(ctx context.Context, op string, note []byte) ([][]byte, error) {
	if len(note) > noteSize {
		return nil, Invalidf("%s: a note of %d bytes, at most %d", op, len(note), noteSize)
	}
	if err := c.gate.Enter(op); err != nil {
		return nil, err
	}
	defer c.gate.Leave()
	if err := c.begin(op); err != nil {
		return nil, err
	}
	all, err := c.control.Gather(ctx, op, note)
	if err != nil {
		return nil, c.fail(err)
	}
	// Had the others gone on without this rank, the notes would be those of a later round.
	if err := c.begin(op); errors.Is(err, ErrAborted) {
		return all, err
	} else if err != nil {
		return nil, err
	}
	return all, nil
}

func (c *Comm) verifySame(ctx context.Context, op, text string, own error) error {
	own = cmp.Or(refusal.Of(ctx), own)
	all, err := c.gather(ctx, op, messageOf(op+opMark+text, own))
	return c.judge(op, all, err, own)
}

// judge is what notes say, or why there are none: an error of this rank's own before others', and a refusal or a
// disagreement before the abort that followed it.
func (c *Comm) judge(op string, all [][]byte, err, own error) error {
	if own != nil && (err == nil || errors.Is(err, ErrAborted)) {
		return ownLimit(op, c.rank, own)
	}
	if refused := agreed(op, all); refused != nil {
		return refused
	}
	return err
}

// opMark ends the name of the operation, with which a text begins that ranks compare. dataMark ends the text of a note
// that has data, too.
const opMark = "\x01"

var dataMark = []byte{0}

// verifyWith is verifySame with some bytes of each rank's own, which it returns by rank. The text has no
// zero bytes.
func (c *Comm) verifyWith(ctx context.Context, op, text string, data []byte, own error) ([][]byte, error) {
	own = cmp.Or(refusal.Of(ctx), own)
	note := messageOf(op+opMark+text, own)
	if own == nil {
		note = slices.Concat(note, dataMark, data)
	}
	all, err := c.gather(ctx, op, note)
	given := make([][]byte, len(all))
	for r, n := range all {
		if len(n) > 0 && n[0] == '=' {
			all[r], given[r], _ = bytes.Cut(n, dataMark)
		}
	}
	if err := c.judge(op, all, err, own); err != nil {
		return nil, err
	}
	return given, nil
}

// messageOf is the note with which a rank passes a text, or its own error. A text that is too long is
// cut, and ends in a hash of all of it.
func messageOf(text string, own error) []byte {
	if own != nil {
		if filelimit.Reached(own) {
			own = filelimit.Error()
		}
		kind, why := byte('a'), own.Error()
		for k, sentinel := range passedOn {
			if errors.Is(own, sentinel) {
				kind, why = k, strings.Replace(own.Error(), sentinel.Error()+": ", "", 1)
			}
		}
		note := append([]byte{'!', kind}, why...)
		return note[:min(len(note), noteSize)]
	}
	note := []byte("=" + text)
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
				text = text[1:]
			}
			return &PeerError{Rank: r, Op: op, Err: refusal.There(kind, op, string(text))}
		}
	}
	disagree := func(format string, args ...any) error {
		return &opError{op, fmt.Errorf("%w"+format, append([]any{ErrMismatch}, args...)...)}
	}
	first := -1
	for r, n := range all {
		if n == nil {
			continue
		}
		if first < 0 {
			first = r
			continue
		}
		firstOp, firstText := parts(all[first])
		rOp, rText := parts(n)
		if firstText != rText || !bytes.Equal(n[:min(1, len(n))], all[first][:min(1, len(all[first]))]) {
			a, b := words(firstText), words(rText)
			if firstOp != rOp && firstOp != "" && rOp != "" {
				return disagree(": rank %d calls %q here, rank %d %q; make the same calls in the same order on every rank",
					r, rOp, first, firstOp)
			}
			if apart(a, b) {
				return disagree(": rank %d makes another call here than rank %d; make the same calls in the same order "+
					"on every rank", r, first)
			}
			// Of notes that were cut the end is a hash.
			if what := difference(a, b, first, r); what != "" && max(len(n), len(all[first])) < noteSize {
				return disagree(" on %s", what)
			}
			return disagree(": rank %d says %q, rank %d %q", first, a, r, b)
		}
	}
	return nil
}

// difference says what differs between two ranks' texts of the form "name: value, name: value", and is empty
// for other texts: "Hidden: 8 on rank 0, 16 on rank 2; TopK: 2 on rank 0, 1 on rank 2".
func difference(a, b string, rankA, rankB int) string {
	namesA, valuesA := pairs(a)
	namesB, valuesB := pairs(b)
	if namesA == nil || namesB == nil {
		return ""
	}
	var differ []string
	said := func(values map[string]string, name string) string { return cmp.Or(values[name], "unset") }
	for _, name := range append(namesA, namesB...) {
		inA, inB := said(valuesA, name), said(valuesB, name)
		if inA != inB && !slices.ContainsFunc(differ, func(d string) bool { return strings.HasPrefix(d, name+": ") }) {
			differ = append(differ, fmt.Sprintf("%s: %s on rank %d, %s on rank %d", name, inA, rankA, inB, rankB))
		}
	}
	return strings.Join(differ, "; ")
}

// apart says whether two such texts have no name in common: they are of different operations, and their values say
// nothing.
func apart(a, b string) bool {
	namesA, _ := pairs(a)
	namesB, valuesB := pairs(b)
	return len(namesA) > 0 && len(namesB) > 0 && !slices.ContainsFunc(namesA, func(name string) bool {
		_, both := valuesB[name]
		return both
	})
}

// pairs takes such a text apart; it returns nothing for other texts.
func pairs(text string) (names []string, values map[string]string) {
	values = map[string]string{}
	for part := range strings.SplitSeq(text, ", ") {
		name, value, ok := strings.Cut(part, ": ")
		if !ok {
			return nil, nil
		}
		names, values[name] = append(names, name), value
	}
	return names, values
}

// parts are the operation that a message names, or none, and its text.
func parts(note []byte) (op, text string) {
	text = string(messageText(note))
	if op, rest, ok := strings.Cut(text, opMark); ok {
		return op, rest
	}
	return "", text
}

// words are a text without the data that may be behind it.
func words(text string) string {
	text, _, _ = strings.Cut(text, string(dataMark))
	return text
}

// messageText is a message without its mark.
func messageText(note []byte) []byte { return note[min(1, len(note)):] }

// requireOneHost refuses what needs memory that all ranks map. All ranks refuse alike, and before they
// compare anything.
func (c *Comm) requireOneHost(op string) error {
	if c.remote >= 0 {
		return Unsupportedf("%s: ranks 0 and %d are on different hosts, and this reaches only ranks of one host; "+
			"make a communicator of each host's ranks, or start all ranks on one host", op, slices.Index(c.hosts, 1))
	}
	return nil
}
