//! The page in headless Chromium. Without Chromium the test says so and passes, unless `CI` is set.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flate2::read::ZlibDecoder;

use super::fixture::report;
use super::markup::Chart;
use super::page;

/// Runs the browser on a page with a temporary profile, and returns its output.
fn browse(browser: &Path, directory: &Path, file: &Path, arguments: &[&str]) -> Vec<u8> {
    let out = directory.join("out");
    let child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--hide-scrollbars", "--force-device-scale-factor=1", "--window-size=1000,2400"])
        .arg(format!("--user-data-dir={}", directory.join("profile").display()))
        .args(arguments)
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .stdout(fs::File::create(&out).unwrap())
        .stderr(fs::File::create(directory.join("err")).unwrap())
        .spawn()
        .expect("the browser starts");
    let ended = wait(child);
    let said = || fs::read_to_string(directory.join("err")).unwrap_or_default();
    assert!(ended, "the browser failed or took longer than {WAIT_MAX:?}: {}", said());
    fs::read(out).unwrap()
}

/// Whether the browser succeeded in time.
fn wait(mut child: Child) -> bool {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status.success(),
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                child.wait().unwrap();
                return false;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut found = std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name)));
    found.find(|it| it.is_file())
}

/// An image with 8 bits per channel, three or four channels (PNG, ISO/IEC 15948): how many pixels
/// have each colour.
fn colours(png: &[u8]) -> BTreeMap<[u8; 3], usize> {
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(&png[1..4], b"PNG");
    let (width, depth, kind, interlaced) = (number(16), png[24], png[25], png[28]);
    let channels = match (depth, kind, interlaced) {
        (8, 2, 0) => 3,
        (8, 6, 0) => 4,
        other => panic!("a picture of another kind: {other:?}"),
    };
    let (mut packed, mut at) = (Vec::new(), 8);
    while at < png.len() {
        let len = number(at);
        if &png[at + 4..at + 8] == b"IDAT" {
            packed.extend_from_slice(&png[at + 8..at + 8 + len]);
        }
        at += len + 12;
    }
    let mut rows = Vec::new();
    ZlibDecoder::new(packed.as_slice()).read_to_end(&mut rows).unwrap();
    let mut above = vec![0_u8; width * channels];
    let mut found = BTreeMap::new();
    for row in rows.chunks_exact(width * channels + 1) {
        let mut line = row[1..].to_vec();
        for at in 0..line.len() {
            let left = if at < channels { 0 } else { line[at - channels] };
            let corner = if at < channels { 0 } else { above[at - channels] };
            let guess = match row[0] {
                0 => 0,
                1 => left,
                2 => above[at],
                3 => u8::midpoint(left, above[at]),
                _ => paeth(left, above[at], corner),
            };
            line[at] = line[at].wrapping_add(guess);
        }
        for pixel in line.chunks_exact(channels) {
            *found.entry([pixel[0], pixel[1], pixel[2]]).or_default() += 1;
        }
        above = line;
    }
    found
}

fn paeth(left: u8, up: u8, corner: u8) -> u8 {
    let estimate = i16::from(left) + i16::from(up) - i16::from(corner);
    let far = |it: u8| (estimate - i16::from(it)).abs();
    if far(left) <= far(up) && far(left) <= far(corner) {
        left
    } else if far(up) <= far(corner) {
        up
    } else {
        corner
    }
}

fn rgb(css: &str) -> [u8; 3] {
    [1, 3, 5].map(|at| u8::from_str_radix(&css[at..at + 2], 16).unwrap())
}

#[test]
fn a_real_browser_shows_the_curves() {
    let Some(browser) = browser() else {
        assert!(std::env::var_os("EPICEPOCH_PAGE").is_none(), "EPICEPOCH_PAGE needs chromium");
        println!("NOTE: there is no chromium here: the page was not opened");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = if let Some(given) = std::env::var_os("EPICEPOCH_PAGE") {
        fs::canonicalize(given).unwrap()
    } else {
        let file = directory.path().join("page.html");
        fs::write(&file, page(&[("one", &report())])).unwrap();
        file
    };
    let tree = browse(&browser, directory.path(), &file, &["--dump-dom"]);
    let charts = Chart::all(std::str::from_utf8(&tree).unwrap());
    assert_eq!(charts.len(), 3, "three charts");
    charts.iter().for_each(Chart::assert_drawn);

    let shot = directory.path().join("shot.png");
    let flag = format!("--screenshot={}", shot.display());
    browse(&browser, directory.path(), &file, &[&flag, "--blink-settings=preferredColorScheme=1"]);
    let seen = colours(&fs::read(&shot).unwrap());
    for line in charts.iter().flat_map(|chart| &chart.lines) {
        let pixels = seen.get(&rgb(&line.colour)).copied().unwrap_or_default();
        assert!(pixels >= PIXELS_MIN, "{}: {pixels} pixels, {} colours", line.colour, seen.len());
    }
    assert!(seen.get(&[0xff; 3]).copied().unwrap_or_default() > 100_000, "a light page");

    let dark = ["--blink-settings=preferredColorScheme=0", flag.as_str()];
    browse(&browser, directory.path(), &file, &dark);
    let seen = colours(&fs::read(&shot).unwrap());
    assert!(!seen.contains_key(&[0xff; 3]), "a dark page has no white");
    let bright = seen.get(&rgb("#6FA8FF")).copied().unwrap_or_default();
    assert!(bright >= PIXELS_MIN, "{bright} pixels of a curve in the dark");
}

/// How long the browser may take on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(90);
/// Pixels in exactly the colour of a curve; its edges are blended with the background. Three
/// legends have 234.
const PIXELS_MIN: usize = 250;
