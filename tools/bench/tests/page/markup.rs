//! The charts of a page, in its markup or a browser's tree.

/// A figure.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) id: String,
    size: (f64, f64),
    /// Lines with a point for each step of a curve; axes have two points.
    pub(crate) lines: Vec<Line>,
}

/// A curve.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) colour: String,
    pub(crate) points: Vec<(f64, f64)>,
}

fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let from = element.find(&format!(" {name}=\""))? + name.len() + 3;
    element[from..].split('"').next()
}

impl Chart {
    pub(crate) fn all(page: &str) -> Vec<Self> {
        page.split("<figure").skip(1).map(Self::parse).collect()
    }

    fn parse(figure: &str) -> Self {
        let figure = figure.split("</figure>").next().unwrap();
        let view: Vec<f64> = attribute(figure, "viewBox")
            .expect("a chart has a view box")
            .split(' ')
            .map(|it| it.parse().unwrap())
            .collect();
        let lines = figure.split("<polyline").skip(1).map(|element| {
            let element = element.split('>').next().unwrap();
            let points = attribute(element, "points").unwrap().split_whitespace();
            let points = points.map(|it| it.split_once(',').unwrap());
            Line {
                colour: attribute(element, "stroke").unwrap().to_owned(),
                points: points.map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap())).collect(),
            }
        });
        // Axes and ticks are lines of two points in the text's colour.
        let curves = lines.filter(|line| line.colour != "#3A414A").collect();
        let id = attribute(figure, "id").expect("a chart has a name").to_owned();
        Self { id, size: (view[2], view[3]), lines: curves }
    }

    /// Checks that the curves have enough points, lie inside the chart, and use its space.
    #[track_caller]
    pub(crate) fn assert_drawn(&self) {
        let Self { id, size, lines } = self;
        let points: usize = lines.iter().map(|line| line.points.len()).sum();
        assert!(!lines.is_empty() && points >= POINTS_MIN, "{id}: {points} points");
        for line in lines {
            for (x, y) in &line.points {
                let inside = (0.0..=size.0).contains(x) && (0.0..=size.1).contains(y);
                assert!(inside, "{id}: {x},{y} is outside of {size:?}");
            }
        }
        let widest = lines.iter().map(|line| {
            let xs = || line.points.iter().map(|it| it.0);
            xs().fold(0.0, f64::max) - xs().fold(f64::INFINITY, f64::min)
        });
        assert!(widest.fold(0.0, f64::max) > size.0 / 2.0, "{id}: no curve is wide");
    }
}

/// Fewest points of all curves of a chart together.
const POINTS_MIN: usize = 6;
