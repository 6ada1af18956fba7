//! Plots as SVG: the panels of a figure in one picture, two a row, the legend above.
//!
//! Every contender has one colour in all pictures. Whiskers are the intervals.

use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::number;
use crate::data::{Panel, Point};

const WIDTH: u32 = 980;
const PANEL_HEIGHT: u32 = 300;
const LEGEND_ROW: u32 = 22;
const LEGEND_ENTRY: u32 = 240;
const FONT: &str = "sans-serif";
/// Colours that colour-blind readers can distinguish, by contender; others share the rest.
const COLOURS: [(&str, RGBColor); 8] = [
    ("hashfs", RGBColor(0, 90, 181)),
    ("cuckoo", RGBColor(230, 159, 0)),
    ("radix", RGBColor(0, 158, 115)),
    ("extent", RGBColor(213, 94, 0)),
    ("leaf", RGBColor(204, 121, 167)),
    ("level", RGBColor(120, 94, 40)),
    ("hashfs-tombstones", RGBColor(86, 180, 233)),
    ("extent-page-cached", RGBColor(110, 110, 110)),
];
const OTHERS: [RGBColor; 11] = [
    RGBColor(0, 90, 181),
    RGBColor(230, 159, 0),
    RGBColor(160, 60, 60),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 40),
    RGBColor(110, 110, 110),
    RGBColor(100, 60, 160),
    RGBColor(150, 180, 40),
    RGBColor(0, 0, 0),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn names(panels: &[Panel]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for series in panels.iter().flat_map(|panel| &panel.series) {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
    }
    names
}

fn colour(name: &str, names: &[&str]) -> RGBColor {
    let known = COLOURS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, colour)| *colour);
    known.unwrap_or_else(|| {
        // An unknown name: by its position among those.
        let unknown = names
            .iter()
            .filter(|name| COLOURS.iter().all(|(known, _)| known != *name));
        let place = unknown.into_iter().position(|other| *other == name).unwrap_or(0);
        if names.contains(&"hashfs") {
            OTHERS[2 - place % 3]
        } else {
            OTHERS[place % OTHERS.len()]
        }
    })
}

/// The division of a picture.
struct Grid {
    legend_height: u32,
    /// Rows and columns of panels.
    rows: u32,
    columns: u32,
    /// Names in a row of the legend.
    per_row: u32,
}

/// The picture, as an `svg` element. An error is text that explains it.
pub(crate) fn svg(panels: &[Panel]) -> Result<String, String> {
    let names = names(panels);
    let columns = panels.len().clamp(1, 2) as u32;
    let rows = (panels.len() as u32).div_ceil(columns).max(1);
    let per_row = (WIDTH / LEGEND_ENTRY).max(1);
    let legend_height = (names.len() as u32).div_ceil(per_row) * LEGEND_ROW + 8;
    let grid = Grid {
        legend_height,
        rows,
        columns,
        per_row,
    };
    let mut picture = String::new();
    {
        let root =
            SVGBackend::with_string(&mut picture, (WIDTH, legend_height + rows * PANEL_HEIGHT)).into_drawing_area();
        draw(&root, panels, &names, &grid).map_err(|error| error.to_string())?;
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(picture)
}

fn draw(root: &Area<'_>, panels: &[Panel], names: &[&str], grid: &Grid) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let (legend, body) = root.split_vertically(grid.legend_height);
    for (index, name) in names.iter().enumerate() {
        let index = index as u32;
        let at = (
            (10 + index % grid.per_row * LEGEND_ENTRY) as i32,
            (6 + index / grid.per_row * LEGEND_ROW) as i32,
        );
        let square = [at, (at.0 + 14, at.1 + 14)];
        legend.draw(&Rectangle::new(square, colour(name, names).filled()))?;
        let style = (FONT, 15).into_font().color(&BLACK);
        legend.draw(&Text::new(name.to_string(), (at.0 + 20, at.1 + 1), style))?;
    }
    for (area, panel) in body
        .split_evenly((grid.rows as usize, grid.columns as usize))
        .iter()
        .zip(panels)
    {
        let (low, high) = bounds(panel);
        if panel.log_y {
            let scale = (low..high).log_scale().with_key_points(ticks(low, high));
            draw_panel(area, panel, names, scale, low)?;
        } else {
            draw_panel(area, panel, names, low..high, low)?;
        }
    }
    Ok(())
}

fn good_points(points: &[Point]) -> impl Iterator<Item = &Point> {
    points.iter().filter(|point| {
        let all = [point.x, point.median, point.low, point.high];
        all.iter().all(|value| value.is_finite())
    })
}

/// The range of the y axis.
fn bounds(panel: &Panel) -> (f64, f64) {
    let points = || panel.series.iter().flat_map(|series| good_points(&series.points));
    let high = points()
        .map(|point| point.high.max(point.median))
        .fold(f64::MIN_POSITIVE, f64::max);
    if !panel.log_y {
        return (0.0, (high * 1.08).max(1e-9));
    }
    let low = points()
        .map(|point| point.low)
        .filter(|&low| low > 0.0)
        .fold(high, f64::min);
    // Whole decades below would waste most of the picture.
    (low / 2.0, (high * 1.5).max(low))
}

/// A value on the axis: round ones without zeros behind the point.
fn tick(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        number(value)
    }
}

