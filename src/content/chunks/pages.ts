import type { PageText } from './model.ts'
import { CharacterMeasure } from './text-measure.ts'

/** Number and first code point of each page of a joined text, in its order. */
export type PageStarts = [number: number | null, start: number][]

/** Where the pages of a text begin once they are joined; null for a text whose pages have no numbers. */
export function pageStarts(pages: PageText[]): PageStarts | null {
  if (pages.every(page => page.number === null)) return null
  let start = 0
  return pages.map(({ number, text }) => {
    const here = start
    start += new CharacterMeasure(text).index(text.length) + 1
    return [number, here]
  })
}

/** The pages that a text was joined from; a text without numbered pages is one. */
export function splitIntoPages(text: string, starts: PageStarts | null): PageText[] {
  if (starts === null) return [{ number: null, text }]
  const ruler = new CharacterMeasure(text)
  const offsets = starts.map(([, start]) => ruler.offset(start))
  // The line break that parts two pages belongs to neither.
  return starts.map(([number], page) => ({
    number,
    text: text.slice(offsets[page], page + 1 < starts.length ? offsets[page + 1] - 1 : text.length),
  }))
}
