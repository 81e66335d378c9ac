//! The code blocks of a page.

/// A code block, or the commands of a comment.
#[derive(Debug)]
pub(crate) struct Block {
    /// The line number of the first line of the text.
    pub(crate) line: usize,
    /// The whole info string of the fence.
    pub(crate) language: String,
    pub(crate) text: String,
}

#[derive(Debug)]
pub(crate) enum Part {
    Block(Block),
    /// `<!-- run: COMMANDS -->`.
    Comment(Block),
}

#[derive(Debug)]
pub(crate) struct MarkdownPage {
    pub(crate) name: String,
    pub(crate) parts: Vec<Part>,
}

impl MarkdownPage {
    pub(crate) fn parse(name: &str, text: &str) -> Self {
        let mut parts = Vec::new();
        let mut lines = text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            let indent = line.len() - line.trim_start().len();
            if let Some(language) = line.trim_start().strip_prefix("```") {
                let language = language.trim().to_owned();
                let mut text = String::new();
                for (line, _) in lines.by_ref().take_while(|(line, _)| line.trim() != "```") {
                    text += line.get(indent..).unwrap_or_default();
                    text += "\n";
                }
                parts.push(Part::Block(Block { line: number + 1, language, text }));
            } else if let Some(first) = line.strip_prefix("<!-- run:") {
                let mut text = first.to_owned();
                while !text.ends_with("-->") {
                    text += "\n";
                    text += lines.next().unwrap().0;
                }
                let text = text.trim_end_matches("-->").trim().to_owned() + "\n";
                parts.push(Part::Comment(Block { line: number, language: String::new(), text }));
            }
        }
        Self { name: name.to_owned(), parts }
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.parts.iter().filter_map(|part| match part {
            Part::Block(block) => Some(block),
            Part::Comment(_) => None,
        })
    }
}

#[test]
fn blocks_and_comments_are_found() {
    let text = "# Page\n\n1. Item:\n   ```sh\n   echo a\n\n     b\n   ```\n<!-- run: ls -->\n```text\nc\n```\n<!-- run:\nd\ne\n-->\n";
    let page = MarkdownPage::parse("page.md", text);
    let [Part::Block(sh), Part::Comment(run), Part::Block(text), Part::Comment(last)] = &page.parts[..]
    else {
        panic!("{page:?}")
    };
    assert_eq!((sh.line, &*sh.language, &*sh.text), (5, "sh", "echo a\n\n  b\n"));
    assert_eq!((run.line, &*run.text), (9, "ls\n"));
    assert_eq!((text.line, &*text.text, &*last.text), (11, "c\n", "d\ne\n"));
    assert_eq!(page.blocks().count(), 2);
}
