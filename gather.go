package weft

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/filelimit"
	"github.com/weftgo/weft/internal/rankset"
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
	type said struct {
		mark     byte
		op, text string
	}
	notes := func(yield func(int, said) bool) {
		for r, n := range all {
			if n == nil {
				continue
			}
			s := said{}
			if s.op, s.text = parts(n); len(n) > 0 {
				s.mark = n[0]
			}
			if !yield(r, s) {
				return
			}
		}
	}
	camps := rankset.CampsOf(notes)
	if !camps.Differ() {
		return nil
	}
	ops, cut, texts := map[string]bool{}, false, make([]string, len(all))
	for r, s := range notes {
		ops[s.op] = true
		texts[r] = words(s.text)
		cut = cut || len(all[r]) >= noteSize // the end is a hash
	}
	if len(ops) > 1 && !ops[""] {
		calls := rankset.CampsOf(func(yield func(int, string) bool) {
			for r, s := range notes {
				if !yield(r, s.op) {
					return
				}
			}
		})
		return disagree(": %s; make the same calls in the same order on every rank", calls.Calling("calls", strconv.Quote))
	}
	odd, most := camps[0], camps[len(camps)-1]
	if apart(words(odd.Value.text), words(most.Value.text)) {
		does, another := "makes", "another call"
		if len(odd.Ranks) > 1 {
			does, another = "make", "other calls"
		}
		return disagree(": %s %s %s here than %s; make the same calls in the same order on every rank",
			rankset.Names(odd.Ranks), does, another, rankset.Names(most.Ranks))
	}
	if what := difference(all, texts); what != "" && !cut {
		return disagree(" on %s", what)
	}
	return disagree(": %s", camps.Calling("says", func(s said) string { return strconv.Quote(words(s.text)) }))
}

// difference says what differs between ranks' texts of the form "name: value, name: value", and is empty for other
// texts: "Hidden: 16 on rank 2, 8 on ranks 0-1; TopK: 1 on rank 2, 2 on ranks 0-1". Ranks without a note are left out.
func difference(all [][]byte, texts []string) string {
	var names []string
	values := make([]map[string]string, len(all))
	for r, n := range all {
		if n == nil {
			continue
		}
		var of []string
		if of, values[r] = pairs(texts[r]); of == nil {
			return ""
		}
		for _, name := range of {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	var differ []string
	for _, name := range names {
		camps := rankset.CampsOf(func(yield func(int, string) bool) {
			for r, v := range values {
				if v != nil && !yield(r, cmp.Or(v[name], "unset")) {
					return
				}
			}
		})
		if camps.Differ() {
			differ = append(differ, name+": "+camps.On(func(v string) string { return v }))
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
