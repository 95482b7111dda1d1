/** IDs of resources in texts, such as `agent_01h…`. */

/** Characters of an ID after its prefix: the base 32 of Crockford. */
const REST_CHARS = new Set([...'0123456789abcdefghjkmnpqrstvwxyz'].map(char => char.charCodeAt(0)))
const REST_LENGTH = 26

/** Whether a text has a lower-case letter or an underscore at a position. */
function isWordAt(text: string, at: number): boolean {
  const code = text.charCodeAt(at)
  return code === 95 || (code >= 97 && code <= 122)
}

/**
 * Replaces the IDs in a text. A prefix is letters and underscores, which the rest of an ID may have too: of a run of these
 * characters each underscore is checked once, the last one first. One pattern for an ID would search from each letter.
 */
export function replaceIds(text: string, replace: (id: string) => string): string {
  let replaced = ''
  let copied = 0
  for (let from = 0, underscore = text.indexOf('_'); underscore !== -1; underscore = text.indexOf('_', from)) {
    let start = underscore
    while (start > from && isWordAt(text, start - 1)) start--
    while (text.charCodeAt(start) === 95) start++
    let runEnd = Math.max(start, underscore)
    while (isWordAt(text, runEnd)) runEnd++
    const end = endOfId(text, start, runEnd)
    from = end ?? runEnd
    if (end === null) continue
    replaced += text.slice(copied, start) + replace(text.slice(start, end))
    copied = end
  }
  return replaced + text.slice(copied)
}

/** Returns the end of the ID whose prefix starts at the first letter of a run, or null. */
function endOfId(text: string, start: number, runEnd: number): number | null {
  for (let at = text.lastIndexOf('_', runEnd); at > start; at = text.lastIndexOf('_', at - 1)) {
    const end = at + 1 + REST_LENGTH
    let next = at + 1
    while (next < end && REST_CHARS.has(text.charCodeAt(next))) next++
    if (next === end) return end
  }
  return null
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
