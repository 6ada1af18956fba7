//! `ferrite lab` keeps what earlier runs have measured, and judges it again.

mod common;

use std::fs;
use std::path::Path;

use common::{fails, ferrite, ok, text};

fn run(out: &Path, figure: &str) -> String {
    let output = ferrite()
        .args(["lab", "run", figure, "--quick", "--out"])
        .arg(out)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

/// Ids of the figures in results.json.
fn kept(out: &Path) -> Vec<String> {
    let data = fs::read_to_string(out.join("results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&data).unwrap();
    let results = results.as_array().unwrap().iter();
    results
        .map(|result| result["info"]["id"].as_str().unwrap().to_string())
        .collect()
}

#[test]
fn a_run_of_one_figure_keeps_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path();
    let said = run(out, "hdpm-9");
    assert!(!said.contains("kept of earlier runs"), "{said}");
    let said = run(out, "hdpm-2");
    assert!(
        said.contains("kept of earlier runs") && said.contains("results.json"),
        "{said}"
    );
    assert_eq!(kept(out), ["hdpm-2", "hdpm-9"]);
    run(out, "hdpm-9");
    assert_eq!(kept(out), ["hdpm-2", "hdpm-9"]);
    // A verdict that an older build has given.
    let data = out.join("results.json");
    let told = fs::read_to_string(&data).unwrap();
    fs::write(&data, told.replace("Holds: ", "An older build says: ")).unwrap();
    ok(ferrite().args(["lab", "report", "--out"]).arg(out));
    assert_eq!(fs::read_to_string(&data).unwrap(), told);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<h2 id=\"hdpm-2\">") && page.contains("<h2 id=\"hdpm-9\">"));
}

/// The page that docs/lab/README.md promises: it is not kept, so it must be there for the asking.
#[test]
fn the_page_is_made_from_the_results_that_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path();
    fs::copy("../../docs/lab/results.json", out.join("results.json")).unwrap();
    ok(ferrite().args(["lab", "report", "--out"]).arg(out));
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    let figures = kept(out);
    assert!(figures.len() >= 16, "{figures:?}");
    for figure in &figures {
        let heading = format!("<h2 id=\"{figure}\">");
        let (_, rest) = page.split_once(&heading).unwrap_or_else(|| panic!("no {figure}"));
        let section = rest.split("<h2 ").next().unwrap_or_default();
        assert!(section.contains("<svg"), "{figure} has no plot");
    }
    // Judged again, the results are what they were.
    assert_eq!(
        fs::read_to_string(out.join("results.json")).unwrap(),
        fs::read_to_string("../../docs/lab/results.json").unwrap()
    );
}

#[test]
fn results_that_are_none_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("results.json");
    fs::write(&data, "no results").unwrap();
    let said = fails(
        ferrite()
            .args(["lab", "run", "hdpm-9", "--quick", "--out"])
            .arg(dir.path()),
        1,
    );
    for word in ["results.json", "no results of the lab", "another --out"] {
        assert!(said.contains(word), "`{word}` missing in: {said}");
    }
    assert_eq!(fs::read_to_string(&data).unwrap(), "no results");
}
