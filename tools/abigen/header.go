package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/scanner"
)

// header is what a header declares, in its order.
type header struct {
	numbers   []number
	texts     []text
	enums     []enum
	structs   []record
	callbacks []function // types of functions that the caller gives
	functions []function
	types     map[string]kind
}

type number struct {
	name  string
	value uint64
}

type text struct{ name, value string }

type enum struct {
	name, doc string
	members   []enumerator
}

type enumerator struct {
	number
	doc string
}

type record struct {
	name    string
	members []variable
}

type function struct {
	name   string
	result variable
	params []variable
}

// variable is a member, a parameter, or a function's result, which has no name.
type variable struct {
	name     string
	base     string // the type's name, without pointers
	constant bool   // const stands before the base
	pointers int
	length   uint64 // of an array; 0: none
}

// kind is what a type's name stands for.
type kind int

const (
	basic    kind = iota // a type of C's own
	listed               // an enumeration, passed as an int
	sized                // a struct that begins with its size
	handle               // a pointer to a struct that callers cannot see into
	address              // another pointer
	callback             // a pointer to a function
)

// basics are C's types that a header may use, with their sizes. void has none.
var basics = map[string]uint64{
	"void": 0, "char": 1, "int": 4, "float": 4, "size_t": 8,
	"uint8_t": 1, "int32_t": 4, "int64_t": 8, "uint64_t": 8,
}

// parse reads a header in the subset of C that weft.h is written in, and refuses all else by its
// line. A whole front end of C would want a compiler's headers, and lose the comments that become
// documentation.
func parse(name, text string) (h *header, err error) {
	p := &reader{header: &header{types: map[string]kind{}}}
	for base := range basics {
		p.types[base] = basic
	}
	p.scanner.Init(strings.NewReader(text))
	p.scanner.Filename = name
	p.scanner.Mode = scanner.ScanIdents | scanner.ScanInts | scanner.ScanStrings | scanner.ScanComments
	p.scanner.Error = func(_ *scanner.Scanner, message string) { p.fail("%s", message) }
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case failure:
			h, err = nil, cause.error
		default:
			panic(cause)
		}
	}()
	p.advance()
	for p.token != "" {
		p.declaration()
	}
	return p.header, nil
}

// reader is at a token. Comments are no tokens, but the last one before the token is kept.
type reader struct {
	*header
	scanner scanner.Scanner
	token   string // "" at the end
	line    int
	comment struct {
		text        string
		first, last int // lines
	}
}

// failure carries an error to parse.
type failure struct{ error }

func (p *reader) fail(format string, args ...any) {
	panic(failure{fmt.Errorf("%s:%d: %s", p.scanner.Filename, max(p.line, 1), fmt.Sprintf(format, args...))})
}

func (p *reader) advance() {
	for {
		found := p.scanner.Scan()
		p.token, p.line = p.scanner.TokenText(), p.scanner.Position.Line
		switch {
		case found == scanner.EOF:
			p.token, p.line = "", p.scanner.Line
			return
		case found != scanner.Comment:
			return
		}
		p.comment.text, p.comment.first, p.comment.last = p.token, p.line, p.line+strings.Count(p.token, "\n")
	}
}

// accept steps over a token if it is the next.
func (p *reader) accept(token string) bool {
	if p.token != token {
		return false
	}
	p.advance()
	return true
}

func (p *reader) expect(token string) {
	if !p.accept(token) {
		p.fail("%q, want %q", p.token, token)
	}
}

var word = regexp.MustCompile(`^[A-Za-z_]\w*$`)

func (p *reader) name() string {
	if !word.MatchString(p.token) {
		p.fail("%q, want a name", p.token)
	}
	name := p.token
	p.advance()
	return name
}

func (p *reader) integer() uint64 {
	n, err := strconv.ParseUint(p.token, 10, 63)
	if err != nil {
		p.fail("%q, want a number", p.token)
	}
	p.advance()
	return n
}

// before is the comment that ends on the line before the token, in lines.
func (p *reader) before() string {
	if p.comment.last != p.line-1 {
		return ""
	}
	return plain(p.comment.text)
}

// plain takes a comment's marks away.
func plain(comment string) string {
	lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(comment, "/*"), "*/"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "*"))
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

func (p *reader) declaration() {
	switch p.token {
	case "#":
		p.directive()
	case "typedef":
		p.typedef()
	default:
		f := function{result: p.variable(false)}
		f.name = p.declared(small)
		f.params = p.params()
		p.expect(";")
		p.functions = append(p.functions, f)
	}
}

var (
	ignored = regexp.MustCompile(`^# (include < std(def|int) \. h >|ifndef \w+_H|define \w+_H|endif)$`)
	defined = regexp.MustCompile(`^# define (WEFT(?:_[A-Z0-9]+)+) (\d+)$`)
	quoted  = regexp.MustCompile(`^# define (WEFT(?:_[A-Z0-9]+)+) "([\w.+-]+)"$`)
	ones    = regexp.MustCompile(`^# define (WEFT(?:_[A-Z0-9]+)+) \( \( \w+ \) ~ \( uintptr_t \) 0 \)$`)
)

