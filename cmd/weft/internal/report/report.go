package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// Fact is one line about the machine or the run.
type Fact struct{ Name, Value string }

// Report is what one benchmark run found.
type Report struct {
	Title   string
	When    time.Time
	Command string // as it was typed
	Facts   []Fact // the machine and the versions
	Records []measure.Record
}

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"number": func(v float64) string { return fmt.Sprintf("%.4g", v) },
	"size":   func(n int64) string { return measure.Size(n) },
}).Parse(page))

// Write writes the report as one HTML page.
func Write(w io.Writer, r Report) error {
	type figure struct {
		Title string
		SVG   template.HTML
	}
	data := struct {
		Report
		Figures []figure
		Wrong   int
	}{Report: r}
	for _, p := range plots(r.Records) {
		if svg := p.SVG(); svg != "" {
			// SVG escapes every text that it is given.
			data.Figures = append(data.Figures, figure{p.Title, template.HTML(svg)})
		}
	}
	for _, rec := range r.Records {
		if !rec.Verified {
			data.Wrong++
		}
	}
	if err := pageTemplate.Execute(w, data); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
