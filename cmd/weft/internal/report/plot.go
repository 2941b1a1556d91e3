package report

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// Point is one measurement. High, if above Y, draws a whisker up to it. Both axes
// are logarithmic: points that are not positive are left out.
type Point struct{ X, Y, High float64 }

// Series is one line of a plot. Its name is its identity: it has the same colour in all plots of a report.
type Series struct {
	Name   string
	Points []Point // ascending in X
	Dashed bool    // a line to compare with: a ceiling, or another library
	Of     string  // of a floor or a ceiling: the series that it is for, whose colour it has
}

// Plot is a line plot with two logarithmic axes.
type Plot struct {
	Title  string
	X, Y   string // the labels of the axes, with units
	LabelX func(float64) string
	Series []Series
	Bands  []Band
	Limits string // what series are that belong to others
	Says   string // what the plot shows
}

// Band is a range of X that is shaded and named.
type Band struct {
	Name     string
	From, To float64
}

// A plot's size in its own coordinates; the page scales it. A character of its text takes this much where the
// page is narrow and its text is large.
const (
	plotWidth  = 520
	plotHeight = 300
	padLeft    = 58
	padRight   = 12
	padTop     = 10
	bandRow    = 18 // above the plot, for the names of bands
	padBottom  = 30
	character  = 12
)

// colors is how many line colours the style sheet has; a dash pattern distinguishes the lines that
// share one.
const colors = 8

// palette gives each name a colour, in the order in which names come.
type palette map[string]int

func (p palette) of(name string) int {
	i, ok := p[name]
	if !ok {
		i = len(p)
		p[name] = i
	}
	return i
}

// style is the class and the dashes of a series.
func (p palette) style(s *Series) string {
	if s.Of != "" {
		return fmt.Sprintf(`class="c%d limit" stroke-dasharray="3 4"`, p.of(s.Of)%colors)
	}
	i := p.of(s.Name)
	round := i / colors
	switch {
	case s.Dashed:
		return fmt.Sprintf(`class="c%d" stroke-dasharray="8 %d"`, i%colors, 4+3*round)
	case round > 0:
		return fmt.Sprintf(`class="c%d" stroke-dasharray="%d 4"`, i%colors, 12+3*round)
	}
	return fmt.Sprintf(`class="c%d"`, i)
}

// drawn are the series that have points to draw, with these alone.
func (p Plot) drawn() []Series {
	var all []Series
	for _, s := range p.Series {
		s.Points = slices.DeleteFunc(slices.Clone(s.Points), func(q Point) bool { return q.X <= 0 || q.Y <= 0 })
		if len(s.Points) > 0 {
			all = append(all, s)
		}
	}
	return all
}

// SVG draws the plot, or nothing if it has no point to draw. Colours come from the
// page's style sheet: classes c0 to c7, axis, grid.
func (p Plot) SVG(colours palette) string {
	series := p.drawn()
	if len(series) == 0 {
		return ""
	}
	var xs, ys []float64
	for _, s := range series {
		for _, q := range s.Points {
			xs = append(xs, q.X)
			ys = append(ys, q.Y, max(q.Y, q.High))
		}
	}
	labelX := p.LabelX
	if labelX == nil {
		labelX = short
	}
	x := fit(xs, padLeft, plotWidth-padRight)
	x.atData(xs, labelX)
	top := p.top()
	y := fit(ys, plotHeight-padBottom, float64(top))
	y.atRound(tick)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n", plotWidth, plotHeight,
		html.EscapeString(p.Title))
	p.drawBands(&b, x)
	for i, v := range x.ticks {
		at := x.pixel(v)
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dV%d"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			at, top, plotHeight-padBottom, at, plotHeight-padBottom+20, html.EscapeString(x.tickLabels[i]))
	}
	for i, v := range y.ticks {
		at := y.pixel(v)
		fmt.Fprintf(&b, `<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			padLeft, at, plotWidth-padRight, padLeft-6, at+5, html.EscapeString(y.tickLabels[i]))
	}
	fmt.Fprintf(&b, `<path class="axis" d="M%d %dV%dH%d"/>`+"\n", padLeft, top, plotHeight-padBottom,
		plotWidth-padRight)
	for _, s := range series {
		fmt.Fprintf(&b, `<g %s><path class="line" d="`, colours.style(&s))
		for j, q := range s.Points {
			fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(j, 1)], x.pixel(q.X), y.pixel(q.Y))
		}
		b.WriteString(`"/>`)
		for _, q := range s.Points {
			if s.Of != "" && len(s.Points) > 1 {
				break // a limit is a line, and not what was measured at its points
			}
			px, py := x.pixel(q.X), y.pixel(q.Y)
			tip := fmt.Sprintf("%s: %s at %s", s.Name, short(q.Y), labelX(q.X))
			if q.High > q.Y {
				fmt.Fprintf(&b, `<path class="whisker" d="M%.1f %.1fV%.1fm-4 0h8"/>`, px, py, y.pixel(q.High))
				tip += ", p99 " + short(q.High)
			}
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3.5"><title>%s</title></circle>`, px, py, html.EscapeString(tip))
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// top is where the plot begins.
func (p Plot) top() int {
	if len(p.Bands) > 0 {
		return padTop + bandRow
	}
	return padTop
}

// drawBands shades the bands, and names those that are wide enough above; the sentence below names all. The first and
// the last go on to the ends of the axis.
func (p Plot) drawBands(b *strings.Builder, x axis) {
	top := p.top()
	for i, band := range p.Bands {
		from, to := x.pixel(band.From), x.pixel(band.To)
		if i == 0 {
			from = padLeft
		}
		if i == len(p.Bands)-1 {
			to = plotWidth - padRight
		}
		from, to = max(from, padLeft), min(to, plotWidth-padRight)
		fmt.Fprintf(b, `<rect class="band b%d" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`+"\n", i%2,
			from, top, max(to-from, 0), plotHeight-padBottom-top, html.EscapeString(band.Name))
		const character = 9 // of these names
		if float64(character*len(band.Name)) < to-from {
			fmt.Fprintf(b, `<text class="name" x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", (from+to)/2, top-7,
				html.EscapeString(band.Name))
		}
	}
}

// Legend lists the series, each with a piece of its line. Floors and ceilings have one entry together.
func (p Plot) Legend(colours palette) string {
	const entry = `<li><svg viewBox="0 0 30 8" aria-hidden="true"><g %s><path class="line" d="M0 4h30"/></g></svg>%s</li>
`
	var b strings.Builder
	limits := false
	for _, s := range p.drawn() {
		if s.Of != "" {
			limits = true
			continue
		}
		fmt.Fprintf(&b, entry, colours.style(&s), html.EscapeString(s.Name))
	}
	if limits {
		fmt.Fprintf(&b, entry, `class="limit" stroke-dasharray="3 4"`, html.EscapeString(p.Limits))
	}
	return b.String()
}
