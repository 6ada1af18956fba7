//! `ferrite-lab` keeps the measurements of earlier runs, and judges them again.

mod common;

use std::fs;
use std::path::Path;

use common::{fails, lab, ok, text};

fn run(out: &Path, figure: &str) -> String {
    let output = lab()
        .args(["run", figure, "--quick", "--out"])
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
    // A verdict from an older build.
    let data = out.join("results.json");
    let told = fs::read_to_string(&data).unwrap();
    fs::write(&data, told.replace("Holds: ", "An older build says: ")).unwrap();
    ok(lab().args(["report", "--out"]).arg(out));
    assert_eq!(fs::read_to_string(&data).unwrap(), told);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<h2 id=\"hdpm-2\">") && page.contains("<h2 id=\"hdpm-9\">"));
}

/// The page that docs/lab/README.md promises: it is not kept, so the command must make it on request.
#[test]
fn the_page_is_made_from_the_results_that_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path();
    fs::copy("../../docs/lab/results.json", out.join("results.json")).unwrap();
    ok(lab().args(["report", "--out"]).arg(out));
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    let figures = kept(out);
    assert!(figures.len() >= 16, "{figures:?}");
    for figure in &figures {
        let heading = format!("<h2 id=\"{figure}\">");
        let (_, rest) = page.split_once(&heading).unwrap_or_else(|| panic!("no {figure}"));
        let section = rest.split("<h2 ").next().unwrap_or_default();
        assert!(section.contains("<svg"), "{figure} has no plot");
    }
    // A new judgement of the same results does not change them.
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
    let said = fails(lab().args(["run", "hdpm-9", "--quick", "--out"]).arg(dir.path()), 1);
    for word in ["results.json", "no results of the lab", "another --out"] {
        assert!(said.contains(word), "`{word}` missing in: {said}");
    }
    assert_eq!(fs::read_to_string(&data).unwrap(), "no results");
}

/// Before anything is measured.
#[test]
fn what_is_no_trace_is_refused_with_line_and_mend() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, out) = (dir.path().join("my.trace"), dir.path().join("out"));
    fs::write(&trace, "ferrite-trace 1\nf 7 0\n12@x\n").unwrap();
    let run = |figure: &str, code| {
        let words = ["run", figure, "--quick", "--trace"];
        fails(lab().args(words).arg(&trace).arg("--out").arg(&out), code)
    };
    let said = run("hdpm-2", 1);
    assert!(
        ["my.trace", "line 3", "12@x", "head -n 2"]
            .iter()
            .all(|word| said.contains(word)),
        "{said}"
    );
    let said = run("hashfs-5", 2);
    assert!(said.contains("--trace") && said.contains("hdpm-2"), "{said}");
    fs::remove_file(&trace).unwrap();
    let said = run("hdpm-2", 1);
    assert!(said.contains("my.trace") && said.contains("No such file"), "{said}");
}
