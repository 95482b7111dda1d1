// Finds entries of the search index: a name first, then entries that have the most words of the query or their synonyms.
const STOP = new Set(
  'a an and are as at be by can did do does for from get has have how i if in into is it its me my of on or our should so that the their this to use was we what when where which who why will with you your'.split(
    ' ',
  ),
)
const SYNONYM_WEIGHT = 0.6
const FORM_WEIGHT = 0.9
/** Entries of one page that precede the entries of all other pages. */
const PER_PAGE = 2

/** A name is one term: createAgent, agents create, RESOURCE_NOT_FOUND. */
const nameTerm = query => query.replace(/[^a-z0-9]/gi, each => `z${' _.:-'.indexOf(each)}z`)

/** Other forms of a word, by which a prefix of it is found. */
const formsOf = word =>
  [/ies$/, /s$/, /ing$/, /ed$/].map(ending => word.replace(ending, '')).filter(form => form !== word && form.length > 2)

/** The words and phrases of a query, each with the alternatives that it is found by and their weights. */
function groupsOf(query, synonyms) {
  const synonymsOf = word => (Object.hasOwn(synonyms, word) ? synonyms[word] : undefined)
  let rest = ` ${query
    .toLowerCase()
    .replace(/[^\p{L}\p{N}_]+/gu, ' ')
    .trim()} `
  const groups = []
  const take = (words, found) => {
    const forms = words.includes(' ') ? [] : formsOf(words)
    const same = [words, ...forms].flatMap(each => synonymsOf(each) ?? synonymsOf(`${each}e`) ?? [])
    groups.push({
      found,
      alternatives: new Map([
        ...same.map(each => [each, SYNONYM_WEIGHT]),
        ...forms.map(each => [each, FORM_WEIGHT]),
        [words, 1],
      ]),
    })
  }
  for (const phrase of Object.keys(synonyms).filter(each => each.includes(' ')))
    if (rest.includes(` ${phrase} `)) {
      rest = rest.replace(` ${phrase} `, '  ')
      take(phrase, phrase.split(' '))
    }
  const words = rest.split(' ').filter(each => each !== '')
  const useful = words.filter(each => !STOP.has(each))
  for (const word of useful.length > 0 || groups.length > 0 ? useful : words) take(word, [word])
  return groups
}

/** The words of an entry that a query has found. */
export const termsOf = ({ terms = [] }) => [...terms].filter(term => !/z\dz/.test(term))

/** Entries for a query, best first, with the terms that they were found by. */
export function find(search, synonyms, query) {
  if (query.trim() === '') return []
  const exact = search.search(nameTerm(query.trim()), { fields: ['names'], prefix: false })
  const groups = groupsOf(query, synonyms)
  const found = new Map()
  for (const [number, { alternatives }] of groups.entries())
    for (const [text, weight] of alternatives)
      for (const { score, terms, ...entry } of search.search(text, { combineWith: 'AND', fuzzy: false })) {
        const known = found.get(entry.id) ?? { ...entry, scores: groups.map(() => 0), terms: new Set() }
        known.scores[number] = Math.max(known.scores[number], score * weight)
        for (const term of terms) known.terms.add(term)
        found.set(entry.id, known)
      }
  const ranked = [...found.values()].map(({ scores, ...entry }) => {
    const share = scores.filter(each => each > 0).length / groups.length
    const sum = scores.reduce((total, each) => total + Math.sqrt(each), 0)
    return { ...entry, score: sum * share * entry.weight }
  })
  ranked.sort((a, b) => b.score - a.score)
  const counts = new Map()
  const isRepeated = ({ context }) => {
    counts.set(context, (counts.get(context) ?? 0) + 1)
    return counts.get(context) > PER_PAGE
  }
  const names = new Set(exact.map(({ id }) => id))
  const others = ranked.filter(({ id }) => !names.has(id)).map(each => ({ ...each, later: isRepeated(each) }))
  const all = [...exact, ...others.filter(each => !each.later), ...others.filter(each => each.later)]
  return all.length > 0 ? all : search.search(query, { fuzzy: 0.2 })
}
