// Scores of Sphinx's search. The defaults rank every page with a heading that has one of the words alike: a title that has
// the whole query comes first.
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    return title.toLowerCase().includes(query.trim().toLowerCase()) ? score + 20 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
