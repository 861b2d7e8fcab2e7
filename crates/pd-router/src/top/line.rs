//! Lines of a terminal and tables made of them. Whatever text goes in, no control character comes out.

use std::fmt::Write;

/// How a piece of text is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    /// As text is.
    #[default]
    Plain,
    /// A heading or a number that matters.
    Strong,
    /// Less important.
    Dim,
    /// All is well.
    Good,
    /// Worth a look.
    Warn,
    /// Wrong.
    Bad,
}

impl Tone {
    /// The terminal's code: of the sixteen colours that a person's theme sets.
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Strong => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Good => "\x1b[32m",
            Self::Warn => "\x1b[33m",
            Self::Bad => "\x1b[1;31m",
        }
    }
}

/// Beside printable ASCII, what a line may hold; all are one column wide.
const OWN: &str = "–…µ▁▂▃▄▅▆▇█";

/// Text with all but printable ASCII (and [`OWN`]) written as an escape: a terminal obeys control characters,
/// and others would be of unknown width or turn the direction of the line.
fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, ' '..='~') || OWN.contains(char) {
            out.push(char);
        } else {
            out.extend(char.escape_default());
        }
    }
    out
}

/// Cut to this many columns, with a mark where something is missing.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        out.push('…');
    }
    out
}

/// One line, in pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Line(Vec<(Tone, String)>);

impl Line {
    /// A line of one piece.
    #[must_use]
    pub(super) fn of(tone: Tone, text: &str) -> Self {
        Self::default().and(tone, text)
    }

    /// With a further piece.
    #[must_use]
    pub(super) fn and(mut self, tone: Tone, text: &str) -> Self {
        self.0.push((tone, clean(text)));
        self
    }

    /// How many columns it takes.
    #[must_use]
    pub(super) fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// The line in so many columns at most, for a terminal with `colour` or as plain text.
    #[must_use]
    pub(super) fn show(&self, width: usize, colour: bool) -> String {
        let whole = self.width() <= width;
        let (mut out, mut left) = (String::new(), if whole { width } else { width.saturating_sub(1) });
        for (tone, text) in &self.0 {
            let text: String = text.chars().take(left).collect();
            left -= text.chars().count();
            if colour && *tone != Tone::Plain && !text.is_empty() {
                // Writing to a string does not fail.
                write!(out, "{}{text}\x1b[0m", tone.code()).ok();
            } else {
                out.push_str(&text);
            }
        }
        if !whole && width > 0 {
            out.push('…');
        }
        if colour { out } else { out.trim_end().to_owned() }
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// Its heading.
    pub(super) head: &'static str,
    /// Whether it holds numbers, which stand at the right.
    pub(super) number: bool,
    /// Where there is no room, columns of a higher number go first; those of 0 stay.
    pub(super) spare: u8,
}

/// A cell.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    tone: Tone,
    text: String,
}

/// A cell with this text.
#[must_use]
pub(super) fn cell(tone: Tone, text: &str) -> Cell {
    Cell { tone, text: clean(text) }
}

const INDENT: usize = 2;
const BETWEEN: usize = 2;

/// No column is cut shorter than this.
const COLUMN_MIN: usize = 8;

