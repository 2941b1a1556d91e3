package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weftgo/weft/plan/spec"
)

// Class is a kind of defect.
type Class int

// The classes.
const (
	Structure Class = 1 + iota
	SharedSide
	Deadlock
	Balance
	WeakOrder
	Race
	RaceInBlock
	Packets
	Lifetime
	Result
	Fusion
	Limits
	Undecided
)

var classNames = [...]string{
	Structure: "structure", SharedSide: "shared side", Deadlock: "deadlock", Balance: "balance",
	WeakOrder: "weak order", Race: "race", RaceInBlock: "race in a block", Packets: "packets", Lifetime: "lifetime",
	Result: "wrong result", Fusion: "fusion", Limits: "limits",
	Undecided: "undecided",
}

// String is the class in words.
func (c Class) String() string { return classNames[c] }

// MarshalText is the class in words.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Finding is a defect, or what a person should look at.
type Finding struct {
	Class   Class
	Warning bool    // the plan may run
	Events  []Event // what leads to it: the first is the operation to look at
	Text    string  // a sentence
	More    int     // how many findings of the class it stands for, which are not listed; or 0

	readFirst bool // of a race: the operation that came first in the run only reads
}

// Event is an operation, and what it does there.
type Event struct {
	Site spec.Site
	Op   string // its name
	Does string // and what it does: "writes chunks 2-3 of the scratch of rank 1"
}

// String is the operation and what it does.
func (e Event) String() string {
	text := e.Site.String()
	if e.Op != "" {
		text += " (" + e.Op + ")"
	}
	if e.Does != "" {
		text += " " + e.Does
	}
	return text
}

// String is the finding on one line.
func (f Finding) String() string {
	severity := "error"
	if f.Warning {
		severity = "warning"
	}
	var events []string
	for _, e := range f.Events {
		events = append(events, e.String())
	}
	text := fmt.Sprintf("%s: %v: %s", severity, f.Class, f.Text)
	if len(events) > 0 {
		text += ": " + strings.Join(events, "; ")
	}
	return text
}

// key is equal for findings that say the same.
func (f Finding) key() string {
	text := fmt.Sprint(int(f.Class))
	for _, e := range f.Events {
		text += "|" + e.Site.String()
	}
	if len(f.Events) == 0 {
		text += f.Text
	}
	return text
}

// compete says of races between blocks that take one side of a counter why that does not order them.
func compete(all []Finding) {
	for _, shared := range all {
		if shared.Class != SharedSide {
			continue
		}
		uses := func(e Event) bool {
			return slices.ContainsFunc(shared.Events, func(u Event) bool {
				return u.Site.Rank == e.Site.Rank && u.Site.Block == e.Site.Block
			})
		}
		for i := range all {
			if f := &all[i]; f.Class == Race && f.Text == unordered && len(f.Events) == 2 && uses(f.Events[0]) &&
				uses(f.Events[1]) {
				f.Text += "; what their blocks compete for lets either come first"
			}
		}
	}
}

// most is how many findings of a class are listed.
const most = 12

// merge drops what is said twice, orders errors first, and cuts long lists.
func merge(all []Finding) []Finding {
	at := make(map[string]int)
	var kept []Finding
	for _, f := range all {
		if i, twice := at[f.key()]; twice {
			if kept[i].Warning && !f.Warning {
				kept[i] = f // what is said must be what is wrong
			}
			continue
		}
		at[f.key()] = len(kept)
		kept = append(kept, f)
	}
	slices.SortStableFunc(kept, func(a, b Finding) int {
		if a.Warning != b.Warning {
			if b.Warning {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Class, b.Class)
	})
	var short []Finding
	for i := 0; i < len(kept); {
		n := i
		for n < len(kept) && kept[n].Class == kept[i].Class && kept[n].Warning == kept[i].Warning {
			n++
		}
		short = append(short, kept[i:min(n, i+most)]...)
		if n > i+most {
			more := kept[i]
			more.Events, more.More = nil, n-i-most
			more.Text = fmt.Sprintf("%d more of these", more.More)
			short = append(short, more)
		}
		i = n
	}
	return short
}
