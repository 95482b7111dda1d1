/** IDs of resources in texts, such as `agent_01h…`. */

const WORDS = /[a-z_]+/g
const REST = /[0-9a-hjkmnp-tv-z]{26}/y

/**
 * Replaces the IDs in a text. A prefix is letters and underscores, which the rest of an ID may have too: of a run of these
 * characters each underscore is checked once, the last one first. One pattern for an ID would search from each letter.
 */
export function replaceIds(text: string, replace: (id: string) => string): string {
  let replaced = ''
  let copied = 0
  WORDS.lastIndex = 0
  for (let words = WORDS.exec(text); words; words = WORDS.exec(text)) {
    const [run] = words
    const first = run.search(/[a-z]/)
    const end = first === -1 ? -1 : endOfId(text, words.index, run, first)
    if (end === -1) continue
    const start = words.index + first
    replaced += text.slice(copied, start) + replace(text.slice(start, end))
    copied = end
    WORDS.lastIndex = end
  }
  return replaced + text.slice(copied)
}

/** Returns the end of the ID whose prefix starts at the first letter of a run, or -1. */
function endOfId(text: string, index: number, run: string, first: number): number {
  for (let at = run.lastIndexOf('_'); at > first; at = run.lastIndexOf('_', at - 1)) {
    REST.lastIndex = index + at + 1
    if (REST.test(text)) return REST.lastIndex
  }
  return -1
}

/** Returns the IDs in a text, in order, each time. */
export function idsIn(text: string): string[] {
  const ids: string[] = []
  replaceIds(text, id => {
    ids.push(id)
    return id
  })
  return ids
}