/// The table in so many columns of the terminal: first the spare columns go, then the widest ones are cut.
#[must_use]
pub(super) fn table(columns: &[Column], rows: &[Vec<Cell>], width: usize) -> Vec<Line> {
    let natural = |index: usize, column: &Column| {
        let cells = rows.iter().filter_map(|row| row.get(index)).map(|cell| cell.text.chars().count());
        cells.chain([column.head.chars().count()]).max().unwrap_or_default()
    };
    let mut kept: Vec<(usize, Column, usize)> =
        columns.iter().enumerate().map(|(index, column)| (index, *column, natural(index, column))).collect();
    let total = |kept: &[(usize, Column, usize)]| {
        INDENT + kept.iter().map(|(_, _, wide)| wide + BETWEEN).sum::<usize>().saturating_sub(BETWEEN)
    };
    while total(&kept) > width {
        let spare = kept.iter().enumerate().max_by_key(|(_, (_, column, _))| column.spare);
        let Some((at, _)) = spare.filter(|(_, (_, column, _))| column.spare > 0) else { break };
        kept.remove(at);
    }
    while total(&kept) > width {
        let over = total(&kept) - width;
        let Some((_, _, wide)) = kept.iter_mut().max_by_key(|(_, _, wide)| *wide) else { break };
        if *wide <= COLUMN_MIN {
            break;
        }
        *wide = wide.saturating_sub(over).max(COLUMN_MIN);
    }
    let line = |cells: &dyn Fn(usize, &Column) -> Cell| {
        kept.iter().enumerate().fold(Line::of(Tone::Plain, "  "), |line, (at, (index, column, wide))| {
            let cell = cells(*index, column);
            let text = cut(&cell.text, *wide);
            let gap = if at + 1 == kept.len() { "" } else { "  " };
            let pad = " ".repeat(wide.saturating_sub(text.chars().count()));
            let (before, after) =
                if column.number { (pad.as_str(), gap.to_owned()) } else { ("", pad.clone() + gap) };
            line.and(Tone::Plain, before).and(cell.tone, &text).and(Tone::Plain, &after)
        })
    };
    let head = line(&|_, column| cell(Tone::Dim, column.head));
    let empty = cell(Tone::Plain, "");
    let body = rows.iter().map(|row| line(&|index, _| row.get(index).unwrap_or(&empty).clone()));
    std::iter::once(head).chain(body).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn printable(text: &str) -> bool {
        text.chars().all(|char| matches!(char, ' '..='~') || OWN.contains(char))
    }

    #[test]
    fn a_line_is_never_wider_than_the_terminal() {
        let line = Line::of(Tone::Good, "one").and(Tone::Plain, " two ").and(Tone::Bad, "three");
        let shown: Vec<_> = (0..=13).map(|width| line.show(width, false)).collect();
        let expected = [
            "",
            "…",
            "o…",
            "on…",
            "one…",
            "one …",
            "one t…",
            "one tw…",
            "one two…",
            "one two …",
            "one two t…",
            "one two th…",
            "one two thr…",
            "one two three",
        ];
        assert_eq!(shown, expected);
        assert_eq!(line.show(13, true), "\x1b[32mone\x1b[0m two \x1b[1;31mthree\x1b[0m");
    }

    proptest::proptest! {
        #[test]
        fn no_text_reaches_the_terminal_as_a_command(text: String, width in 0_usize..80) {
            let shown = Line::of(Tone::Bad, &text).show(width, false);
            assert!(printable(&shown) && shown.chars().count() <= width, "{shown:?}");
            let one = Column { head: "one", number: true, spare: 0 };
            let two = Column { head: "two", number: false, spare: 1 };
            let rows = [vec![cell(Tone::Bad, &text), cell(Tone::Plain, &text)]];
            for line in table(&[one, two], &rows, width) {
                let shown = line.show(width, false);
                assert!(printable(&shown) && shown.chars().count() <= width, "{shown:?}");
            }
        }
    }

    #[test]
    fn spare_columns_go_before_others_are_cut() {
        let column = |head, number, spare| Column { head, number, spare };
        let columns = [column("engine", false, 0), column("kind", false, 2), column("legs", true, 1)];
        let rows = [vec![
            cell(Tone::Plain, "http://engine-1:8000"),
            cell(Tone::Plain, "up"),
            cell(Tone::Plain, "7"),
        ]];
        let shown = |width| -> Vec<String> {
            table(&columns, &rows, width).iter().map(|line| line.show(width, false)).collect()
        };
        assert_eq!(shown(40), ["  engine                kind  legs", "  http://engine-1:8000  up       7"]);
        assert_eq!(shown(30), ["  engine                legs", "  http://engine-1:8000     7"]);
        assert_eq!(shown(22), ["  engine", "  http://engine-1:8000"]);
        assert_eq!(shown(12), ["  engine", "  http://en…"]);
    }
}
