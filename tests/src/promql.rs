//! A reader of as much PromQL as `deploy/` uses: which series a query reads, and by which labels. What it does
//! not know is an error, so that nothing is passed over.

use std::ops::Range;

/// What picks series: a metric's name and its matchers (label, operator, value).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The metric.
    pub metric: String,
    /// Label, operator, value.
    pub matchers: Vec<(String, String, String)>,
    at: usize,
}

/// `sum by (labels) (over)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// The labels that are kept.
    pub labels: Vec<String>,
    over: Range<usize>,
}

/// What a query reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Every selector, in the order of the text.
    pub selectors: Vec<Selector>,
    /// Every `by (…)`.
    pub groupings: Vec<Grouping>,
    /// The labels by which two sides of an operator are matched.
    pub matched_by: Vec<String>,
    aggregates: bool,
    outermost: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Number,
    Sign(String),
}

const AGGREGATIONS: [&str; 4] = ["count", "max", "min", "sum"];
const FUNCTIONS: [&str; 6] = ["absent", "changes", "histogram_quantile", "increase", "rate", "time"];
const OPERATORS: [&str; 3] = ["and", "or", "unless"];
const MATCHINGS: [&str; 4] = ["on", "ignoring", "group_left", "group_right"];

/// Reads a query.
///
/// # Errors
/// What it does not understand, in words.
pub fn read(text: &str) -> Result<Query, String> {
    let tokens = tokens(text)?;
    let mut query = Query::default();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at = match token {
            Token::Word(word) => read_word(word, &tokens, at, &mut query)?,
            Token::Sign(sign) if sign == "{" => return Err(format!("`{{` without a metric in {text}")),
            Token::Sign(_) | Token::Number => at + 1,
            Token::Text(text) => return Err(format!("the text {text:?} is no matcher's")),
        };
    }
    Ok(query)
}

impl Query {
    /// What a grouping is over.
    pub fn over<'a>(&'a self, grouping: &'a Grouping) -> impl Iterator<Item = &'a Selector> {
        self.selectors.iter().filter(|selector| grouping.over.contains(&selector.at))
    }

    /// The labels of its result; `of` says those of a selector.
    pub fn result(&self, of: impl Fn(&Selector) -> Vec<String>) -> Vec<String> {
        let labels = if self.aggregates {
            self.outermost.and_then(|at| self.groupings.get(at)).map(|by| by.labels.clone())
        } else {
            self.selectors.first().map(of)
        };
        labels.unwrap_or_default().into_iter().filter(|label| label != "le").collect()
    }
}

/// Reads on from a word; the answer is where to go on.
fn read_word(word: &str, tokens: &[Token], at: usize, query: &mut Query) -> Result<usize, String> {
    let next = tokens.get(at + 1);
    let opens = next == Some(&Token::Sign("(".to_owned()));
    if MATCHINGS.contains(&word) && opens {
        let (labels, after) = names(tokens, at + 1)?;
        query.matched_by.extend(labels);
        return Ok(after);
    }
    if AGGREGATIONS.contains(&word) {
        let first = !query.aggregates;
        query.aggregates = true;
        if next != Some(&Token::Word("by".to_owned())) {
            return if opens { Ok(at + 1) } else { Err(format!("`{word}` over nothing")) };
        }
        let (labels, after) = names(tokens, at + 2)?;
        let end = closing(tokens, after)?;
        if first {
            query.outermost = Some(query.groupings.len());
        }
        query.groupings.push(Grouping { labels, over: after..end });
        return Ok(after);
    }
    if FUNCTIONS.contains(&word) && opens || OPERATORS.contains(&word) {
        return Ok(at + 1);
    }
    if opens || ["by", "without"].contains(&word) {
        return Err(format!("`{word}` is not known here: `by` goes before what it is over"));
    }
    let (matchers, after) = matchers(tokens, at + 1)?;
    query.selectors.push(Selector { metric: word.to_owned(), matchers, at });
    Ok(after)
}

/// The place of the bracket that closes the one at `open`.
fn closing(tokens: &[Token], open: usize) -> Result<usize, String> {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::Sign(sign) if sign == "(" => depth += 1,
            Token::Sign(sign) if sign == ")" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if at > open { Ok(at) } else { Err("`by (…)` is over nothing".to_owned()) };
        }
    }
    Err("a bracket is not closed".to_owned())
}

/// The words between the bracket at `open` and its end, and what is behind it.
fn names(tokens: &[Token], open: usize) -> Result<(Vec<String>, usize), String> {
    let end = closing(tokens, open)?;
    let mut labels = Vec::new();
    for token in tokens.get(open + 1..end).unwrap_or_default() {
        match token {
            Token::Word(word) => labels.push(word.clone()),
            Token::Sign(sign) if sign == "," => {}
            other => return Err(format!("{other:?} among labels")),
        }
    }
    Ok((labels, end + 1))
}

type Matchers = Vec<(String, String, String)>;

fn matchers(tokens: &[Token], open: usize) -> Result<(Matchers, usize), String> {
    let is = |at: usize, sign: &str| matches!(tokens.get(at), Some(Token::Sign(is)) if is == sign);
    let mut found = Vec::new();
    if !is(open, "{") {
        return Ok((found, open));
    }
    let mut at = open + 1;
    while !is(at, "}") {
        let (Some(Token::Word(label)), Some(Token::Sign(operator)), Some(Token::Text(value))) =
            (tokens.get(at), tokens.get(at + 1), tokens.get(at + 2))
        else {
            return Err(format!("no matcher: {:?}", tokens.get(at)));
        };
        if !["=", "!=", "=~", "!~"].contains(&operator.as_str()) {
            return Err(format!("{operator} is no matcher's operator"));
        }
        found.push((label.clone(), operator.clone(), value.clone()));
        at += if is(at + 3, ",") { 4 } else { 3 };
    }
    Ok((found, at + 1))
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let cut = |end: Option<usize>| end.ok_or_else(|| format!("no end: {rest}"));
        let taken = if first.is_ascii_digit() {
            tokens.push(Token::Number);
            rest.find(|c| !(word(c) || c == '.')).unwrap_or(rest.len())
        } else if word(first) {
            let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_owned()));
            end
        } else if first == '"' {
            let end = cut(rest[1..].find('"'))?;
            tokens.push(Token::Text(rest[1..=end].to_owned()));
            end + 2
        } else if first == '[' {
            let end = cut(rest.find(']'))?;
            let window = &rest[1..end];
            let time =
                window.strip_suffix(['s', 'm', 'h']).is_some_and(|number| number.parse::<u32>().is_ok());
            if !time && window != "$__rate_interval" {
                return Err(format!("[{window}] is no interval"));
            }
            end + 1
        } else {
            let two = ["=~", "!~", "!=", "==", ">=", "<="].iter().find(|two| rest.starts_with(**two));
            let sign = two.map_or(&rest[..first.len_utf8()], |two| two);
            if two.is_none() && !"(){},=<>+-*/".contains(first) {
                return Err(format!("{first:?} is not known here"));
            }
            tokens.push(Token::Sign(sign.to_owned()));
            sign.len()
        };
        rest = rest[taken..].trim_start();
    }
    Ok(tokens)
}