func (p *reader) directive() {
	at := p.line
	line := p.text(func() bool { return p.line == at })
	if line == "# ifdef __cplusplus" {
		if within := p.text(func() bool { return p.token != "#" }); within != `extern "C" {` && within != "}" {
			p.fail("%q for C++ only", within)
		}
		p.expect("#")
		p.expect("endif")
		return
	}
	switch value := defined.FindStringSubmatch(line); {
	case ignored.MatchString(line):
	case value != nil:
		n, err := strconv.ParseUint(value[2], 10, 63)
		if err != nil {
			p.fail("%v", err)
		}
		p.numbers = append(p.numbers, number{value[1], n})
	case ones.MatchString(line):
		p.numbers = append(p.numbers, number{ones.FindStringSubmatch(line)[1], ^uint64(0)})
	case quoted.MatchString(line):
		m := quoted.FindStringSubmatch(line)
		p.texts = append(p.texts, text{m[1], m[2]})
	default:
		p.fail("%q, want a number, a word in quotes, or all bits of a pointer", line)
	}
}

// text is the tokens as long as more says.
func (p *reader) text(more func() bool) string {
	var tokens []string
	for ; p.token != "" && more(); p.advance() {
		tokens = append(tokens, p.token)
	}
	return strings.Join(tokens, " ")
}

var (
	small   = regexp.MustCompile(`^weft(_[a-z0-9]+)+$`)
	capital = regexp.MustCompile(`^WEFT(_[A-Z0-9]+)+$`)
)

// declared is the name that a declaration is about.
func (p *reader) declared(want *regexp.Regexp) string {
	if !want.MatchString(p.token) {
		p.fail("%q, want a name like %s", p.token, want)
	}
	return p.name()
}

func (p *reader) declare(name string, k kind) {
	if _, ok := p.types[name]; ok {
		p.fail("%s is declared already", name)
	}
	p.types[name] = k
}

func (p *reader) typedef() {
	doc := p.before()
	p.expect("typedef")
	switch p.token {
	case "enum":
		p.advance()
		p.enum(doc)
	case "struct":
		p.advance()
		p.structure()
	default:
		result := p.variable(false)
		if p.accept("(") {
			p.expect("*")
			f := function{name: p.declared(small), result: result}
			p.expect(")")
			f.params = p.params()
			p.declare(f.name, callback)
			p.callbacks = append(p.callbacks, f)
		} else {
			if result.pointers == 0 {
				p.fail("%s, want a pointer", result.base)
			}
			p.declare(p.declared(small), address)
		}
		p.expect(";")
	}
}

func (p *reader) enum(doc string) {
	e := enum{name: p.declared(small), doc: doc}
	p.expect("{")
	for p.token != "}" {
		var m enumerator
		m.name = p.declared(capital)
		p.expect("=")
		at := p.line
		m.value = p.integer()
		more := p.accept(",")
		if p.comment.first == at && p.line != at {
			m.doc = plain(p.comment.text)
		}
		e.members = append(e.members, m)
		if !more {
			break
		}
	}
	p.expect("}")
	p.declare(e.name, listed)
	p.enums = append(p.enums, e)
	p.expect(e.name)
	p.expect(";")
}

func (p *reader) structure() {
	r := record{name: p.declared(small)}
	if p.accept("*") {
		name := p.declared(small)
		if name+"_s" != r.name {
			p.fail("a handle %s of struct %s", name, r.name)
		}
		p.declare(name, handle)
		p.expect(";")
		return
	}
	p.expect("{")
	for !p.accept("}") {
		first := p.variable(true)
		m := first
		for {
			m.name = p.name()
			if p.accept("[") {
				m.length = p.bound()
				p.expect("]")
			}
			if m.pointers == 0 && (m.base == "void" || p.types[m.base] == sized || p.types[m.base] == listed) {
				p.fail("a member %s of type %s, want a number of a given size, or a pointer", m.name, m.base)
			}
			r.members = append(r.members, m)
			if !p.accept(",") {
				break
			}
			m = variable{base: first.base, constant: first.constant}
			for p.accept("*") {
				m.pointers++
			}
		}
		p.expect(";")
	}
	if len(r.members) == 0 || r.members[0] != (variable{name: "size", base: "size_t"}) {
		p.fail("struct %s begins with something else than size_t size", r.name)
	}
	p.declare(r.name, sized)
	p.structs = append(p.structs, r)
	p.expect(r.name)
	p.expect(";")
}

// bound is the length of an array: a number, or the name of one.
func (p *reader) bound() uint64 {
	if i := slices.IndexFunc(p.numbers, func(n number) bool { return n.name == p.token }); i >= 0 {
		p.advance()
		return p.numbers[i].value
	}
	n := p.integer()
	if n == 0 {
		p.fail("an array of nothing")
	}
	return n
}

// variable is a type. That of a member has the size that it has everywhere, so it is no int.
func (p *reader) variable(member bool) variable {
	v := variable{constant: p.accept("const")}
	v.base = p.name()
	if _, ok := p.types[v.base]; !ok || member && v.base == "int" {
		p.fail("type %s", v.base)
	}
	for p.accept("*") {
		v.pointers++
	}
	return v
}

func (p *reader) params() []variable {
	p.expect("(")
	var all []variable
	for {
		v := p.variable(false)
		if v == (variable{base: "void"}) && len(all) == 0 {
			p.expect(")")
			return nil
		}
		if v.pointers == 0 && (v.base == "void" || p.types[v.base] == sized) {
			p.fail("a parameter of type %s", v.base)
		}
		v.name = p.name()
		all = append(all, v)
		if !p.accept(",") {
			p.expect(")")
			return all
		}
	}
}

// bytes is the size of a struct where pointers have eight bytes.
func (h *header) bytes(r record) uint64 {
	var at uint64
	largest := uint64(1)
	for _, m := range r.members {
		size := uint64(8)
		if m.pointers == 0 && h.types[m.base] == basic {
			size = basics[m.base]
		}
		largest = max(largest, size)
		at = (at + size - 1) / size * size
		at += size * max(m.length, 1)
	}
	return (at + largest - 1) / largest * largest
}
