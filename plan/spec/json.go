package spec

import (
	"bytes"
	"fmt"
	"hash"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// reader reads JSON. After the first error it reads nothing more, and answers zeros.
type reader struct {
	text []byte
	at   int
	site Site
	kind string // of the operation that is being read
	err  error
}

// largest is the largest number of chunks, blocks and the like: sums of two and products with small numbers fit
// an int.
const largest = 1 << 40

// fail keeps the first error.
func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		line := 1 + bytes.Count(r.text[:min(r.at, len(r.text))], []byte{'\n'})
		r.err = &Error{Site: r.site, Kind: r.kind, Reason: fmt.Sprintf("line %d: ", line) + fmt.Sprintf(format, args...)}
	}
}

// peek is the next byte that is no space, or 0 at the end and after an error.
func (r *reader) peek() byte {
	if r.err != nil {
		return 0
	}
	for ; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// take reads a byte that is in order.
func (r *reader) take(c byte) bool {
	if got := r.peek(); got != c {
		if r.at >= len(r.text) {
			r.fail("the text ends where %q should be", c)
		} else {
			r.fail("%q where %q should be", got, c)
		}
		return false
	}
	r.at++
	return true
}

// list reads what is between two brackets, with commas between the elements.
func (r *reader) list(from, to byte, element func(i int)) {
	if !r.take(from) {
		return
	}
	for i := 0; r.err == nil; i++ {
		if i == 0 && r.peek() == to {
			break
		}
		if i > 0 && r.peek() != ',' {
			break
		}
		if i > 0 {
			r.at++
		}
		element(i)
	}
	r.take(to)
}

// object reads an object. The function reads the value of each key, or says that it does not know the key.
func (r *reader) object(value func(key string) bool) {
	var seen []string
	r.list('{', '}', func(int) {
		key := r.string()
		if r.err != nil || !r.take(':') {
			return
		}
		if slices.Contains(seen, key) {
			r.fail("two keys %q", key)
			return
		}
		seen = append(seen, key)
		if !value(key) {
			r.fail("unknown key %q", key)
		}
	})
}

// array reads an array into a list that is not nil.
func array[T any](r *reader, element func(i int) T) []T {
	all := []T{}
	r.list('[', ']', func(i int) { all = append(all, element(i)) })
	return all
}

// word reads the bytes of a number or a literal.
func (r *reader) word() string {
	r.peek()
	from := r.at
	for r.at < len(r.text) && r.err == nil {
		c := r.text[r.at]
		if c != '-' && c != '+' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			break
		}
		r.at++
	}
	return string(r.text[from:r.at])
}

// uint64 reads a number that is not negative, and at most the given one.
func (r *reader) uint64(most uint64) uint64 {
	w := r.word()
	if r.err != nil {
		return 0
	}
	n, err := strconv.ParseUint(w, 10, 64)
	if err != nil || len(w) > 1 && w[0] == '0' || n > most {
		r.fail("%q is no number from 0 to %d", w, most)
		return 0
	}
	return n
}

func (r *reader) int() int { return int(r.uint64(largest)) }

func (r *reader) bool() bool {
	switch w := r.word(); w {
	case "true":
		return true
	case "false":
	default:
		r.fail("%q is neither true nor false", w)
	}
	return false
}

// one reads a string that is one of the names, and gives its position.
func (r *reader) one(names []string) int {
	s := r.string()
	i := slices.Index(names, s)
	if i < 0 || s == "" {
		r.fail("%q is not one of %q", s, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" }))
		return 0
	}
	return i
}

func (r *reader) string() string {
	if !r.take('"') {
		return ""
	}
	from := r.at
	for ; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; {
		case c == '"':
			s := r.text[from:r.at]
			r.at++
			if !utf8.Valid(s) {
				r.fail("a string is not UTF-8")
			}
			return string(s)
		case c == '\\':
			return r.escaped(from)
		case c < ' ':
			r.fail("a control character in a string")
			return ""
		}
	}
	r.fail("the text ends in a string")
	return ""
}

// escaped reads the rest of a string that has a backslash at the reader's position.
func (r *reader) escaped(from int) string {
	s := slices.Clone(r.text[from:r.at])
	for r.at < len(r.text) {
		c := r.text[r.at]
		r.at++
		switch {
		case c == '"':
			if !utf8.Valid(s) {
				r.fail("a string is not UTF-8")
			}
			return string(s)
		case c < ' ':
			r.fail("a control character in a string")
			return ""
		case c != '\\':
			s = append(s, c)
		default:
			s = r.escape(s)
		}
		if r.err != nil {
			return ""
		}
	}
	r.fail("the text ends in a string")
	return ""
}

