package optimizer

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/weftgo/weft/plan/internal/verify"
	"github.com/weftgo/weft/plan/spec"
)

// proof decides what may take the place of a plan: what the verifier passes with no other findings than it has of the
// plan, with the same label, and the same bits in every output.
type proof struct {
	of      *spec.File
	verdict *verify.Verdict
	known   findings
	runs    int // of the verifier
}

// newProof verifies a plan. What the verifier does not pass is refused.
func newProof(f *spec.File) (*proof, error) {
	p := &proof{of: f, verdict: verify.Plan(f), runs: 1}
	if n := p.verdict.Errors(); n > 0 {
		return nil, fmt.Errorf("plan: %s: the verifier finds: %v; only a plan that it passes is optimised", f.Name,
			p.verdict.Findings[0])
	}
	p.known = count(p.verdict)
	return p, nil
}

// passes verifies a candidate. One of several instances may have each finding once in every instance.
func (p *proof) passes(f *spec.File, instances int) bool {
	p.runs++
	v := verify.Plan(f)
	return v.Errors() == 0 && v.RankOrder == p.verdict.RankOrder && p.known.cover(count(v), instances)
}

// alike says whether a candidate that passes leaves the same bits.
func (p *proof) alike(f *spec.File) bool {
	p.runs++
	return verify.Alike(p.of, f) == ""
}

// findings is what a verdict says: how many of each class, and what they say.
type findings struct {
	total map[verify.Class]int
	texts map[string]bool
}

func count(v *verify.Verdict) findings {
	all := findings{make(map[verify.Class]int), make(map[string]bool)}
	for _, f := range v.Findings {
		n := 1
		if f.More > 0 {
			n = f.More
		} else {
			all.texts[f.Class.String()+": "+wordsOf(f.Text)] = true
		}
		all.total[f.Class] += n
	}
	return all
}

// cover says whether others are of the same kinds, and no more.
func (a findings) cover(b findings, instances int) bool {
	for class, n := range b.total {
		if n > a.total[class]*instances {
			return false
		}
	}
	for text := range b.texts {
		if !a.texts[text] {
			return false
		}
	}
	return true
}

// wordsOf is a text without its numbers, which are those of operations and chunks.
func wordsOf(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, text)
}
