package cost

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Link carries bytes from a rank to another.
type Link struct {
	From int     `json:"from"`
	To   int     `json:"to"`
	GBps float64 `json:"gbps"` // 10^9 bytes a second; 0 is a broken link
	Us   float64 `json:"us"`   // latency
}

// Topology is ranks and the links between them.
type Topology struct {
	Ranks int `json:"ranks"`
	// Hosts has the host of each rank, by a number from 0 on; empty: all ranks are of one.
	Hosts []int  `json:"hosts,omitempty"`
	Links []Link `json:"links"`
}

// Far says whether two ranks are of different hosts.
func (t *Topology) Far(a, b int) bool { return len(t.Hosts) > 0 && t.Hosts[a] != t.Hosts[b] }

// maxRanks bounds what tables of pairs may take.
const maxRanks = 1024

// Parse reads a topology, and refuses what is none with a sentence that names what is wrong.
func Parse(text []byte) (*Topology, error) {
	var raw struct {
		Ranks *int              `json:"ranks"`
		Hosts []int             `json:"hosts"`
		Links []json.RawMessage `json:"links"`
	}
	if err := strict(text, &raw); err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	if raw.Ranks == nil {
		return nil, errors.New(`topology: "ranks" is missing`)
	}
	t := &Topology{Ranks: *raw.Ranks, Hosts: raw.Hosts}
	for i, one := range raw.Links {
		var l struct {
			From *int     `json:"from"`
			To   *int     `json:"to"`
			GBps *float64 `json:"gbps"`
			Us   *float64 `json:"us"`
		}
		if err := strict(one, &l); err != nil {
			return nil, fmt.Errorf("topology: link %d: %w", i, err)
		}
		if l.From == nil || l.To == nil || l.GBps == nil || l.Us == nil {
			return nil, fmt.Errorf(`topology: link %d: want "from", "to", "gbps" and "us"`, i)
		}
		t.Links = append(t.Links, Link{*l.From, *l.To, *l.GBps, *l.Us})
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	return t, nil
}

// strict decodes one JSON value of known keys with nothing behind it.
func strict(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the JSON value")
	}
	return nil
}

// Check says what is wrong with a topology, in one sentence.
func (t *Topology) Check() error {
	if t.Ranks < 1 || t.Ranks > maxRanks {
		return fmt.Errorf("topology: %d ranks; want 1 to %d", t.Ranks, maxRanks)
	}
	if n := len(t.Hosts); n > 0 && n != t.Ranks {
		return fmt.Errorf("topology: hosts of %d ranks; want one for each of %d", n, t.Ranks)
	}
	for r, h := range t.Hosts {
		if h < 0 {
			return fmt.Errorf("topology: rank %d is on host %d; hosts are 0 or more", r, h)
		}
	}
	seen := make(map[[2]int]bool)
	for i, l := range t.Links {
		switch {
		case l.From < 0 || l.From >= t.Ranks || l.To < 0 || l.To >= t.Ranks:
			return fmt.Errorf("topology: link %d from rank %d to rank %d; ranks are 0 to %d", i, l.From, l.To, t.Ranks-1)
		case l.From == l.To:
			return fmt.Errorf("topology: link %d leads from rank %d to itself", i, l.From)
		case !(l.GBps >= 0) || math.IsInf(l.GBps, 0):
			return fmt.Errorf("topology: link %d has %v GB/s; want 0 or more", i, l.GBps)
		case !(l.Us >= 0) || math.IsInf(l.Us, 0):
			return fmt.Errorf("topology: link %d has a latency of %v us; want 0 or more", i, l.Us)
		case seen[[2]int{l.From, l.To}]:
			return fmt.Errorf("topology: link %d is another one from rank %d to rank %d; add their bandwidths up", i, l.From,
				l.To)
		}
		seen[[2]int{l.From, l.To}] = true
	}
	return nil
}

// Connected says which rank does not reach another, in one sentence, or nothing.
func (t *Topology) Connected() error {
	n := newNetwork(t)
	for a := range t.Ranks {
		for b := range t.Ranks {
			if math.IsInf(n.latency[a][b], 1) {
				return fmt.Errorf("topology: no links lead from rank %d to rank %d; add one, or leave the rank out", a, b)
			}
		}
	}
	return nil
}

// Working is the links that are not broken, by their ranks.
func (t *Topology) Working() []Link {
	all := slices.DeleteFunc(slices.Clone(t.Links), func(l Link) bool { return l.GBps == 0 })
	slices.SortFunc(all, func(a, b Link) int { return (a.From-b.From)*maxRanks + a.To - b.To })
	return all
}