/// Where a logarithmic axis has labels: 1, 2 and 5 of each decade, so that a narrow one has some, too.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    if !(low > 0.0 && high.is_finite()) {
        return Vec::new();
    }
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    decades
        .flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)))
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}

/// Places on the x axis with their labels.
fn places(panel: &Panel) -> Vec<(f64, &str)> {
    let mut places: Vec<(f64, &str)> = Vec::new();
    for point in panel.series.iter().flat_map(|series| good_points(&series.points)) {
        if places.iter().all(|(x, _)| *x != point.x) {
            places.push((point.x, &point.label));
        }
    }
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    places
}

fn draw_panel<Y>(
    area: &Area<'_>,
    panel: &Panel,
    names: &[&str],
    y: Y,
    floor: f64,
) -> Result<(), Box<dyn std::error::Error>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let places = places(panel);
    // Bars and lines alike stand at the places 0, 1, 2: threads double from one to the next.
    let place_of = |point: &Point| places.iter().position(|(x, _)| *x == point.x).unwrap_or(0) as f64;
    let right = places.len().max(1) as f64 - 0.5;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (FONT, 17))
        .margin(8)
        .x_label_area_size(46)
        .y_label_area_size(70)
        .build_cartesian_2d(-0.5..right, y)?;
    let label = |x: &f64| {
        let whole = (x - x.round()).abs() < 1e-6 && *x >= 0.0;
        let place = whole.then(|| places.get(x.round() as usize)).flatten();
        place.map_or_else(String::new, |(_, label)| label.to_string())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        // Half steps, so that every place is among them; the others have no label.
        .x_labels(places.len() * 2 + 2)
        .x_label_formatter(&label)
        .y_label_formatter(&|y: &f64| tick(*y))
        .max_light_lines(0)
        .x_desc(panel.x_label.as_str())
        .y_desc(format!(
            "{} [{}]{}",
            panel.y_label,
            panel.unit,
            if panel.log_y { ", log scale" } else { "" }
        ))
        .axis_desc_style((FONT, 14))
        .label_style((FONT, 13))
        .draw()?;
    let width = 0.8 / panel.series.len().max(1) as f64;
    for (index, series) in panel.series.iter().enumerate() {
        let colour = colour(&series.name, names);
        let shift = if panel.lines {
            0.0
        } else {
            width * (index as f64 + 0.5) - 0.4
        };
        if panel.lines {
            let line: Vec<(f64, f64)> = good_points(&series.points)
                .map(|point| (place_of(point), point.median.max(floor)))
                .collect();
            chart.draw_series(std::iter::once(PathElement::new(line, colour.stroke_width(2))))?;
        }
        for point in good_points(&series.points) {
            let (x, median) = (place_of(point) + shift, point.median.max(floor));
            let (low, high) = (point.low.max(floor), point.high.max(floor));
            if panel.lines {
                chart.draw_series(std::iter::once(Circle::new((x, median), 4, colour.filled())))?;
            } else {
                let bar = [(x - width * 0.45, floor), (x + width * 0.45, median)];
                chart.draw_series(std::iter::once(Rectangle::new(bar, colour.filled())))?;
            }
            let cap = 0.015;
            let whiskers = [
                vec![(x, low), (x, high)],
                vec![(x - cap, low), (x + cap, low)],
                vec![(x - cap, high), (x + cap, high)],
            ];
            chart.draw_series(whiskers.map(|line| PathElement::new(line, BLACK.stroke_width(1))))?;
        }
    }
    Ok(())
}
