package choice

import "github.com/weftgo/weft/collective/spec"

// Range is sizes that have the same algorithm, up to one that a rank sends to all others together.
type Range struct {
	Most      int // of the last range, the most that was looked at
	Algorithm string
}

// mostClass is the class of the longest operand that ranges tell of.
const mostClass = 40

// Ranges says what is chosen for requests like one, of all sizes.
func (c *Chooser) Ranges(q spec.Request) (all []Range) {
	for class := range mostClass + 1 {
		q.SetSent(1 << class)
		i := c.AtOnce(&q)
		if i < 0 {
			i = c.AfterExchange(&q)
		}
		name := ""
		if i >= 0 {
			name = c.all[i].Name
		}
		if n := len(all); n > 0 && all[n-1].Algorithm == name {
			all[n-1].Most = q.Sent
		} else {
			all = append(all, Range{q.Sent, name})
		}
	}
	return all
}
