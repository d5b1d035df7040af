//! One chart with axes and lines, as SVG inside a page. The browser draws the text, so no font is
//! read here.

use std::error::Error;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) pen: Pen,
    pub(super) points: Vec<(f64, f64)>,
}

/// How a line is drawn: its colour, and whether it is dashed. The style sheet finds a pen by its
/// colour and replaces that colour in dark mode. So each pen has a different colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pen {
    pub(super) light: RGBColor,
    /// The colour in dark mode, as CSS writes it.
    pub(super) dark: &'static str,
    pub(super) is_dashed: bool,
}

/// All pens. A dashed pen's colour differs by one step from its solid one.
pub(super) const PENS: [Pen; 6] = [
    Pen { light: RGBColor(0x1D, 0x5F, 0xC4), dark: "#6FA8FF", is_dashed: false },
    Pen { light: RGBColor(0xC8, 0x52, 0x0A), dark: "#FF9D57", is_dashed: false },
    Pen { light: RGBColor(0x1F, 0x7A, 0x3D), dark: "#5FD38A", is_dashed: false },
    Pen { light: RGBColor(0x1D, 0x5F, 0xC5), dark: "#6FA8FF", is_dashed: true },
    Pen { light: RGBColor(0xC8, 0x52, 0x0B), dark: "#FF9D57", is_dashed: true },
    Pen { light: RGBColor(0x7A, 0x82, 0x8C), dark: "#98A2AD", is_dashed: true },
];
/// Colour of text and axes.
pub(super) const INK: RGBColor = RGBColor(0x3A, 0x41, 0x4A);
pub(super) const GRID: RGBColor = RGBColor(0xE2, 0xE5, 0xE9);

impl Pen {
    pub(super) fn css(self) -> String {
        css(self.light)
    }
}

/// The colour in the notation of the drawing library.
pub(super) fn css(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

/// One axis of a chart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) from: f64,
    pub(super) to: f64,
    /// Positions and labels of the grid lines.
    pub(super) marks: Vec<(f64, String)>,
}

impl Axis {
    /// Makes an axis from 0 to a little above `max`, in round steps.
    pub(super) fn linear(max: f64, name: impl Fn(f64) -> String) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let rough = max / STEPS;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|it| it * power).into_iter().find(|it| *it >= rough);
        let step = step.unwrap_or(10.0 * power);
        let count = (max / step * (1.0 + 1e-9)).floor() as usize;
        let marks = (0..=count).map(|at| at as f64 * step).map(|at| (at, name(at))).collect();
        Self { from: 0.0, to: max * 1.04, marks }
    }

    /// Makes an axis of decades from `min` to `max`, both above 0. Its points must be logarithms.
    pub(super) fn logarithmic(min: f64, max: f64, name: impl Fn(f64) -> String) -> Self {
        let is_sound = min > 0.0 && max >= min && max.is_finite();
        let (min, max) = if is_sound { (min, max) } else { (1.0, 10.0) };
        let (low, high) = (min.log10() - 0.08, max.log10() + 0.08);
        let between = |steps: &[f64]| {
            let powers = low.floor() as i32..=high.ceil() as i32;
            let values =
                powers.flat_map(|power| steps.iter().map(move |it| it * 10_f64.powi(power)));
            let inside = values.filter(|it| (low..=high).contains(&it.log10()));
            inside.map(|it| (it.log10(), name(it))).collect::<Vec<_>>()
        };
        let few = between(&[1.0]);
        let marks = if few.len() >= 4 { few } else { between(&[1.0, 2.0, 5.0]) };
        Self { from: low, to: high, marks }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.from) / (self.to - self.from);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.iter().map(|(at, _)| *at).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, at: &f64) -> String {
        let mark = self.marks.iter().find(|(mark, _)| (mark - at).abs() < 1e-9);
        mark.map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

/// Draws the chart. Points that are not numbers are left out; lines are cut off at the axes.
pub(super) fn svg(x: &Axis, y: &Axis, series: &[Series]) -> String {
    let mut text = String::new();
    draw(&mut text, x, y, series).expect("a string takes whatever is drawn");
    text
}

fn draw(text: &mut String, x: &Axis, y: &Axis, series: &[Series]) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .margin(MARGIN)
        .margin_right(MARGIN_RIGHT)
        .x_label_area_size(ROOM_BELOW)
        .y_label_area_size(ROOM_LEFT)
        .build_cartesian_2d(x.clone(), y.clone())?;
    let label = ("sans-serif", TEXT_SIZE).into_font().color(&INK);
    chart
        .configure_mesh()
        .bold_line_style(GRID.stroke_width(2))
        .light_line_style(TRANSPARENT)
        .axis_style(INK.stroke_width(2))
        .label_style(label)
        .draw()?;
    for line in series {
        let inside = |(at, value): &(f64, f64)| {
            let point = (at.clamp(x.from, x.to), value.clamp(y.from, y.to));
            (at.is_finite() && value.is_finite()).then_some(point)
        };
        let points: Vec<(f64, f64)> = line.points.iter().filter_map(inside).collect();
        chart.draw_series(LineSeries::new(points, line.pen.light.stroke_width(LINE_WIDTH)))?;
    }
    area.present()?;
    drop(chart);
    Ok(())
}

/// Width and height in SVG units, twice the usual pixels, because lines are drawn between whole
/// units.
const SIZE: (u32, u32) = (1760, 680);
const MARGIN: u32 = 16;
const MARGIN_RIGHT: u32 = 48;
const ROOM_BELOW: u32 = 48;
const ROOM_LEFT: u32 = 130;
const TEXT_SIZE: u32 = 26;
const LINE_WIDTH: u32 = 4;
/// Approximate number of marks on a linear axis.
const STEPS: f64 = 8.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_inside() {
        let places = |axis: &Axis| axis.marks.iter().map(|it| it.1.clone()).collect::<Vec<_>>();
        let axis = Axis::linear(11.3, |it| it.to_string());
        assert_eq!(places(&axis), ["0", "2", "4", "6", "8", "10"]);
        let axis = Axis::logarithmic(80.0, 700_000.0, |it| it.to_string());
        assert_eq!(places(&axis), ["100", "1000", "10000", "100000"]);
        let axis = Axis::logarithmic(90.0, 700.0, |it| it.round().to_string());
        assert_eq!(places(&axis), ["100", "200", "500"]);
        for odd in [
            Axis::linear(f64::NAN, |_| String::new()),
            Axis::logarithmic(0.0, -1.0, |_| String::new()),
        ] {
            assert!(odd.from < odd.to && !odd.marks.is_empty());
        }
    }

    #[test]
    fn no_two_pens_have_the_same_colour() {
        for (at, pen) in PENS.iter().enumerate() {
            assert!(PENS[..at].iter().all(|other| other.light != pen.light), "{at}");
        }
    }

    #[test]
    fn lines_lie_inside_the_picture_and_odd_numbers_are_left_out() {
        let points = vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 1e9), (3.0, -5.0)];
        let series = Series { name: String::new(), pen: PENS[0], points };
        let axis = Axis::linear(4.0, |it| it.to_string());
        let svg = svg(&axis, &axis, &[series]);
        let line = svg.lines().find(|line| line.contains(&PENS[0].css())).expect("a line");
        let points = line.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let points: Vec<(u32, u32)> = points
            .split_whitespace()
            .map(|it| it.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert_eq!(points.len(), 3);
        assert!(points.iter().all(|(x, y)| *x <= SIZE.0 && *y <= SIZE.1), "{points:?}");
    }
}
