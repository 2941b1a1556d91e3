package report

import (
	"fmt"
	"html"
	"strings"
)

// Point is one measurement. High, if above Y, draws a whisker up to it. Both axes
// are logarithmic: points that are not positive are left out.
type Point struct{ X, Y, High float64 }

// Series is one line of a plot.
type Series struct {
	Name   string
	Points []Point // ascending in X
	Dashed bool    // a line to compare with: a ceiling, or another library
}

// Plot is a line plot with two logarithmic axes.
type Plot struct {
	Title  string
	X, Y   string // the labels of the axes, with units
	LabelX func(float64) string
	Series []Series
	Bands  []Band
}

// Band is a range of X that is shaded and named.
type Band struct {
	Name     string
	From, To float64
}

// A plot's size in its own coordinates; the page scales it.
const (
	plotWidth  = 720
	plotHeight = 360
	padLeft    = 62
	padRight   = 14
	padTop     = 12
	padBottom  = 46
	legendRow  = 18
)

// colors is how many line colours the style sheet has; a dash pattern distinguishes the lines that
// share one.
const colors = 8

// SVG draws the plot, or nothing if it has no point to draw. Colours come from the
// page's style sheet: classes c0 to c7, axis, grid.
func (p Plot) SVG() string {
	var series []Series
	var xs, ys []float64
	for _, s := range p.Series {
		kept := Series{Name: s.Name, Dashed: s.Dashed}
		for _, q := range s.Points {
			if q.X > 0 && q.Y > 0 {
				kept.Points = append(kept.Points, q)
				xs = append(xs, q.X)
				ys = append(ys, q.Y, max(q.Y, q.High))
			}
		}
		if len(kept.Points) > 0 {
			series = append(series, kept)
		}
	}
	if len(series) == 0 {
		return ""
	}
	labelX := p.LabelX
	if labelX == nil {
		labelX = short
	}
	x := fit(xs, padLeft, plotWidth-padRight)
	x.atData(xs, labelX)
	y := fit(ys, plotHeight-padBottom, padTop)
	y.atRound(short)

	var b strings.Builder
	height := plotHeight + legendRow*len(series)
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n", plotWidth, height,
		html.EscapeString(p.Title))
	for i, band := range p.Bands {
		from, to := max(x.pixel(band.From), padLeft), min(x.pixel(band.To), plotWidth-padRight)
		fmt.Fprintf(&b, `<rect class="band" x="%.1f" y="%d" width="%.1f" height="%d" opacity="%.2f"><title>%s</title></rect>`,
			from, padTop, max(to-from, 0), plotHeight-padBottom-padTop, 0.25+0.35*float64(i%2), html.EscapeString(band.Name))
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", (from+to)/2, padTop+14,
			html.EscapeString(band.Name))
	}
	for i, v := range x.ticks {
		at := x.pixel(v)
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dV%d"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			at, padTop, plotHeight-padBottom, at, plotHeight-padBottom+16, html.EscapeString(x.tickLabels[i]))
	}
	for i, v := range y.ticks {
		at := y.pixel(v)
		fmt.Fprintf(&b, `<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			padLeft, at, plotWidth-padRight, padLeft-6, at+4, html.EscapeString(y.tickLabels[i]))
	}
	fmt.Fprintf(&b, `<path class="axis" d="M%d %dV%dH%d"/>`+"\n", padLeft, padTop, plotHeight-padBottom,
		plotWidth-padRight)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n",
		(padLeft+plotWidth-padRight)/2, plotHeight-padBottom+36, html.EscapeString(p.X))
	fmt.Fprintf(&b, `<text transform="translate(14 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n",
		(padTop+plotHeight-padBottom)/2, html.EscapeString(p.Y))
	for i, s := range series {
		fmt.Fprintf(&b, `<g class="c%d"%s>`, i%colors, s.dash(i/colors))
		b.WriteString(`<path class="line" d="`)
		for j, q := range s.Points {
			fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(j, 1)], x.pixel(q.X), y.pixel(q.Y))
		}
		b.WriteString(`"/>`)
		for _, q := range s.Points {
			px, py := x.pixel(q.X), y.pixel(q.Y)
			tip := fmt.Sprintf("%s: %s at %s", s.Name, short(q.Y), labelX(q.X))
			if q.High > q.Y {
				fmt.Fprintf(&b, `<path class="whisker" d="M%.1f %.1fV%.1fm-3 0h6"/>`, px, py, y.pixel(q.High))
				tip += ", p99 " + short(q.High)
			}
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3.2"><title>%s</title></circle>`, px, py, html.EscapeString(tip))
		}
		at := plotHeight + legendRow*i
		fmt.Fprintf(&b, `<path class="line" d="M%d %dh26"/></g><text x="%d" y="%d">%s</text>`+"\n",
			padLeft, at, padLeft+34, at+4, html.EscapeString(s.Name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (s Series) dash(i int) string {
	if s.Dashed {
		return fmt.Sprintf(` stroke-dasharray="6 %d"`, 4+3*i)
	}
	if i == 0 {
		return ""
	}
	return fmt.Sprintf(` stroke-dasharray="%d 4"`, 2+3*i)
}