// Text is the topology as [Parse] reads it.
func (t *Topology) Text() []byte {
	c := *t
	if c.Links == nil {
		c.Links = []Link{}
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil { // an infinity or a NaN, which Check refuses
		return nil
	}
	return append(text, '\n')
}

// AllToAll has a link from each rank to each other, as a switch of NVLinks gives them.
func AllToAll(ranks int, gbps, us float64) *Topology {
	t := &Topology{Ranks: ranks}
	for a := range ranks {
		for b := range ranks {
			if a != b {
				t.Links = append(t.Links, Link{a, b, gbps, us})
			}
		}
	}
	return t
}

// Ring has links from each rank to both its neighbours.
func Ring(ranks int, gbps, us float64) *Topology {
	t := &Topology{Ranks: ranks}
	for a := range ranks {
		for _, b := range []int{(a + 1) % ranks, (a + ranks - 1) % ranks} {
			if a != b && !slices.ContainsFunc(t.Links, func(l Link) bool { return l.From == a && l.To == b }) {
				t.Links = append(t.Links, Link{a, b, gbps, us})
			}
		}
	}
	return t
}

// TwoHosts has two halves, each with links between all its ranks, and links between ranks of one position.
func TwoHosts(ranks int, gbps, us, farGBps, farUs float64) *Topology {
	t, half := &Topology{Ranks: ranks}, ranks/2
	for a := range ranks {
		for b := range ranks {
			switch {
			case a == b:
			case a/half == b/half:
				t.Links = append(t.Links, Link{a, b, gbps, us})
			case a%half == b%half:
				t.Links = append(t.Links, Link{a, b, farGBps, farUs})
			}
		}
	}
	return t
}

// Without is the topology with the links between two ranks broken, both ways.
func (t *Topology) Without(a, b int) *Topology {
	c := &Topology{Ranks: t.Ranks, Hosts: t.Hosts, Links: slices.Clone(t.Links)}
	for i, l := range c.Links {
		if l.From == a && l.To == b || l.From == b && l.To == a {
			c.Links[i].GBps = 0
		}
	}
	return c
}

// network is a topology with the paths between its ranks.
type network struct {
	links   []Link
	from    [][]int        // links that leave a rank
	latency [][]float64    // of the path between two ranks; infinite without
	first   [][]int        // the first link of it
	direct  map[[2]int]int // the link from a rank to another
	known   map[[2]int][]int
}

func newNetwork(t *Topology) *network {
	n := &network{links: t.Working(), from: make([][]int, t.Ranks), known: make(map[[2]int][]int)}
	n.direct = make(map[[2]int]int)
	for i, l := range n.links {
		n.from[l.From] = append(n.from[l.From], i)
		n.direct[[2]int{l.From, l.To}] = i
	}
	for range t.Ranks {
		n.latency = append(n.latency, make([]float64, t.Ranks))
		n.first = append(n.first, make([]int, t.Ranks))
	}
	for to := range t.Ranks {
		n.paths(to)
	}
	return n
}

// paths finds those to a rank: of the least latency, then of the fewest links, then by the widest first link.
func (n *network) paths(to int) {
	hops := make([]int, len(n.from))
	done := make([]bool, len(n.from))
	for a := range n.from {
		n.latency[a][to], n.first[a][to] = math.Inf(1), -1
	}
	n.latency[to][to] = 0
	for range n.from {
		next := -1
		for a := range n.from {
			if !done[a] && !math.IsInf(n.latency[a][to], 1) && (next < 0 || n.latency[a][to] < n.latency[next][to] ||
				n.latency[a][to] == n.latency[next][to] && hops[a] < hops[next]) {
				next = a
			}
		}
		if next < 0 {
			return
		}
		done[next] = true
		for i, l := range n.links {
			if l.To != next || done[l.From] {
				continue
			}
			a, best := l.From, n.first[l.From][to]
			us, far := l.Us+n.latency[next][to], hops[next]+1
			if best < 0 || us < n.latency[a][to] || us == n.latency[a][to] && (far < hops[a] ||
				far == hops[a] && l.GBps > n.links[best].GBps) {
				n.latency[a][to], n.first[a][to], hops[a] = us, i, far
			}
		}
	}
}

// delay is the latency from a rank to another: of their link if there is one, and else of the path.
func (n *network) delay(from, to int) float64 {
	if l, ok := n.direct[[2]int{from, to}]; ok {
		return n.links[l].Us
	}
	return n.latency[from][to]
}

// path is the links from a rank to another: their own alone, though others may be faster together, for plans say
// themselves what goes by other ranks.
func (n *network) path(from, to int) []int {
	links, ok := n.known[[2]int{from, to}]
	if ok {
		return links
	}
	if l, ok := n.direct[[2]int{from, to}]; ok {
		links = []int{l}
		n.known[[2]int{from, to}] = links
		return links
	}
	for at := from; at != to && n.first[at][to] >= 0; {
		l := n.first[at][to]
		links = append(links, l)
		at = n.links[l].To
	}
	n.known[[2]int{from, to}] = links
	return links
}