// escape appends what is written behind a backslash.
func (r *reader) escape(s []byte) []byte {
	if r.at >= len(r.text) {
		return s // and the caller fails
	}
	c := r.text[r.at]
	r.at++
	if i := bytes.IndexByte([]byte(`"\/bfnrt`), c); i >= 0 {
		return append(s, "\"\\/\b\f\n\r\t"[i])
	}
	if c != 'u' {
		r.fail("unknown escape %q in a string", c)
		return s
	}
	first := r.hex()
	if first < 0xD800 || first >= 0xE000 {
		return utf8.AppendRune(s, first)
	}
	if first < 0xDC00 && bytes.HasPrefix(r.text[r.at:], []byte(`\u`)) {
		r.at += 2
		if second := r.hex(); second >= 0xDC00 && second < 0xE000 {
			return utf8.AppendRune(s, 0x10000+(first-0xD800)<<10+(second-0xDC00))
		}
	}
	r.fail("half a surrogate pair in a string")
	return s
}

func (r *reader) hex() rune {
	if len(r.text)-r.at >= 4 {
		// A sign would pass ParseUint in no base, so only digits reach it.
		if n, err := strconv.ParseUint(string(r.text[r.at:r.at+4]), 16, 16); err == nil {
			r.at += 4
			return rune(n)
		}
	}
	r.fail("four digits should follow \\u")
	return 0
}

// writer writes JSON as Python's json module does: over lines with two spaces a level, or over none.
type writer struct {
	text    []byte
	level   int
	compact bool
	first   bool // nothing is in the list yet

	hash hash.Hash // takes the text piece by piece; or nil
}

// hashedBytes of a text are hashed together.
const hashedBytes = 4 << 10

func (w *writer) open(c byte) {
	w.text = append(w.text, c)
	w.level++
	w.first = true
}

func (w *writer) close(c byte) {
	w.level--
	if !w.first {
		w.line()
	}
	w.text = append(w.text, c)
	w.first = false
}

func (w *writer) line() {
	if !w.compact {
		w.text = append(w.text, '\n')
		for range w.level {
			w.text = append(w.text, "  "...)
		}
	}
}

// next begins an element of a list.
func (w *writer) next() {
	if !w.first {
		w.text = append(w.text, ',')
	}
	w.first = false
	w.line()
	if w.hash != nil && len(w.text) >= hashedBytes {
		w.hash.Write(w.text)
		w.text = w.text[:0]
	}
}

func (w *writer) key(name string) {
	w.next()
	w.text = append(append(append(w.text, '"'), name...), `":`...)
	if !w.compact {
		w.text = append(w.text, ' ')
	}
}

func (w *writer) int(key string, n int) { w.uint64(key, uint64(n)) }

func (w *writer) uint64(key string, n uint64) {
	w.key(key)
	w.text = strconv.AppendUint(w.text, n, 10)
}

func (w *writer) bool(key string, v bool) {
	w.key(key)
	w.text = strconv.AppendBool(w.text, v)
}

func (w *writer) ints(key string, all []int) {
	w.key(key)
	w.open('[')
	for _, n := range all {
		w.next()
		w.text = strconv.AppendInt(w.text, int64(n), 10)
	}
	w.close(']')
}

func (w *writer) string(key, s string) {
	w.key(key)
	w.quote(s)
}

// quote writes a string: in ASCII over lines, else as it is.
func (w *writer) quote(s string) {
	w.text = append(w.text, '"')
	for _, c := range s {
		if c >= ' ' && c < 0x7F && c != '"' && c != '\\' {
			w.text = append(w.text, byte(c))
			continue
		}
		if i := bytes.IndexByte([]byte("\"\\\b\f\n\r\t"), byte(min(c, math.MaxUint8))); i >= 0 {
			w.text = append(w.text, '\\', `"\bfnrt`[i])
		} else if c < ' ' || c >= 0x7F && !w.compact {
			if c >= 0x10000 {
				w.text = fmt.Appendf(w.text, `\u%04x`, 0xD800+(c-0x10000)>>10)
				c = 0xDC00 + (c-0x10000)&0x3FF
			}
			w.text = fmt.Appendf(w.text, `\u%04x`, c)
		} else {
			w.text = utf8.AppendRune(w.text, c)
		}
	}
	w.text = append(w.text, '"')
}
