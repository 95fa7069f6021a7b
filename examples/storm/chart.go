package main

import (
	"bytes"
	"image/color"
	"io"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// drawArrivals shows how many requests reach the origin, for either fault.
func drawArrivals(r *report, w io.Writer) error {
	const bin = 100 * time.Millisecond
	var panels []*plot.Plot
	for _, f := range []fault{answers503, stalls} {
		p := newPlot("the origin "+f.String()+" for 2 s", "seconds since the outage began", "requests a second")
		capacity := level(200, -1, 8)
		p.Add(shade(0, 2, 500), capacity)
		for i := range r.outages {
			o := &r.outages[i]
			if o.fault != f || o.warm < 2*time.Second {
				continue
			}
			line, err := histogram(o.arrivals, -time.Second, 8*time.Second, bin, float64(time.Second/bin))
			if err != nil {
				return err
			}
			line.Color = o.policy.color
			p.Add(line)
			if f == answers503 { // the other panel has no room
				p.Legend.Add(o.policy.name, line)
			}
		}
		if f == answers503 {
			p.Legend.Add("what it can serve", capacity)
		}
		scale(&p.X, -1, 8, 1, 0)
		scale(&p.Y, 0, 500, 100, 0)
		panels = append(panels, p)
	}
	return drawPanels(panels, w)
}

// drawHerd shows when 50 clients come back that failed at the same millisecond.
func drawHerd(r *report, w io.Writer) error {
	const bin = 10 * time.Millisecond
	var panels []*plot.Plot
	for _, kind := range []struct {
		title    string
		herds    []herdResult
		from, to time.Duration
	}{
		{"50 clients fail together, base delay 300 ms", r.failing, 0, 500 * time.Millisecond},
		{"50 clients are told Retry-After: 1", r.told, 900 * time.Millisecond, 1200 * time.Millisecond},
	} {
		p := newPlot(kind.title, "seconds since they failed", "arrivals in 10 ms")
		for _, h := range []herdResult{kind.herds[0], kind.herds[len(kind.herds)-1]} { // naive and retrip
			line, err := histogram(h.back[0], kind.from, kind.to, bin, 1)
			if err != nil {
				return err
			}
			line.Color = h.policy.color
			p.Add(line)
			p.Legend.Add(h.policy.name, line)
		}
		scale(&p.X, kind.from.Seconds(), kind.to.Seconds(), 0.1, 1)
		scale(&p.Y, 0, 50, 10, 0)
		panels = append(panels, p)
	}
	return drawPanels(panels, w)
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	for _, f := range []*font.Font{
		&p.Title.TextStyle.Font, &p.Legend.TextStyle.Font,
		&p.X.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Label.TextStyle.Font, &p.Y.Tick.Label.Font,
	} {
		f.Variant = "Sans"
	}
	p.Title.Padding = vg.Points(6)
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	return p
}

// scale sets an axis with a tick at every step.
func scale(a *plot.Axis, from, to, step float64, decimals int) {
	a.Min, a.Max = from, to
	var ticks []plot.Tick
	for i := 0; from+float64(i)*step < to+step/2; i++ {
		value := from + float64(i)*step
		ticks = append(ticks, plot.Tick{Value: value, Label: strconv.FormatFloat(value, 'f', decimals, 64)})
	}
	a.Tick.Marker = plot.ConstantTicks(ticks)
}

// histogram counts times, each bin's number times a factor, as a line of steps.
func histogram(times []time.Duration, from, to, bin time.Duration, factor float64) (*plotter.Line, error) {
	points := make(plotter.XYs, int((to-from)/bin))
	for i := range points {
		points[i].X = (from + time.Duration(i)*bin).Seconds()
	}
	for _, at := range times {
		if at >= from && at < from+time.Duration(len(points))*bin {
			points[int((at-from)/bin)].Y += factor
		}
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	line.StepStyle = plotter.PostStep
	line.Width = vg.Points(1.3)
	return line, nil
}

// shade marks the time of the outage.
func shade(from, to, top float64) plot.Plotter {
	area, err := plotter.NewPolygon(plotter.XYs{{X: from}, {X: to}, {X: to, Y: top}, {X: from, Y: top}})
	if err != nil {
		panic(err) // four points are a polygon
	}
	area.Color = color.RGBA{242, 242, 242, 255}
	area.Width = 0
	return area
}

// level marks what the origin can serve.
func level(y, from, to float64) *plotter.Line {
	line, err := plotter.NewLine(plotter.XYs{{X: from, Y: y}, {X: to, Y: y}})
	if err != nil {
		panic(err) // two points are a line
	}
	line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	line.Color = color.RGBA{150, 150, 150, 255}
	return line
}

// drawPanels puts plots below each other.
func drawPanels(panels []*plot.Plot, w io.Writer) error {
	width, height := 18*vg.Centimeter, vg.Length(len(panels))*7*vg.Centimeter
	canvas := vgsvg.New(width, height)
	whole := draw.New(canvas)
	// Also between the panels: pages may be dark.
	whole.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	rows := make([][]*plot.Plot, len(panels))
	for i, p := range panels {
		rows[i] = []*plot.Plot{p}
	}
	tiles := draw.Tiles{
		Rows: len(panels), Cols: 1, PadY: vg.Points(14),
		PadTop: vg.Points(6), PadBottom: vg.Points(4), PadLeft: vg.Points(4), PadRight: vg.Points(10),
	}
	for i, row := range plot.Align(rows, tiles, whole) {
		panels[i].Draw(row[0])
	}
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// Few have the font that the texts were measured with.
	named := bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
	_, err := w.Write(named)
	return err
}
